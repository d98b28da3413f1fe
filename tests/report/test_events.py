"""Tests that resets, stages and decisions are shown at the step at which they happened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from nemo_prorl.report.events import events_of, stage_spans
from nemo_prorl.report.health import bests_of
from nemo_prorl.report.runs import Run, read_run
from nemo_prorl.run_folder.events import EventKind
from tests.report.made_up_runs import write_run

ROOT = Path(__file__).resolve().parents[2]


def test_a_long_run(long_run: Run) -> None:
    events = events_of(long_run)
    assert [event.step for event in events if event.kind is EventKind.stage] == list(range(0, 3000, 375))
    resets = [event.step for event in events if event.kind is EventKind.reset]
    assert resets == sorted([*range(200, 3000, 375), *range(375, 3000, 375)])
    assert resets[-1] == 2825
    assert [event.step for event in events if event.kind is EventKind.decision] == list(range(200, 3000, 375))
    assert stage_spans(long_run)[1] == (375, 750, "run2")
    assert [event.step for event in events] == sorted(event.step for event in events)


def test_who_asked_for_a_reset(make_run: Callable[..., Run]) -> None:
    def by_hand(record: dict) -> dict:
        return record | {"num_resets": record["num_resets"] + (record["step"] >= 45)}

    texts = [
        event.text for event in events_of(make_run(by_hand, num_stages=2)) if event.kind is EventKind.reset
    ]
    assert [text.partition(", ")[2] for text in texts] == ["at the start of the stage", "asked for by hand"]


def test_a_request_is_not_the_controllers_reset(make_run: Callable[..., Run]) -> None:
    def with_request(record: dict) -> dict:
        decision = {"action": "reset", "signal": "request", "reason": "a user asked for it.", "numbers": {}}
        asked = {"controller": decision} if record["step"] == 45 else {}
        return record | {"num_resets": int(record["step"] >= 45)} | asked

    texts = [event.text for event in events_of(make_run(with_request)) if event.step == 45]
    assert texts[:2] == [
        "reset: a user asked for it.",
        "the policy becomes the reference, asked for by hand",
    ]


def test_a_run_that_went_back_says_so(make_run: Callable[..., Run]) -> None:
    """At steps 45 (a reset of the second stage) and 30 (its start)."""

    def went_back(record: dict) -> dict:
        is_start = record["stage"] == "run2" and record["step"] == 30
        goes_back = {"went_back_to_step": 20} if is_start or record["step"] == 45 else {}
        return record | {"num_resets": record["num_resets"] + (record["step"] >= 45)} | goes_back

    texts = [event.text for event in events_of(make_run(went_back, num_stages=2))]
    assert "the policy goes back to step 20 and becomes the reference, asked for by hand" in texts
    assert any(text.startswith("run2 begins with the weights of step 20 after run1 ended") for text in texts)


def test_another_measurement_is_an_event_and_the_best_is_one_of_the_newest(
    make_run: Callable[..., Run],
) -> None:
    """The validations of steps 0, 20 and 30 measured what those of steps 40 and 60 did not, and had higher rewards."""

    def measured(record: dict) -> dict:
        if "validation/score" not in record:
            return record
        is_other = record["step"] >= 40
        reward = {"validation/score": 0.4 if is_other else 0.9}
        return record | reward | {"measurement": "b" if is_other else "a"}

    run = make_run(measured, num_stages=2)
    (event,) = [event for event in events_of(run) if event.kind is EventKind.measurement]
    assert (event.step, event.stage) == (40, "run2")
    (best,) = [best for best in bests_of(run) if best.domain == "mean over prompts"]
    assert (best.first, best.best, best.best_step) == (0.4, 0.4, 60)  # of equal ones the last
    assert not [event for event in events_of(make_run()) if event.kind is EventKind.measurement]


def test_a_new_stage_says_what_is_new(make_run: Callable[..., Run]) -> None:
    (_, second) = [event for event in events_of(make_run(num_stages=2)) if event.kind is EventKind.stage]
    assert second.step == 30
    assert second.text == "run2 begins after run1 ended (all its steps): sampler.num_rollouts 16 → 32"


def test_what_a_stage_adds_was_none_before(make_run: Callable[..., Run]) -> None:
    run = make_run(num_stages=2)
    options = {**run.configs["run2"], "data.train.more.parquet": 3.0}
    added = replace(run, configs={**run.configs, "run2": options})
    (_, second) = [event for event in events_of(added) if event.kind is EventKind.stage]
    assert second.text.endswith("num_rollouts 16 → 32, data.train.more.parquet none → 3.0")


def test_the_end(make_run: Callable[..., Run]) -> None:
    assert events_of(make_run())[-1].kind is EventKind.end
    assert events_of(make_run(is_done=False))[-1].kind is EventKind.reset


def test_resumes_are_read_from_what_the_run_notes(tmp_path: Path) -> None:
    write_run(tmp_path / "run", num_stages=2)
    lines = [
        "stage run1 begins",
        "stage run1 goes on after step 25",
        "held out at step 30",
        "stage run2 goes on after step 30",
    ]
    log = "".join(f"2026-01-31T12:0{number}:00Z {line}\n" for number, line in enumerate(lines))
    (tmp_path / "run" / "run.log").write_text(log)
    events = events_of(read_run(tmp_path / "run"))
    assert [(event.step, event.stage) for event in events if event.kind is EventKind.resume] == [
        (25, "run1"),
        (30, "run2"),
    ]
    assert "2026-01-31T12:01:00Z" in next(event.text for event in events if event.kind is EventKind.resume)
    assert [event.step for event in events] == sorted(event.step for event in events)
    assert "goes on after step" in (ROOT / "nemo_prorl" / "run.py").read_text()  # the trainer's log line
