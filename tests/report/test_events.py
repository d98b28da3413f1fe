"""Resets, stages and decisions at the step at which they happened."""

from __future__ import annotations

from collections.abc import Callable

from nemo_prorl.report.drawings import stage_spans
from nemo_prorl.report.events import Kind, events_of
from nemo_prorl.report.runs import Run


def test_a_long_run(long_run: Run) -> None:
    events = events_of(long_run)
    assert [event.step for event in events if event.kind is Kind.stage] == list(range(0, 3000, 375))
    resets = [event.step for event in events if event.kind is Kind.reset]
    assert resets == sorted([*range(200, 3000, 375), *range(375, 3000, 375)])
    assert resets[-1] == 2825
    assert [event.step for event in events if event.kind is Kind.decision] == list(range(200, 3000, 375))
    assert stage_spans(long_run)[1] == (375, 750, "run2")
    assert [event.step for event in events] == sorted(event.step for event in events)


def test_who_asked_for_a_reset(make_run: Callable[..., Run]) -> None:
    def by_hand(record: dict) -> dict:
        return record | {"num_resets": record["num_resets"] + (record["step"] >= 45)}

    texts = [event.text for event in events_of(make_run(by_hand, num_stages=2)) if event.kind is Kind.reset]
    assert [text.partition(", ")[2] for text in texts] == ["at the start of the stage", "asked for by hand"]


def test_a_new_stage_says_what_is_new(make_run: Callable[..., Run]) -> None:
    (_, second) = [event for event in events_of(make_run(num_stages=2)) if event.kind is Kind.stage]
    assert second.step == 30
    assert second.text == "run2 begins after run1 ended (steps): sampler.num_rollouts 16 → 32"


def test_the_end(make_run: Callable[..., Run]) -> None:
    assert events_of(make_run())[-1].kind is Kind.end
    assert events_of(make_run(is_done=False))[-1].kind is Kind.reset
