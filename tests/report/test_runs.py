"""Tests of reading a run's folder: live, torn, without optional files, or not a run at all; and of the metrics that are
computed from difficulty files."""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from nemo_prorl.config import ConfigError
from nemo_prorl.report.drawings import draw
from nemo_prorl.report.panels import DIFFICULTY
from nemo_prorl.report.runs import BANDS, BEFORE, NOW, OTHER, Run, difficulty_metrics, read_run
from nemo_prorl.run_folder.difficulty import write_difficulty
from tests.report.made_up_runs import write_run
from tests.training.conftest import make_group


@pytest.mark.medium
def test_a_line_that_is_being_written_does_no_harm(long_run: Run) -> None:
    assert long_run.last["step"] == 3000
    assert long_run.num_unread_lines == 0
    assert len(long_run.steps) == 3000
    assert len(long_run.records) == 3008  # each stage begins with a validation


def test_a_folder_that_is_no_run_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds no metrics\.jsonl: write the folder of a run"):
        read_run(tmp_path)
    (tmp_path / "metrics.jsonl").write_text('{"step": 0, "sta')
    with pytest.raises(ConfigError, match="no whole line yet"):
        read_run(tmp_path)


DAMAGED = [
    b"\xff\xfe\n",
    b"\0\0\0\0\n",
    b'{"step": 0, "sta\n',
    b"5\n",
    b'{"step": NaN, "stage": "a"}\n',
    b"[" * 9999 + b"\n",
]


@pytest.mark.parametrize("line", DAMAGED)
@pytest.mark.parametrize("place", [0, 3])
def test_damaged_lines_are_counted_and_the_good_ones_are_read(
    tmp_path: Path, line: bytes, place: int
) -> None:
    write_run(tmp_path / "run", num_steps=6)
    file = tmp_path / "run" / "metrics.jsonl"
    whole = read_run(tmp_path / "run").records
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([*lines[:place], line, *lines[place + 1 :]]))
    run = read_run(tmp_path / "run")
    assert run.num_unread_lines == 1
    assert [record["step"] for record in run.records] == [
        record["step"] for number, record in enumerate(whole) if number != place
    ]
    file.write_bytes(line * 2)
    with pytest.raises(ConfigError, match="none of its lines holds a step and a stage"):
        read_run(tmp_path / "run")


def test_the_time_of_a_step_is_all_accounted_for(make_run: Callable[..., Run]) -> None:
    record = make_run().steps[0]
    inside = [
        key for key in record if key.startswith("time/") and key not in ("time/step_s", "time/validation_s")
    ]
    assert record["grading/exposed_s"] + sum(record[key] for key in inside) == pytest.approx(
        record["time/step_s"]
    )
    assert record[OTHER] == pytest.approx(6)


def test_status(tmp_path: Path) -> None:
    write_run(tmp_path / "run", num_stages=2, is_done=False)
    run = tmp_path / "run"
    assert read_run(run).status == "running"
    long_ago = time.time() - 3600
    os.utime(run / "metrics.jsonl", (long_ago, long_ago))
    assert read_run(run).status == "stopped"
    (run / "heartbeat.json").write_text("{}")
    assert read_run(run).status == "running"
    (run / "stages" / "run2.failed").write_text(json.dumps({"reason": "non-finite loss at step 61"}))
    failed = read_run(run)
    assert (failed.status, failed.failures["run2"]) == ("failed", "non-finite loss at step 61")
    (run / "stages" / "run2.failed").unlink()
    (run / "stages" / "run2.done").write_text(json.dumps({"outcome": "saturated", "checkpoint": "x"}))
    assert read_run(run).status == "finished"
    assert read_run(run).outcomes["run2"] == "too few prompts left to learn from"


def test_options_have_their_full_names_stage_by_stage(make_run: Callable[..., Run]) -> None:
    configs = make_run(num_stages=2).configs
    assert list(configs) == ["run1", "run2"]
    assert configs["run2"]["sampler.num_rollouts"] == 32
    assert configs["run2"]["stage.parent"] == "run1"
    assert not any(name.startswith("defaults") for name in configs["run1"])


