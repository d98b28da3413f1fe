"""When to reset, end the stage, or stop: a pure decision over what a stage has shown since its last reset.

`decide` looks at a History and names at most one action. ResetController keeps that history, one record of
metrics.jsonl after the other, and can be put into a checkpoint and taken out again between any two of them. Neither
reads a file or a clock, so `python -m nemo_prorl replay` decides exactly as a run does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import exp, isfinite, log, sqrt
from statistics import median
from typing import Any

from nemo_prorl.config import ControllerAction, ControllerConfig, ControllerMode

KL = "objective/kl_to_reference"
ENTROPY = "objective/entropy"
LENGTH = "response/tokens_mean"
NO_EOS = "response/no_eos_share"
STEP_KEYS = (KL, ENTROPY, LENGTH, NO_EOS)
"""Metrics of every step; those of validation are recognised by their names."""

VALIDATION = "validation/"
REWARD = "/reward"
NUM_ROLLOUTS = "/num_rollouts"

MAD_TO_DEVIATION = 1.4826
"""The standard deviation of a normal distribution over its median absolute deviation: 1 / Phi^-1(3/4)."""

SEVERITY = (ControllerAction.reset, ControllerAction.end_stage, ControllerAction.stop)
"""Of several signals at one step the most severe action wins; of equal ones the signal that `_signals` tries first."""

Series = tuple[tuple[int, float], ...]
"""(step, value) in the order of steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """A stage since its last reset.

    Example: History(stage="run1", since=400, step=460, entropy_level=(0.61, 0.6),
                     series={"validation/math/reward": ((400, 0.41), (420, 0.43)), ...})
    """

    stage: str
    since: int
    """Step of the last reset or other decision, or the first step that was seen of the stage."""
    step: int
    """Of the newest record."""
    entropy_level: tuple[float, ...] = ()
    """Entropies of the stage's first steps. They outlive a reset, which leaves the policy as it is."""
    series: Mapping[str, Series] = field(default_factory=dict)
    """By metrics key. A value that is missing, or no finite number, is no entry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What is to happen after `step`, and why. `reason` is a sentence with the numbers that `numbers` names.

    Example: Decision(action=ControllerAction.reset, signal="kl_spike", step=460,
                      reason="KL to the reference 0.31 is 4.4 times ...", numbers={"value": 0.31, "median": 0.07, ...})
    """

    action: ControllerAction
    signal: str
    reason: str
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
        self._history = _history_of(state) if state else None

    def observe(self, record: Mapping[str, Any]) -> Decision | None:
        """What to do after the step (or the validation before the first one) that `record` tells about."""
        stage, step = str(record["stage"]), int(record["step"])
        history = self._history
        if history is None or history.stage != stage:
            history = History(stage=stage, since=step, step=step)
        self._history = extended(history, record, self._config)
        decision = decide(self._history, self._config)
        if decision is not None:
            self.note_reset(decision.step)
        return decision

    def note_reset(self, step: int) -> None:
        """The policy became the reference after `step`, or a stage begins there."""
        if self._history is not None:
            self._history = restarted(self._history, step)

    def state(self) -> dict[str, Any]:
        """For the checkpoint; JSON-serialisable."""
        return asdict(self._history) if self._history is not None else {}


def decide(history: History, config: ControllerConfig) -> Decision | None:
    """The action that the newest record of `history` calls for, if any. A pure function.

    Signals count in mode automatic and after the cool-down only; a fixed interval counts in the modes automatic and
    interval. A signal is judged at records that carry its metric: what a run does not measure never decides.
    """
    num_steps = history.step - history.since
    fired: list[Decision] = []
    if config.mode is ControllerMode.automatic and num_steps >= config.cooldown:
        fired = list(_signals(history, config))
    if config.mode is not ControllerMode.manual and 0 < config.interval <= num_steps:
        fired.append(
            Decision(
                action=ControllerAction.reset,
                signal="interval",
                reason=f"{num_steps} steps since the last reset or the start of the stage reach "
                f"controller.interval={config.interval}.",
                numbers={"num_steps": float(num_steps), "interval": float(config.interval)},
                step=history.step,
            )
        )
    if not fired:
        return None
    worst = max(fired, key=lambda decision: SEVERITY.index(decision.action))  # the first of equals
    others = [decision.signal for decision in fired if decision is not worst]
    return replace(worst, reason=f"{worst.reason} Also: {', '.join(others)}.") if others else worst


def extended(history: History, record: Mapping[str, Any], config: ControllerConfig) -> History:
    """With one more record. Metrics of every step are kept as far back as a signal looks, validations all."""
    step, series = int(record["step"]), dict(history.series)
    horizon = max(
        signal.patience + signal.window
        for signal in (config.kl_spike, config.response_length, config.no_eos, config.entropy_collapse)
    )
    horizon = max(horizon, config.entropy_runaway.patience)
    for key, value in record.items():
        if not _is_number(value):
            continue
        if key in STEP_KEYS:
            series[key] = (*series.get(key, ()), (step, float(value)))[-horizon:]
        elif key.startswith(VALIDATION) and key.endswith((REWARD, NUM_ROLLOUTS)):
            series[key] = (*series.get(key, ()), (step, float(value)))
    level, num_level = (
        history.entropy_level,
        max(config.entropy_collapse.window, config.entropy_runaway.window),
    )
    if len(level) < num_level and _is_number(record.get(ENTROPY)):
        level = (*level, float(record[ENTROPY]))
    return replace(history, step=step, entropy_level=level, series=series)


