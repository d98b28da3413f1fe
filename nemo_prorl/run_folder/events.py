"""Events in the records of metrics.jsonl besides steps: stages, resets, decisions of the controller, measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Any

from nemo_prorl.run_folder.validation_metrics import MEASUREMENT, PROMPT_MEAN, WENT_BACK

NOT_COMPARED = ("stage.name", "stage.parent")
"""Options that always differ between stages."""


class EventKind(StrEnum):
    """The kind of an event. The last three are not in the records: `RunFolder.events` reads them from other files."""

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
    kind: EventKind
    text: str
    numbers: Mapping[str, float] = field(default_factory=dict)


def events_in(records: Sequence[Mapping[str, Any]]) -> list[Event]:
    """Returns the events in the order in which they happened. The first one is the beginning of the first stage.
    records: at least one."""
    step, stage = int(records[0]["step"]), str(records[0]["stage"])
    events = [Event(step, stage, EventKind.stage, f"{stage} begins")]
    for before, after in pairwise(records):
        step, stage = int(after["step"]), str(after["stage"])
        is_new_stage = stage != before["stage"]
        if is_new_stage:
            weights = f" with the weights of step {after[WENT_BACK]}" if WENT_BACK in after else ""
            events.append(Event(int(before["step"]), stage, EventKind.stage, f"{stage} begins{weights}"))
        decision = after.get("controller", {})
        if decision:
            text = f"{decision['action']}: {decision['reason']}"
            events.append(Event(step, stage, EventKind.decision, text, decision["numbers"]))
        if int(after.get("num_resets", 0)) > int(before.get("num_resets", 0)):
            cause = "at the start of the stage" if is_new_stage else "asked for by hand"
            if decision.get("action") == "reset" and decision.get("signal") != "request":
                cause = "by the controller"
            went_back = f" to step {after[WENT_BACK]}" if WENT_BACK in after else ""
            # A stage's reset happens before its first step, a controller's at the end of the step that records it.
            at = int(before["step"]) if is_new_stage else step
            events.append(Event(at, stage, EventKind.reset, f"reset{went_back}, {cause}"))
    for before, after in pairwise(record for record in records if PROMPT_MEAN in record):
        if before.get(MEASUREMENT) != after.get(MEASUREMENT):
            text = "validation measures something else from here on (run.log says what): do not compare across it"
            events.append(Event(int(after["step"]), str(after["stage"]), EventKind.measurement, text))
    return sorted(events, key=lambda event: event.step)


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Returns option -> (value before, value after) for the options that differ. An empty mapping is no option: its
    entries are."""
    names = [*before, *(name for name in after if name not in before)]
    return {
        name: (before.get(name), after.get(name))
        for name in names
        if before.get(name) != after.get(name)
        and name not in NOT_COMPARED
        and {} not in (before.get(name), after.get(name))
    }
