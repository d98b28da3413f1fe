"""When to reset, end the stage, or stop: a pure decision over what a stage has shown since its last reset.

`decide` looks at a History and names at most one action. ResetController keeps that history, one record of
metrics.jsonl after the other, and can be put into a checkpoint and taken out again between any two of them. Neither
reads a file or a clock, so `python -m nemo_prorl replay` decides exactly as a run does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from nemo_prorl.config import ControllerAction, ControllerConfig, ControllerMode
from nemo_prorl.training.held_out import DOMAIN_MEAN, PROMPT_MEAN, VALIDATION, with_domain_mean
from nemo_prorl.training.signals import CANARY, FAULTS, HELD_OUT, SIGNALS, Finding, History, Series
from nemo_prorl.training.trends import mismatch_limit

SEVERITY = (
    ControllerAction.ignore,
    ControllerAction.reset,
    ControllerAction.end_stage,
    ControllerAction.stop,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What is to happen after `step`, and why.

    Example: Decision(action=ControllerAction.reset, signal="kl_spike", step=460,
                      reason="KL to the reference 0.31 nats a token is 4.43 times ...",
                      numbers={"value": 0.31, "median": 0.07, "limit": 0.14})
    """

    action: ControllerAction
    signal: str
    reason: str
    """One sentence with the numbers that caused it, and the other signals that fired at the same step."""
    numbers: dict[str, float]
    step: int

    def as_record(self) -> dict[str, Any]:
        """For the key "controller" of the step's line in metrics.jsonl."""
        return {
            "action": self.action.name,
            "signal": self.signal,
            "reason": self.reason,
            "numbers": self.numbers,
        }


class ResetController:
    """Follows a run record by record. Any decision, its own or a user's, starts history and cool-down afresh."""

    def __init__(self, config: ControllerConfig, state: Mapping[str, Any] | None = None) -> None:
        """`state`: what state() returned when the checkpoint was written; None or empty at the start of a run."""
        self._config = config
        impatient = replace(config.sampler_mismatch, patience=1)
        self._at_once = replace(config, sampler_mismatch=impatient)
        """For `warning`."""
        self._history = _history_of(state, config) if state else None

    def observe(self, record: Mapping[str, Any]) -> Decision | None:
        """What to do after the step (or the validation before the first one) that `record` tells about."""
        stage, step, history = str(record["stage"]), int(record["step"]), self._history
        if history is None or history.stage != stage:
            history = History(stage=stage, since=history.step if history else step, step=step)
        self._history = history.extended(record, self._config)
        decision = decide(self._history, self._config)
        if decision is not None:
            self.note_reset(decision.step)
        return decision

    def note_reset(self, step: int) -> None:
        """The policy became the reference after `step`, or a stage begins there."""
        if self._history is not None:
            self._history = self._history.restarted(step)

    def note_other_weights(self, validation: Mapping[str, Any]) -> None:
        """The reset of the newest step has put the weights of an earlier step in the policy's place. `validation`: what
        was measured of them, as metrics of a record."""
        if self._history is not None:
            self._history = self._history.with_weights_of(validation)

    def has_seen(self, stage: str) -> bool:
        """Whether it has observed a record of this stage, and of none since."""
        return self._history is not None and self._history.stage == stage

    def canary_limit(self) -> float:
        """Up to which difference, in nats a token, the next canary finds nothing."""
        series = self._history.series.get(CANARY, ()) if self._history is not None else ()
        return mismatch_limit([value for _, value in series], self._config.sampler_mismatch)

    def warning(self) -> str:
        """What is wrong with the sampler at the newest record, though it has not lasted long enough to act upon; empty:
        nothing."""
        if self._history is None:
            return ""
        finding = SIGNALS["sampler_mismatch"](self._history, self._at_once)
        return finding.reason if finding is not None else ""

    def state(self) -> dict[str, Any]:
        """For the checkpoint; JSON-serialisable."""
        return asdict(self._history) if self._history is not None else {}


def decide(history: History, config: ControllerConfig) -> Decision | None:
    """The action that the newest record of `history` calls for, if any. A pure function.

    Signals count in mode automatic and after the cool-down only, but those in FAULTS always; a fixed interval in the
    modes automatic and interval.
    Of several that fire the most severe action happens (stop, end_stage, reset), and the first of SIGNALS that calls
    for it is named; the interval comes last.
    """
    num_steps = history.step - history.since
    fired: list[tuple[ControllerAction, str, Finding]] = []
    all_count = config.mode is ControllerMode.automatic and num_steps >= config.cooldown
    for name, signal in SIGNALS.items():
        action = getattr(config, name).action
        counts = (all_count or name in FAULTS) and action is not ControllerAction.ignore
        if counts and (finding := signal(history, config)):
            fired.append((action, name, finding))
    if config.mode is not ControllerMode.manual and 0 < config.interval <= num_steps:
        fired.append((ControllerAction.reset, "interval", _interval_is_over(num_steps, config.interval)))
    if not fired:
        return None
    action, name, finding = max(fired, key=lambda one: SEVERITY.index(one[0]))  # of equals the first
    others = [other for _, other, _ in fired if other != name]
    also = f" (also: {', '.join(others)})" if others else ""
    return Decision(
        action=action,
        signal=name,
        reason=f"{finding.reason}{also}.",
        numbers=finding.numbers,
        step=history.step,
    )


def _interval_is_over(num_steps: int, interval: int) -> Finding:
    return Finding(
        reason=f"{num_steps} steps since the last reset or the start of the stage reach controller.interval={interval}",
        numbers={"num_steps": float(num_steps), "interval": float(interval)},
    )


def _history_of(state: Mapping[str, Any], config: ControllerConfig) -> History:
    """What asdict made of it; JSON turns tuples into lists."""
    series = {
        str(key): tuple((int(step), float(value)) for step, value in points)
        for key, points in state["series"].items()
    }
    peaks = state.get("peaks", {})  # older checkpoints lack it
    is_before_domain_mean = PROMPT_MEAN in series and DOMAIN_MEAN not in series
    if not isinstance(peaks, Mapping):  # older ones do not say of which mean theirs are
        peaks = {PROMPT_MEAN if is_before_domain_mean else HELD_OUT[config.validation_mean]: peaks}
    if is_before_domain_mean:
        series |= _domain_means(series)
    return History(
        stage=str(state["stage"]),
        since=int(state["since"]),
        step=int(state["step"]),
        entropy_level=tuple(float(value) for value in state["entropy_level"]),
        peaks={str(key): tuple(float(value) for value in values) for key, values in peaks.items()},
        series=series,
    )


def _domain_means(series: Mapping[str, Series]) -> dict[str, Series]:
    """DOMAIN_MEAN at every validation, from the rewards of the domains."""
    validations = {key: dict(points) for key, points in series.items() if key.startswith(VALIDATION)}
    records = [
        (
            step,
            with_domain_mean({key: of_step[step] for key, of_step in validations.items() if step in of_step}),
        )
        for step, _ in series[PROMPT_MEAN]
    ]
    points = tuple((step, float(record[DOMAIN_MEAN])) for step, record in records if DOMAIN_MEAN in record)
    return {DOMAIN_MEAN: points} if points else {}
