"""Events of a run: those in its records, how its stages differ, and what other files say of resumes and ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from nemo_prorl.report.runs import Run, once_a_run
from nemo_prorl.run_folder.events import Event, EventKind, events_in

NOT_COMPARED = ("stage.name", "stage.parent")
"""Options that always differ between stages."""


@once_a_run
def events_of(run: Run) -> tuple[Event, ...]:
    """Returns the events in the order in which they happened."""
    events, previous = [], ""
    for event in events_in(run.records):
        if event.kind is EventKind.stage:
            # Adds how the stage before ended, and which options differ; nothing to the first stage.
            text, stage = event.text, event.stage
            if run.outcomes.get(previous):
                text += f" after {previous} ended ({run.outcomes[previous]})"
            if previous in run.configs and stage in run.configs:
                changed = differences(run.configs[previous], run.configs[stage])
                said = [
                    f"{name} " + " → ".join("none" if value is None else str(value) for value in values)
                    for name, values in changed.items()
                ]
                if said:
                    text += f": {', '.join(said)}" if len(said) <= 6 else f"; {len(said)} options differ"
            event, previous = replace(event, text=text), stage
        events.append(event)
    for when, stage, step in run.resumes:
        events.append(Event(step, stage, EventKind.resume, f"went on from its checkpoint, {when}"))
    events.sort(key=lambda event: event.step)
    step, stage = int(run.last["step"]), str(run.last["stage"])
    if outcome := run.outcomes.get(stage):
        events.append(Event(step, stage, EventKind.end, f"{stage} ended ({outcome})"))
    if stage in run.failures:
        events.append(Event(step, stage, EventKind.failure, run.failures[stage] or "no reason recorded"))
    return tuple(events)


def resets_of(run: Run) -> list[Event]:
    """Returns the events after which the policy became the reference."""
    return [event for event in events_of(run) if event.kind is EventKind.reset]


def stage_spans(run: Run) -> list[tuple[int, int, str]]:
    """Returns (step before its first, last step, name) of each stage that has completed a step."""
    starts = [event for event in events_of(run) if event.kind is EventKind.stage]
    ends = [event.step for event in starts[1:]] + [int(run.last["step"])]
    spans = zip(starts, ends, strict=True)
    return [(start.step, end, start.stage) for start, end in spans if end > start.step]


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Returns option -> (value before, value after) for the options that differ."""
    names = [*before, *(name for name in after if name not in before)]
    return {
        name: (before.get(name), after.get(name))
        for name in names
        if before.get(name) != after.get(name) and name not in NOT_COMPARED
    }