def restarted(history: History, step: int) -> History:
    """As it is after a reset: only the validation of these very weights still speaks for them."""
    validations = {key: series for key, series in history.series.items() if key.startswith(VALIDATION)}
    kept = {key: tuple(point for point in series if point[0] == step) for key, series in validations.items()}
    return replace(history, since=step, series={key: series for key, series in kept.items() if series})


def _history_of(state: Mapping[str, Any]) -> History:
    return History(
        stage=str(state["stage"]),
        since=int(state["since"]),
        step=int(state["step"]),
        entropy_level=tuple(float(value) for value in state["entropy_level"]),
        series={
            key: tuple((int(step), float(value)) for step, value in series)
            for key, series in state["series"].items()
        },
    )


def _signals(history: History, config: ControllerConfig) -> Iterator[Decision]:
    """Every signal that fires at the newest record and is not ignored; among equal actions the first one decides."""
    tests = (
        ("entropy_collapse", config.entropy_collapse.action, _entropy_collapse),
        ("entropy_runaway", config.entropy_runaway.action, _entropy_runaway),
        ("no_eos", config.no_eos.action, _no_eos),
        ("response_length", config.response_length.action, _response_length),
        ("validation_drop", config.validation_drop.action, _validation_drop),
        ("kl_spike", config.kl_spike.action, _kl_spike),
        ("validation_plateau", config.validation_plateau.action, _validation_plateau),
    )
    for signal, action, test in tests:
        if action is ControllerAction.ignore:
            continue
        if found := test(history, config):
            reason, numbers = found
            yield Decision(action=action, signal=signal, reason=reason, numbers=numbers, step=history.step)


Found = tuple[str, dict[str, float]] | None
"""The reason as a sentence, and its numbers."""


def _entropy_collapse(history: History, config: ControllerConfig) -> Found:
    signal = config.entropy_collapse
    recent, level = _entropies(history, signal.patience, signal.window)
    if not recent or max(recent) > signal.ratio * level:
        return None
    return (
        f"entropy {recent[-1]:.3g} nats a token has been at most {signal.ratio:g} of the stage's level, {level:.3g}, "
        f"for {signal.patience} steps.",
        {"value": recent[-1], "level": level, "limit": signal.ratio * level},
    )


def _entropy_runaway(history: History, config: ControllerConfig) -> Found:
    signal = config.entropy_runaway
    recent, level = _entropies(history, signal.patience, signal.window)
    if not recent or min(recent) < signal.ratio * level:
        return None
    return (
        f"entropy {recent[-1]:.3g} nats a token has been at least {signal.ratio:g} times the stage's level, "
        f"{level:.3g}, for {signal.patience} steps.",
        {"value": recent[-1], "level": level, "limit": signal.ratio * level},
    )


def _entropies(history: History, patience: int, window: int) -> tuple[list[float], float]:
    """The last `patience` values, none when there are fewer, and the level of the stage."""
    values = _values(history, ENTROPY)
    if len(values) < patience or len(history.entropy_level) < window:
        return [], 0.0
    level = median(history.entropy_level[:window])
    return (values[-patience:], level) if level > 0 else ([], 0.0)


def _no_eos(history: History, config: ControllerConfig) -> Found:
    signal = config.no_eos
    numbers = _above_trend(
        _values(history, NO_EOS), signal.patience, signal.window, signal.rise, signal.num_deviations
    )
    return numbers and (
        f"{numbers['value']:.1%} of the rollouts do not end, against {numbers['median']:.1%} in the "
        f"{signal.window} steps before; more than {numbers['limit']:.1%} for {signal.patience} steps.",
        numbers,
    )


def _response_length(history: History, config: ControllerConfig) -> Found:
    signal = config.response_length
    numbers = _above_log_trend(
        _values(history, LENGTH), signal.patience, signal.window, signal.ratio, signal.num_deviations
    )
    return numbers and (
        f"responses of {numbers['value']:.4g} tokens are {numbers['value'] / numbers['median']:.2f} times as long as "
        f"in the {signal.window} steps before, {numbers['median']:.4g}; more than {numbers['limit']:.4g} for "
        f"{signal.patience} steps.",
        numbers,
    )


