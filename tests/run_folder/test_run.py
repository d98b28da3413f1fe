"""Reading a run's folder: live, torn, without optional files, or not a run at all; and the events that it finds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nemo_prorl.config import ConfigError
from nemo_prorl.run_folder.events import EventKind, differences
from nemo_prorl.run_folder.records import write_remeasured
from nemo_prorl.run_folder.run import OTHER, RunFolder, read_run
from tests.report.made_up_runs import write_run

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Folder of a run of two stages with 30 steps each, validated every 20 steps and at the start of both."""
    write_run(tmp_path / "run", num_stages=2)
    return tmp_path / "run"


@pytest.mark.medium
def test_a_long_run_that_is_cut_off_in_mid_line(long_run: RunFolder) -> None:
    assert (long_run.last["step"], long_run.num_unread_lines) == (3000, 0)
    assert (len(long_run.steps), len(long_run.records)) == (3000, 3008)  # each stage begins with a validation
    steps = {kind: [event.step for event in long_run.events if event.kind is kind] for kind in EventKind}
    assert steps[EventKind.stage] == list(range(0, 3000, 375))
    assert steps[EventKind.reset] == sorted([*range(200, 3000, 375), *range(375, 3000, 375)])
    assert steps[EventKind.decision] == list(range(200, 3000, 375))
    assert long_run.stage_spans[1] == (375, 750, "run2")
    assert [event.step for event in long_run.events] == sorted(event.step for event in long_run.events)


