"""Events of a run besides steps: stages, resets, decisions of the controller, other measurements, resumes, ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Any

from nemo_prorl.report.runs import Run, once_a_run
from nemo_prorl.run_folder.validation_metrics import MEASUREMENT, WENT_BACK

NOT_COMPARED = ("stage.name", "stage.parent")
"""Options that always differ between stages."""


class Kind(StrEnum):
    """The kind of an event."""

    stage = "stage"
    reset = "reset"
    decision = "decision"
    measurement = "measurement"
    resume = "resume"
    end = "end"
    failure = "failure"


@dataclass(frozen=True, slots=True)
class Event:
    """An event at the end of `step`."""

    step: int
    stage: str
    kind: Kind
    text: str
    numbers: Mapping[str, float] = field(default_factory=dict)


@once_a_run
def events_of(run: Run) -> tuple[Event, ...]:
    """Returns the events in the order in which they happened."""
    first = run.records[0]
    events = [Event(first["step"], first["stage"], Kind.stage, f"{first['stage']} begins")]
    for before, after in pairwise(run.records):
        events += _between(run, before, after)
    for before, after in pairwise(run.validations):
        if before.get(MEASUREMENT) != after.get(MEASUREMENT):
            text = "validation measures something else from here on (run.log says what): do not compare across it"
            events.append(Event(int(after["step"]), str(after["stage"]), Kind.measurement, text))
    for when, stage, step in run.resumes:
        events.append(Event(step, stage, Kind.resume, f"went on from its checkpoint, {when}"))
    events.sort(key=lambda event: event.step)
    return (*events, *_ends(run))


def resets_of(run: Run) -> list[Event]:
    """Returns the events after which the policy became the reference."""
    return [event for event in events_of(run) if event.kind is Kind.reset]


def stage_spans(run: Run) -> list[tuple[int, int, str]]:
    """Returns (step before its first, last step, name) of each stage that has completed a step."""
    starts = [event for event in events_of(run) if event.kind is Kind.stage]
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


def _between(run: Run, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Event]:
    step, stage = int(after["step"]), str(after["stage"])
    is_new_stage = stage != before["stage"]
    if is_new_stage:
        yield Event(int(before["step"]), stage, Kind.stage, _beginning(run, before, after))
    decision = after.get("controller")
    if isinstance(decision, Mapping):
        text = f"{decision.get('action', '')}: {decision.get('reason', '')}"
        yield Event(step, stage, Kind.decision, text, decision.get("numbers") or {})
    num_resets = int(after.get("num_resets", 0)) - int(before.get("num_resets", 0))
    if num_resets > 0:
        cause = "at the start of the stage" if is_new_stage else "asked for by hand"
        if isinstance(decision, Mapping) and decision.get("action") == "reset":
            cause = "by the controller"
        went_back = f"goes back to step {after[WENT_BACK]} and " if WENT_BACK in after else ""
        # A stage's reset happens before its first step, a controller's at the end of the step that records it.
        at = int(before["step"]) if is_new_stage else step
        yield Event(at, stage, Kind.reset, f"the policy {went_back}becomes the reference, {cause}")


def _beginning(run: Run, before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    previous, stage = str(before["stage"]), str(after["stage"])
    text = f"{stage} begins"
    if outcome := run.outcomes.get(previous):
        text += f" after {previous} ended ({outcome})"
    if WENT_BACK in after:
        text += f", with the weights of step {after[WENT_BACK]}"
    if previous in run.configs and stage in run.configs:
        changed = differences(run.configs[previous], run.configs[stage])
        said = [f"{name} {old} → {new}" for name, (old, new) in changed.items()]
        if said:
            text += f": {', '.join(said)}" if len(said) <= 6 else f"; {len(said)} options differ"
    return text


def _ends(run: Run) -> Iterator[Event]:
    step, stage = int(run.last["step"]), str(run.last["stage"])
    if outcome := run.outcomes.get(stage):
        yield Event(step, stage, Kind.end, f"{stage} ended ({outcome})")
    if stage in run.failures:
        yield Event(step, stage, Kind.failure, run.failures[stage] or "no reason recorded")
