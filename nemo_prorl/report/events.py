"""Events of a run besides steps: stages, resets, decisions of the controller, resumes, ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from itertools import pairwise
from typing import Any

from nemo_prorl.report.runs import Run
from nemo_prorl.training.held_out import WENT_BACK

NOT_COMPARED = ("stage.name", "stage.parent")
"""Options that always differ between stages."""


class Kind(StrEnum):
    """The kind of an event."""

    stage = "stage"
    reset = "reset"
    decision = "decision"
    resume = "resume"
    end = "end"
    failure = "failure"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An event at the end of `step`."""

    step: int
    stage: str
    kind: Kind
    text: str
    numbers: Mapping[str, float] = field(default_factory=dict)


@lru_cache
def events_of(run: Run) -> tuple[Event, ...]:
    """Returns the events in the order in which they happened."""
    events = []
    first = run.records[0]
    events.append(
        Event(step=first["step"], stage=first["stage"], kind=Kind.stage, text=f"{first['stage']} begins")
    )
    for before, after in pairwise(run.records):
        events += _between(run, before, after)
    events += [
        Event(
            step=found.step,
            stage=found.stage,
            kind=Kind.resume,
            text=f"went on from its checkpoint, {found.time}",
        )
        for found in run.resumes
    ]
    events.sort(key=lambda event: event.step)
    return (*events, *_ends(run))


def reset_steps(run: Run) -> list[int]:
    """Returns the steps after which the policy became the reference."""
    return [event.step for event in events_of(run) if event.kind is Kind.reset]


def stage_starts(run: Run) -> list[tuple[int, str]]:
    """Returns (step after which it began, name) of each stage."""
    return [(event.step, event.stage) for event in events_of(run) if event.kind is Kind.stage]


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
        yield Event(
            step=int(before["step"]), stage=stage, kind=Kind.stage, text=_beginning(run, before, after)
        )
    decision = after.get("controller")
    if isinstance(decision, Mapping):
        yield Event(
            step=step,
            stage=stage,
            kind=Kind.decision,
            text=f"{decision.get('action', '')}: {decision.get('reason', '')}",
            numbers=decision.get("numbers") or {},
        )
    num_resets = int(after.get("num_resets", 0)) - int(before.get("num_resets", 0))
    if num_resets > 0:
        cause = "at the start of the stage" if is_new_stage else "asked for by hand"
        if isinstance(decision, Mapping) and decision.get("action") == "reset":
            cause = "by the controller"
        went_back = f"goes back to step {after[WENT_BACK]} and " if WENT_BACK in after else ""
        # A stage's reset happens before its first step, a controller's at the end of the step that records it.
        yield Event(
            step=int(before["step"]) if is_new_stage else step,
            stage=stage,
            kind=Kind.reset,
            text=f"the policy {went_back}becomes the reference, {cause}",
        )


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
        text += (
            f": {', '.join(said)}" if 0 < len(said) <= 6 else f"; {len(said)} options differ" if said else ""
        )
    return text


def _ends(run: Run) -> Iterator[Event]:
    step, stage = int(run.last["step"]), str(run.last["stage"])
    if outcome := run.outcomes.get(stage):
        yield Event(step=step, stage=stage, kind=Kind.end, text=f"{stage} ended ({outcome})")
    if stage in run.failures:
        yield Event(
            step=step, stage=stage, kind=Kind.failure, text=run.failures[stage] or "no reason recorded"
        )