def test_options_that_cannot_be_read_are_passed_over(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    stage = next(iter(read_run(tmp_path / "run").configs))
    (tmp_path / "run" / "stages" / f"{stage}.yaml").write_text("a: {b: ")
    assert stage not in read_run(tmp_path / "run").configs


def test_provenance_is_of_the_newest_checkpoint(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    for step, commit in ((20, "old"), (60, "new")):
        folder = tmp_path / "run" / "checkpoints" / f"step-{step:08d}-run1"
        folder.mkdir(parents=True)
        (folder / "state.json").write_text(json.dumps({"state": {}, "provenance": {"commit": commit}}))
        (folder / "manifest.json").write_text("{}")
    assert read_run(tmp_path / "run").provenance == {"commit": "new"}


def test_tables_of_evaluations(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    folder = tmp_path / "run" / "evaluation"
    folder.mkdir()
    assert read_run(tmp_path / "run").tables == ()
    table = {
        "title": "Math",
        "columns": ["benchmark", "pass@1"],
        "rows": [["AIME24", 0.31]],
        "note": "16 samples",
    }
    (folder / "math.json").write_text(json.dumps(table))
    (folder / "ragged.json").write_text(json.dumps(table | {"rows": [[1, 2, 3]]}))
    (folder / "other.json").write_text("[1, 2]")
    run = read_run(tmp_path / "run")
    assert [(found.title, found.rows, found.note) for found in run.tables] == [
        ("Math", (("AIME24", 0.31),), "16 samples")
    ]
    assert run.unread_tables == ("other.json", "ragged.json")


def write(folder: Path, parts: dict[int, dict[str, list[float]]]) -> None:
    for step, scores in parts.items():
        write_difficulty(folder, step, [make_group(f"{uid}#{step}", of) for uid, of in scores.items()])


def test_prompts_are_counted_by_the_share_of_their_rollouts_that_passed(tmp_path: Path) -> None:
    shares = (0, 1, 2, 3, 4, 4)
    write(tmp_path, {3: {f"p{number}": [1.0] * n + [0.0] * (4 - n) for number, n in enumerate(shares)}})
    (metrics,) = difficulty_metrics(tmp_path)[0].values()
    assert [metrics[name] for name in BANDS] == [1, 1, 2, 0, 2]


def test_a_prompt_is_compared_with_its_own_last_visit(tmp_path: Path) -> None:
    write(
        tmp_path,
        {1: {"a": [0, 0], "b": [1, 1]}, 2: {"a": [1, 0], "c": [0, 0]}, 5: {"a": [1, 1], "b": [1, 0]}},
    )
    metrics, _ = difficulty_metrics(tmp_path)
    assert NOW not in metrics[1]
    assert (metrics[2][BEFORE], metrics[2][NOW]) == (0.0, 0.5)
    assert (metrics[5][BEFORE], metrics[5][NOW]) == (0.75, 0.75)


def test_visits_agree_with_a_plain_count(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    parts = {
        step: {
            f"p{uid}": rng.integers(0, 2, 8).astype(float).tolist()
            for uid in rng.choice(30, 10, replace=False)
        }
        for step in range(1, 21)
    }
    write(tmp_path, parts)
    last: dict[str, float] = {}
    expected: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for step, prompts in parts.items():
        for uid, scores in prompts.items():
            if uid in last:
                expected[step].append((last[uid], float(np.mean(scores))))
            last[uid] = float(np.mean(scores))
    metrics, _ = difficulty_metrics(tmp_path)
    for step, pairs in expected.items():
        before, now = np.mean(pairs, axis=0)
        assert (metrics[step][BEFORE], metrics[step][NOW]) == pytest.approx((before, now))


def test_a_run_shows_them_when_it_has_them(tmp_path: Path) -> None:
    write_run(tmp_path / "run", num_steps=4, num_stages=1)
    assert [
        drawing for panel in DIFFICULTY.panels for drawing in draw(panel, [read_run(tmp_path / "run")])
    ] == []
    write(tmp_path / "run", {1: {"a": [0, 0]}, 2: {"a": [1, 0]}, 4: {"b": [1, 1]}})
    run = read_run(tmp_path / "run")
    bands, revisits = (drawing for panel in DIFFICULTY.panels for drawing in draw(panel, [run]))
    shown = {line.label: line.points.values.tolist() for line in bands.lines}
    assert shown == {"no rollout": [1, 0, 0], "up to 3/4": [0, 1, 0], "every rollout": [0, 0, 1]}
    assert [line.points.values.tolist() for line in revisits.lines] == [[0.5], [0.0]]