def test_a_folder_that_is_no_run_is_one_sentence_and_nothing_else_raises(tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    with pytest.raises(ConfigError, match=r"holds no metrics\.jsonl: write the folder of a run"):
        read_run(tmp_path)
    for text, said in (
        ('{"step": 0, "sta', "no whole line yet"),
        ("5\n", "none of its lines holds a step and a stage"),
    ):
        metrics.write_text(text)
        with pytest.raises(ConfigError, match=said):
            read_run(tmp_path)
    run = RunFolder(tmp_path)
    assert [run.records, run.steps, run.starts, run.full_records] == [[], [], [], []]
    assert [run.configs, run.outcomes, run.submissions, run.provenance] == [{}, {}, {}, {}]
    assert [run.newest_checkpoint, run.folder_job] == [None, None]


def test_records_are_completed_by_other_files(folder: Path) -> None:
    write_remeasured(folder, "ess", [{"step": 2, "stage": "run1", "my/ess": 0.5}])
    run = read_run(folder)
    start, first, second = run.full_records[:3]
    assert (start, first["step"]) == (run.records[0], 1)
    assert first[OTHER] == pytest.approx(6)
    assert [record.get("remeasured/my.ess") for record in (start, first, second)] == [None, None, 0.5]
    assert OTHER not in run.steps[0]
    assert {OTHER, "remeasured/my.ess"} <= run.metric_names


def test_ends_of_stages(folder: Path) -> None:
    (folder / "stages" / "run2.failed").write_text(json.dumps({"reason": "non-finite loss at step 61"}))
    (folder / "stages" / "run1.done").write_text(json.dumps({"outcome": "saturated", "checkpoint": "x"}))
    run = read_run(folder)
    assert run.failures == {"run2": "non-finite loss at step 61"}
    assert run.outcomes == {"run1": "too few prompts left to learn from", "run2": "all its steps"}


def test_options_have_their_full_names_stage_by_stage(folder: Path) -> None:
    configs = read_run(folder).configs
    assert list(configs) == ["run1", "run2"]
    assert (configs["run2"]["sampler.num_rollouts"], configs["run2"]["stage.parent"]) == (32, "run1")
    assert not any(name.startswith("defaults") for name in configs["run1"])
    (folder / "stages" / "run1.yaml").write_text("a: {b: ")
    assert list(read_run(folder).configs) == ["run2"], "what cannot be read is passed over"


def test_the_newest_checkpoint_says_what_wrote_it(folder: Path) -> None:
    path = folder / "checkpoints" / "step-00000020-run1"
    path.mkdir(parents=True)
    (path / "state.json").write_text(json.dumps({"state": {}, "provenance": {"commit": "new"}}))
    (path / "manifest.json").write_text("{}")
    assert read_run(folder).provenance == {"commit": "new"}


def by_hand(record: dict[str, Any]) -> dict[str, Any]:
    return {"num_resets": record["num_resets"] + (record["step"] >= 45)}


def requested(record: dict[str, Any]) -> dict[str, Any]:
    decision = {"action": "reset", "signal": "request", "reason": "a user asked for it.", "numbers": {}}
    return by_hand(record) | ({"controller": decision} if record["step"] == 45 else {})


def went_back(record: dict[str, Any]) -> dict[str, Any]:
    """At steps 45 (a reset of the second stage) and 30 (its start)."""
    is_start = record["stage"] == "run2" and record["step"] == 30
    return by_hand(record) | ({"went_back_to_step": 20} if is_start or record["step"] == 45 else {})


@pytest.mark.parametrize(
    ("change", "texts"),
    [
        (by_hand, ["reset, at the start of the stage", "reset, asked for by hand"]),
        (requested, ["reset: a user asked for it.", "reset, asked for by hand"]),
        (went_back, ["reset to step 20, asked for by hand",
                     "run2 begins with the weights of step 20 after run1 ended"]),
    ],
)  # fmt: skip
def test_an_event_says_who_asked_for_a_reset_and_where_it_went_back(
    make_run: Callable[..., RunFolder], change: Callable[[dict[str, Any]], dict[str, Any]], texts: list[str]
) -> None:
    events = make_run(lambda record: record | change(record)).events
    for text in texts:
        assert any(event.text.startswith(text) for event in events), text


def test_another_measurement_is_an_event(make_run: Callable[..., RunFolder]) -> None:
    def measured(record: dict[str, Any]) -> dict[str, Any]:
        is_validation = "validation/score" in record
        return record | ({"measurement": "ab"[record["step"] >= 40]} if is_validation else {})

    events = make_run(measured, num_stages=2).events
    assert [(one.step, one.stage) for one in events if one.kind is EventKind.measurement] == [(40, "run2")]


def test_a_new_stage_says_what_is_new_and_the_last_how_it_ended(folder: Path) -> None:
    run = read_run(folder)
    (_, second) = [event for event in run.events if event.kind is EventKind.stage]
    assert (second.step, run.events[-1].kind) == (30, EventKind.end)
    assert second.text == "run2 begins after run1 ended (all its steps): sampler.num_rollouts 16 → 32"
    added = read_run(folder)
    added.configs["run2"]["data.train.more.parquet"] = 3.0
    assert any(event.text.endswith("16 → 32, data.train.more.parquet None → 3.0") for event in added.events)


def test_an_empty_mapping_differs_by_its_entries() -> None:
    data = {"data.train.a.parquet": 1.0}
    assert differences({"data.train": {}}, data) == {"data.train.a.parquet": (None, 1.0)}
    assert differences(data, {"data.train": {}}) == {"data.train.a.parquet": (1.0, None)}


def test_resumes_are_read_from_what_the_run_notes(folder: Path) -> None:
    lines = ["stage run1 begins", "stage run1 goes on after step 25", "held out at step 30"]
    lines.append("stage run2 goes on after step 30")
    log = "".join(f"2026-01-31T12:0{number}:00Z {line}\n" for number, line in enumerate(lines))
    (folder / "run.log").write_text(log)
    events = read_run(folder).events
    found = [event for event in events if event.kind is EventKind.resume]
    assert [(event.step, event.stage) for event in found] == [(25, "run1"), (30, "run2")]
    assert "2026-01-31T12:01:00Z" in found[0].text
    assert [event.step for event in events] == sorted(event.step for event in events)
    texts = [path.read_text() for path in (ROOT / "nemo_prorl").rglob("*.py")]
    assert any('"goes on after step {state.step}"' in text for text in texts), "the trainer's log line"