def _kl_spike(history: History, config: ControllerConfig) -> Found:
    signal = config.kl_spike
    numbers = _above_log_trend(
        _values(history, KL), signal.patience, signal.window, signal.ratio, signal.num_deviations
    )
    return numbers and (
        f"KL to the reference {numbers['value']:.3g} nats a token is {numbers['value'] / numbers['median']:.2f} times "
        f"that of the {signal.window} steps before, {numbers['median']:.3g}; more than {numbers['limit']:.3g} for "
        f"{signal.patience} steps.",
        numbers,
    )


def _above_log_trend(
    values: Sequence[float], patience: int, window: int, ratio: float, num_deviations: float
) -> dict[str, float] | None:
    """_above_trend of the logarithms, in the numbers' own unit. What is not positive (KL right after a reset) has no
    logarithm and is left out."""
    if not values or values[-1] <= 0:
        return None
    logs = [log(value) for value in values if value > 0]
    numbers = _above_trend(logs, patience, window, log(ratio), num_deviations)
    return numbers and {name: exp(value) for name, value in numbers.items()}


def _above_trend(
    values: Sequence[float], patience: int, window: int, rise: float, num_deviations: float
) -> dict[str, float] | None:
    """Whether each of the last `patience` values exceeds median + max(rise, num_deviations * 1.4826 MAD) of the
    `window` values before them. MAD: the median distance from the median, which outliers in the window do not move.

    A steady trend is its own spread: over any window in which the values rise along a line, the newest lies half a
    window above the median and MAD is a quarter of it, so from num_deviations = 2 on no steady growth fires.
    """
    if len(values) < window + patience:
        return None
    before, recent = values[-window - patience : -patience], values[-patience:]
    middle = median(before)
    deviation = MAD_TO_DEVIATION * median(abs(value - middle) for value in before)
    limit = middle + max(rise, num_deviations * deviation)
    if min(recent) <= limit:
        return None
    return {"value": recent[-1], "median": middle, "limit": limit}


def _validation_drop(history: History, config: ControllerConfig) -> Found:
    """The first domain, by name, that has lost too much; the mean over all domains counts as one more."""
    signal = config.validation_drop
    rewards = [key for key in sorted(history.series) if key.startswith(VALIDATION) and key.endswith(REWARD)]
    for key in rewards:
        if not _is_new(history, key) or len(history.series[key]) <= signal.patience:
            continue
        measured = _measured(history, key)
        before, recent = measured[: -signal.patience], measured[-signal.patience :]
        best = max(before, key=lambda point: point.reward)
        limits = [
            best.reward - max(signal.margin * best.reward, signal.num_standard_errors * _error(best, point))
            for point in recent
        ]
        if all(point.reward < limit for point, limit in zip(recent, limits, strict=True)):
            now = recent[-1]
            return (
                f"{key} {now.reward:.3f} is {best.reward - now.reward:.3f} below its best, {best.reward:.3f} at step "
                f"{best.step}; below {limits[-1]:.3f} for {signal.patience} validations.",
                {
                    "value": now.reward,
                    "best": best.reward,
                    "best_step": float(best.step),
                    "limit": limits[-1],
                    "standard_error": _error(best, now),
                },
            )
    return None


def _validation_plateau(history: History, config: ControllerConfig) -> Found:
    signal, key = config.validation_plateau, "validation/reward"
    if not _is_new(history, key):
        return None
    (best_step, best), *later = history.series[key]
    num_since = 0
    for step, reward in later:
        num_since += 1
        if reward > best + signal.min_delta:
            best, best_step, num_since = reward, step, 0
    if num_since < signal.patience:
        return None
    return (
        f"{key} {history.series[key][-1][1]:.3f} has not exceeded {best:.3f} of step {best_step} by "
        f"{signal.min_delta:g} in {num_since} validations.",
        {
            "value": history.series[key][-1][1],
            "best": best,
            "best_step": float(best_step),
            "num_validations": float(num_since),
        },
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    """One validation of one domain; num_rollouts 0 when the record did not say."""

    step: int
    reward: float
    num_rollouts: float


def _measured(history: History, key: str) -> list[_Measured]:
    counts = dict(history.series.get(key.removesuffix(REWARD) + NUM_ROLLOUTS, ()))
    return [
        _Measured(step=step, reward=reward, num_rollouts=counts.get(step, 0.0))
        for step, reward in history.series[key]
    ]


def _error(one: _Measured, other: _Measured) -> float:
    """Standard error of the difference of two means, from above.

    For a score in [0, 1] with mean p the variance is at most p (1 - p), and so is the mean of p_i (1 - p_i) over
    prompts (Jensen). Prompts are the same at every validation, so their difficulty is no noise.
    """
    return sqrt(
        sum(
            max(0.0, point.reward * (1 - point.reward)) / point.num_rollouts
            for point in (one, other)
            if point.num_rollouts > 0
        )
    )


def _is_new(history: History, key: str) -> bool:
    """Whether the newest record carries this metric."""
    series = history.series.get(key, ())
    return bool(series) and series[-1][0] == history.step


def _values(history: History, key: str) -> list[float]:
    """None when the newest record does not carry it."""
    return [value for _, value in history.series[key]] if _is_new(history, key) else []


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
