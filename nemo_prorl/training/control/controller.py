"""Decides from a stage's metrics since its last reset whether to reset, to end the stage, or to stop.

`decide` is a pure function of a History. ResetController builds that history from the records of metrics.jsonl, and a
checkpoint contains it. Neither reads a file or a clock, so `python -m nemo_prorl replay` decides exactly as a run does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from nemo_prorl.config import ControllerAction, ControllerConfig, ControllerMode
from nemo_prorl.run_folder.validation_metrics import PROMPT_MEAN, WENT_BACK
from nemo_prorl.training.control.series import CANARY, History, mismatch_limit
from nemo_prorl.training.control.watches import WATCHES, Fired

SEVERITY = tuple(ControllerAction)  # declared in ascending order


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A decision after `step`, and its reason.

    Example: Decision(action=ControllerAction.reset, signal="kl_spike", step=460,
                      reason="KL to the reference 0.31 nats a token is 4.43 times ...",
                      numbers={"value": 0.31, "median": 0.07, "limit": 0.14})
    """

    action: ControllerAction
    signal: str
    reason: str
    """One sentence: the numbers that caused it, and the other signals that fired at this step."""
    numbers: dict[str, float]
    step: int

    def as_record(self) -> dict[str, Any]:
        """Returns the value of the key "controller" in the step's line of metrics.jsonl."""
        names = {"action": self.action.name, "signal": self.signal}
        return names | {"reason": self.reason, "numbers": self.numbers}


class ResetController:
    """Follows a run record by record. Every decision but a warning, and a user's request, restarts the history and the
    cool-down."""

    def __init__(self, config: ControllerConfig, state: Mapping[str, Any] | None = None) -> None:
        """state: what `state()` returned for a checkpoint; empty or None at the start of a run."""
        self._config = config
        self._history = History.of_json(state) if state else History(stage="", since=0, step=0)

    def observe(self, record: Mapping[str, Any]) -> Decision | None:
        """Adds the record of a step, or of the validation before the first step. Returns the decision after it, if
        there is one."""
        stage, step, history = str(record["stage"]), int(record["step"]), self._history
        if history.stage != stage:
            history = History(stage=stage, since=history.step if history.stage else step, step=step)
        self._history = history.extended(record, self._config)
        decision = decide(self._history, self._config)
        if decision is not None and decision.action is ControllerAction.warn:
            warned = {**self._history.warned, decision.signal: decision.step}
            self._history = replace(self._history, warned=warned)
        elif decision is not None:
            self.note_reset(decision.step)
        return decision

    def note_reset(self, step: int) -> None:
        """Restarts the history and the cool-down after `step`, as every decision but a warning does."""
        self._history = self._history.restarted(step)

    def reset_on_request(self, step: int) -> Decision:
        """Returns the reset that a user asked for, and notes it."""
        self.note_reset(step)
        reason, action = "a user asked for it.", ControllerAction.reset
        return Decision(action=action, signal="request", reason=reason, numbers={}, step=step)

    def note_other_weights(self, validation: Mapping[str, Any]) -> None:
        """Tells the controller that the newest step's reset returned to an earlier checkpoint. validation: metrics of
        that checkpoint's validation, as in a record."""
        self._history = self._history.with_weights_of(validation)

    def has_seen(self, stage: str) -> bool:
        """Returns whether the newest record is of this stage."""
        return self._history.stage == stage

    def canary_limit(self) -> float:
        """Returns the mean difference, in nats per token, above which the next canary is suspicious."""
        values = [value for _, value in self._history.series.get(CANARY, ())]
        return mismatch_limit(values, self._config.limits)

    def state(self) -> dict[str, Any]:
        """Returns the state to save in a checkpoint. JSON-serialisable; empty before the first record."""
        return asdict(self._history) if self._history.stage else {}


class WatchingController:
    """Says what a controller would decide on the records of a run, whose real resets it follows."""

    def __init__(self, config: ControllerConfig) -> None:
        self._controller = ResetController(config)
        self._num_resets = 0
        self._validations: dict[tuple[str, int], Mapping[str, Any]] = {}

    def observe(self, record: Mapping[str, Any]) -> Decision | None:
        """Returns the decision after the step of `record`."""
        stage, step = str(record["stage"]), int(record["step"])
        if PROMPT_MEAN in record:
            self._validations[stage, step] = record
        decision = self._controller.observe(record)
        if int(record.get("num_resets", 0)) > self._num_resets:
            self._num_resets = int(record["num_resets"])
            self._controller.note_reset(step)
            # A record without a decision is a stage's start, which has a validation of its own.
            if WENT_BACK in record and "controller" in record:
                measured = self._validations.get((stage, int(record[WENT_BACK])), {})
                self._validations[stage, step] = measured  # a later reset may go back to this one
                self._controller.note_other_weights(measured)
        return decision


def decide(history: History, config: ControllerConfig) -> Decision | None:
    """Returns the action that the newest record of `history` calls for, if any.

    Watches count in mode automatic after the cool-down, those that only warn in every mode, faults always;
    controller.interval counts in the modes automatic and interval. No watch resets a policy that has not moved, which
    is its reference already. If several fire, the most severe action is taken, and the decision names the first in
    WATCHES that calls for it; the interval comes last.
    """
    num_steps = history.step - history.since
    fired: list[tuple[ControllerAction, str, Fired]] = []
    for watch in WATCHES:
        action, silent_steps = getattr(config, watch.name), num_steps
        if action is ControllerAction.warn:
            silent_steps = min(num_steps, history.step - history.warned.get(watch.name, history.since))
        is_on = config.mode is ControllerMode.automatic or action is ControllerAction.warn
        is_due = watch.is_fault or (is_on and silent_steps >= config.cooldown)
        counts = is_due and (action is not ControllerAction.reset or history.has_moved())
        if action is not ControllerAction.ignore and counts and (finding := watch.judge(history, config)):
            fired.append((action, watch.name, finding))
    if config.mode is not ControllerMode.manual and 0 < config.interval <= num_steps:
        reason = (
            f"the last reset or the start of the stage was {num_steps} steps ago "
            f"(controller.interval={config.interval})"
        )
        numbers = {"num_steps": float(num_steps), "interval": float(config.interval)}
        fired.append((ControllerAction.reset, "interval", Fired(reason=reason, numbers=numbers)))
    if not fired:
        return None
    action, name, finding = max(fired, key=lambda one: SEVERITY.index(one[0]))  # the first of equals
    others = [other for _, other, _ in fired if other != name]
    also = f" (also: {', '.join(others)})" if others else ""
    reason = f"{finding.reason}{also}."
    return Decision(action=action, signal=name, reason=reason, numbers=finding.numbers, step=history.step)
