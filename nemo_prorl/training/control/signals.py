"""The metrics of a stage since its last reset, and the signals that find faults in them: pure functions.

A signal is evaluated at the steps that measure its metric, and only finite numbers count. docs/resets.md has the
formulas and the reasons for the defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import exp, isfinite, log, sqrt
from statistics import median
from typing import Any, NamedTuple

from nemo_prorl.config import ControllerAction, ControllerConfig, SamplerMismatchConfig, ValidationMean
from nemo_prorl.run_folder.validation_metrics import (
    DOMAIN_MEAN,
    EARLY,
    MEASUREMENT,
    NUM_ROLLOUTS,
    PROMPT_MEAN,
    SCORE,
    VALIDATION,
)

KL = "objective/kl_to_reference"
ENTROPY = "objective/entropy"
LENGTH = "response/tokens_mean"
NO_EOS = "response/no_eos_share"
EFFECTIVE = "objective/effective_sample_share"
WRONG_TENSORS = "sampler/num_wrong_tensors"
STILL_WRONG_TENSORS = "sampler/num_still_wrong_tensors"
CANARY = "sampler/canary_abs_diff_mean"
ROLLOUTS = "sampler/logprob_abs_diff_mean"
UPDATES_BEHIND = "sampler/updates_behind"
SAMPLER_KEYS = (WRONG_TENSORS, STILL_WRONG_TENSORS, CANARY, ROLLOUTS)
"""Metrics of how far sampler and trainer differ. No reset changes that, so their values are kept across resets."""

STEP_KEYS = (KL, ENTROPY, LENGTH, NO_EOS, EFFECTIVE, *SAMPLER_KEYS)
"""Metrics of steps that signals examine; no other is kept. Those of a validation are recognised by their names."""

HELD_OUT = {ValidationMean.domains: DOMAIN_MEAN, ValidationMean.prompts: PROMPT_MEAN}
"""The mean reward of a whole validation, by controller.validation_mean."""

MAD_TO_DEVIATION = 1.4826
"""The standard deviation of a normal distribution over its median absolute deviation: 1 / Phi^-1(3/4)."""

Series = tuple[tuple[int, float], ...]
"""Pairs (step, value), in the order of steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Metrics of a stage since its last reset.

    Example: History(stage="run1", since=400, step=460, entropy_level=(0.61, 0.6),
                     peaks={"validation/domain_mean_score": (0.38, 0.42)},
                     series={"validation/math/score": ((400, 0.41), (420, 0.43)), ...})
    """

    stage: str
    since: int
    """Step of the last reset or other decision, or of the stage's start."""
    step: int
    """Step of the newest record."""
    entropy_level: tuple[float, ...] = ()
    """Entropies of the stage's first steps, kept across resets."""
    peaks: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Best value of each period between the stage's resets, by metric of HELD_OUT."""
    series: Mapping[str, Series] = field(default_factory=dict)
    """Values by metric."""
    warned: Mapping[str, int] = field(default_factory=dict)
    """Signal -> step of its last warning."""
    remixed: bool = False
    """Whether a decision has changed the stage's mix."""
    measurement: str = ""
    """Name of what the validations in `peaks` and `series` measured (record key MEASUREMENT); empty if it is not
    known."""

    def extended(self, record: Mapping[str, Any], config: ControllerConfig) -> History:
        """Returns the history with one more record. It keeps all validations that measured the same as the newest, and
        of other metrics what a signal may need."""
        step, series, level = int(record["step"]), dict(self.series), self.entropy_level
        peaks, measured = self.peaks, str(record.get(MEASUREMENT, self.measurement))
        if self.measurement and measured != self.measurement:
            peaks, series = {}, {key: points for key, points in series.items() if not _is_of_validation(key)}
        horizon = max(_num_examined(getattr(config, signal)) for signal in SIGNALS)
        for key, value in record.items():
            if not _is_number(value) or (key == ROLLOUTS and record.get(UPDATES_BEHIND)):
                continue  # rollouts that were sampled ahead differ because of the updates since
            if key in STEP_KEYS or (_is_of_validation(key) and not record.get(EARLY)):
                points = (*series.get(key, ()), (step, float(value)))
                series[key] = points[-horizon:] if key in STEP_KEYS else points
        num_level = max(config.entropy_collapse.window, config.entropy_runaway.window)
        if len(level) < num_level and _is_number(record.get(ENTROPY)):
            level = (*level, float(record[ENTROPY]))
        return replace(self, step=step, entropy_level=level, peaks=peaks, series=series, measurement=measured)

    def restarted(self, step: int) -> History:
        """Returns the history after a reset at `step`. Its `series` keep SAMPLER_KEYS and that step's validation."""
        kept = {
            key: tuple(point for point in series if point[0] == step)
            for key, series in self.series.items()
            if key.startswith(VALIDATION)
        } | self._of_the_sampler()
        peaks = dict(self.peaks)
        for key in HELD_OUT.values():
            rewards = self.series.get(key, ())
            if any(of_step > self.since for of_step, _ in rewards):  # the period had a validation of its own
                peaks[key] = (*peaks.get(key, ()), max(value for _, value in rewards))
        series = {key: series for key, series in kept.items() if series}
        return replace(self, since=step, peaks=peaks, series=series)

    def with_weights_of(self, validation: Mapping[str, Any]) -> History:
        """Returns the history after a reset to an earlier checkpoint. The checkpoint's `validation`, as in a record,
        replaces what was measured of the discarded weights."""
        series = {
            key: ((self.step, float(value)),)
            for key, value in validation.items()
            if _is_of_validation(key) and _is_number(value)
        }
        return replace(self, series=self._of_the_sampler() | series)

    def _of_the_sampler(self) -> dict[str, Series]:
        return {key: self.series[key] for key in SAMPLER_KEYS if key in self.series}

    def measured(self, key: str) -> list[float]:
        """Returns all values of a metric, oldest first; none unless the newest record has one."""
        series = self.series.get(key, ())
        return [value for _, value in series] if series and series[-1][0] == self.step else []


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """The reason why a signal fires: a sentence without its full stop, and the numbers in it."""

    reason: str
    numbers: dict[str, float]


def entropy_collapse(history: History, config: ControllerConfig) -> Signal | None:
    """Fires if entropy <= ratio * level (median of the stage's first `window` steps) at the last `patience` steps."""
    options = config.entropy_collapse
    recent, level = history.measured(ENTROPY)[-options.patience :], _level(history, options.window)
    if level is None or len(recent) < options.patience or max(recent) > options.ratio * level:
        return None
    return Signal(
        reason=f"entropy {recent[-1]:.3g} nats a token has been at most {options.ratio:g} of the stage's level, "
        f"{level:.3g}, for {options.patience} steps",
        numbers={"value": recent[-1], "level": level, "limit": options.ratio * level},
    )


def entropy_runaway(history: History, config: ControllerConfig) -> Signal | None:
    """Fires if entropy >= ratio * level (median of the stage's first `window` steps) at the last `patience` steps."""
    options = config.entropy_runaway
    recent, level = history.measured(ENTROPY)[-options.patience :], _level(history, options.window)
    if level is None or len(recent) < options.patience or min(recent) < options.ratio * level:
        return None
    return Signal(
        reason=f"entropy {recent[-1]:.3g} nats a token has been at least {options.ratio:g} times the stage's level, "
        f"{level:.3g}, for {options.patience} steps",
        numbers={"value": recent[-1], "level": level, "limit": options.ratio * level},
    )


def no_eos(history: History, config: ControllerConfig) -> Signal | None:
    """Fires if the share of training rollouts without end-of-sequence is above its trend."""
    options = config.no_eos
    values = history.measured(NO_EOS)
    numbers = above_trend(values, options.patience, options.window, options.rise, options.num_deviations)
    if numbers is None:
        return None
    return Signal(
        reason=f"{numbers['value']:.1%} of the rollouts do not end, against {numbers['median']:.1%} in the "
        f"{options.window} steps before; more than {numbers['limit']:.1%} for {options.patience} steps",
        numbers=numbers,
    )


def response_length(history: History, config: ControllerConfig) -> Signal | None:
    """Fires if the mean length of training rollouts is above its trend."""
    options = config.response_length
    values = history.measured(LENGTH)
    numbers = above_log_trend(values, options.patience, options.window, options.ratio, options.num_deviations)
    if numbers is None:
        return None
    return Signal(
        reason=f"responses of {numbers['value']:.4g} tokens are {numbers['value'] / numbers['median']:.2f} times as "
        f"long as in the {options.window} steps before, {numbers['median']:.4g}; more than {numbers['limit']:.4g} for "
        f"{options.patience} steps",
        numbers=numbers,
    )


def validation_drop(history: History, config: ControllerConfig) -> Signal | None:
    """Fires if, at each of the last `patience` validations of a domain, reward < best - max(margin * best,
    num_standard_errors * standard error of the difference), where best is the highest reward of the validations before
    those. HELD_OUT's mean counts as a domain. If several fell, names the one that lost the largest share."""
    options = config.validation_drop
    found: list[tuple[float, Signal]] = []
    for key in [*_domain_keys(history), HELD_OUT[config.validation_mean]]:
        if len(history.measured(key)) <= options.patience:
            continue
        points = validations_of(history, key)
        best = max(points[: -options.patience], key=lambda point: point.reward)
        recent = points[-options.patience :]
        noise = [options.num_standard_errors * standard_error(best, point) for point in recent]
        limits = [best.reward - max(options.margin * best.reward, error) for error in noise]
        if any(point.reward >= limit for point, limit in zip(recent, limits, strict=True)):
            continue
        now, lost = recent[-1], best.reward - recent[-1].reward
        fired = Signal(
            reason=f"{key} {now.reward:.3f} is {lost:.3f} below its best, {best.reward:.3f} at step {best.step}; "
            f"below {limits[-1]:.3f} for {options.patience} validations",
            numbers={
                "value": now.reward,
                "best": best.reward,
                "best_step": float(best.step),
                "limit": limits[-1],
                "standard_error": standard_error(best, now),
            },
        )
        found.append((lost / best.reward if best.reward > 0 else lost, fired))
    return max(found, key=lambda pair: pair[0])[1] if found else None


def kl_spike(history: History, config: ControllerConfig) -> Signal | None:
    """Fires if the KL to the reference is above its trend."""
    options = config.kl_spike
    values = history.measured(KL)
    numbers = above_log_trend(values, options.patience, options.window, options.ratio, options.num_deviations)
    if numbers is None:
        return None
    return Signal(
        reason=f"KL to the reference {numbers['value']:.3g} nats a token is "
        f"{numbers['value'] / numbers['median']:.2f} times that of the {options.window} steps before, "
        f"{numbers['median']:.3g}; more than {numbers['limit']:.3g} for {options.patience} steps",
        numbers=numbers,
    )


def validation_plateau(history: History, config: ControllerConfig) -> Signal | None:
    """Fires if none of the last `patience` validations exceeds the best before it by min_delta."""
    options, held_out = config.validation_plateau, HELD_OUT[config.validation_mean]
    if len(history.measured(held_out)) <= options.patience:
        return None
    steps, rewards = zip(*history.series[held_out], strict=True)
    best, num_since = _last_rise(rewards, options.min_delta)
    if num_since < options.patience:
        return None
    return Signal(
        reason=f"{held_out} {rewards[-1]:.3f} has not exceeded its best, {rewards[best]:.3f} at step {steps[best]}, "
        f"by {options.min_delta:g} in {num_since} validations",
        numbers={
            "value": rewards[-1],
            "best": rewards[best],
            "best_step": float(steps[best]),
            "num_validations": float(num_since),
        },
    )


def effective_sample(history: History, config: ControllerConfig) -> Signal | None:
    """Fires if the effective sample size is below `share` of the tokens at the last `patience` steps."""
    options = config.effective_sample
    recent = history.measured(EFFECTIVE)[-options.patience :]
    if len(recent) < options.patience or max(recent) >= options.share:
        return None
    return Signal(
        reason=f"the effective sample size is {recent[-1]:.1%} of the tokens, below {options.share:.0%} for "
        f"{options.patience} steps: fewer updates a step, a smaller learning rate or no sampler.ahead keep the policy "
        "nearer to the one that sampled",
        numbers={"value": recent[-1], "limit": options.share},
    )


def futile_resets(history: History, config: ControllerConfig) -> Signal | None:
    """Fires at a plateau or a drop if the periods after the stage's last `patience` resets brought no new best by the
    plateau's min_delta. A drop counts because resets to the best checkpoint could otherwise go on forever."""
    held_out = HELD_OUT[config.validation_mean]
    rewards = history.measured(held_out)
    is_plateau = validation_plateau(history, config) is not None
    is_drop_judged = config.validation_drop.action is not ControllerAction.ignore
    drop = validation_drop(history, config) if is_drop_judged else None
    if not rewards or not (is_plateau or drop):
        return None
    peaks = [*history.peaks.get(held_out, ()), max(rewards)]
    best, num_resets = _last_rise(peaks, config.validation_plateau.min_delta)
    if num_resets < config.futile_resets.patience:
        return None
    what = f"{held_out} {rewards[-1]:.3f} is on a plateau again" if is_plateau or not drop else drop.reason
    return Signal(
        reason=f"{what}, and the last {num_resets} resets have not brought {'it' if is_plateau else held_out} above "
        f"{peaks[best]:.3f} by {config.validation_plateau.min_delta:g}",
        numbers={"value": rewards[-1], "best": peaks[best], "num_resets": float(num_resets)},
    )


def sampler_mismatch(history: History, config: ControllerConfig) -> Signal | None:
    """Fires if tensors of the sampler are wrong even after a second complete refit, or if each of the last `patience`
    steps needed a second one, or had a difference of log-probabilities (of the canary, or of the step's rollouts) above
    `mismatch_limit`."""
    options = config.sampler_mismatch
    remaining = history.measured(STILL_WRONG_TENSORS)
    wrong = history.measured(WRONG_TENSORS)[-options.patience :]
    if remaining and remaining[-1]:
        return Signal(
            reason=f"{remaining[-1]:g} tensors of the sampler are not the policy's, even after a second complete refit",
            numbers={"value": remaining[-1]},
        )
    if len(wrong) == options.patience and min(wrong) > 0:
        return Signal(
            reason=f"{wrong[-1]:g} tensors of the sampler were not the policy's before a second complete refit "
            + _at_the_last_steps(options.patience),
            numbers={"value": wrong[-1]},
        )
    for key in (CANARY, ROLLOUTS):
        values = history.measured(key)
        recent = values[-options.patience :]
        limit = mismatch_limit(values[: -options.patience], options)
        if len(recent) == options.patience and min(recent) > limit:
            return Signal(
                reason=f"{key} is {recent[-1]:.3g}: sampler and trainer disagree about the same tokens by more than "
                f"{limit:.3g} nats {_at_the_last_steps(options.patience)}",
                numbers={"value": recent[-1], "limit": limit},
            )
    return None


def _at_the_last_steps(count: int) -> str:
    return "at the last step" if count == 1 else f"at each of the last {count} steps"


SIGNALS: Mapping[str, Callable[[History, ControllerConfig], Signal | None]] = {
    "sampler_mismatch": sampler_mismatch,
    "entropy_collapse": entropy_collapse,
    "entropy_runaway": entropy_runaway,
    "no_eos": no_eos,
    "response_length": response_length,
    "futile_resets": futile_resets,
    "validation_drop": validation_drop,
    "kl_spike": kl_spike,
    "validation_plateau": validation_plateau,
    "effective_sample": effective_sample,
}
"""Section of ControllerConfig -> signal. If several call for the same action, the decision names the first, so the more
specific signals come first."""
FAULTS = frozenset({"sampler_mismatch"})
"""Signals that count in every mode and without a cool-down, because the run does not do what it should."""


def above_log_trend(
    values: Sequence[float], patience: int, window: int, ratio: float, num_deviations: float
) -> dict[str, float] | None:
    """Applies `above_trend` to the logarithms, and returns numbers in the values' own unit. Values that are not
    positive (KL right after a reset) are left out. ratio: the least rise, as a factor."""
    if not values or values[-1] <= 0:
        return None
    logs = [log(value) for value in values if value > 0]
    numbers = above_trend(logs, patience, window, log(ratio), num_deviations)
    return None if numbers is None else {name: exp(value) for name, value in numbers.items()}


def above_trend(
    values: Sequence[float], patience: int, window: int, rise: float, num_deviations: float
) -> dict[str, float] | None:
    """Returns {value, median, limit} if each of the last `patience` values exceeds the limit, else None. The limit is
    median + max(rise, num_deviations * 1.4826 MAD) of the `window` values before them; MAD is the median distance from
    the median.

    Steady growth stays below it if num_deviations is at least 2: after values on a line the next is half a window's
    growth above the median, and the MAD is a quarter of that growth.
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


def mismatch_limit(before: Sequence[float], options: SamplerMismatchConfig) -> float:
    """Returns the mean |log-probability of the sampler - of the trainer|, in nats, above which a step is suspicious.

    It is exp(median + max(log ratio, num_deviations * 1.4826 MAD)) of the logarithms of the last `window` values of
    `before`, but at least min_nats and at most max_nats. With fewer values than `window` it is max_nats.
    """
    recent = before[-options.window :]
    if len(recent) < options.window:
        return options.max_nats
    logs = [log(max(value, options.min_nats / options.ratio)) for value in recent]
    middle = median(logs)
    deviation = MAD_TO_DEVIATION * median(abs(value - middle) for value in logs)
    return min(options.max_nats, exp(middle + max(log(options.ratio), options.num_deviations * deviation)))


def _num_examined(options: Any) -> int:
    """Returns how many of the newest values a signal with these options may examine, or more."""
    return int(options.patience) + int(getattr(options, "window", 0))


def _last_rise(values: Sequence[float], min_delta: float) -> tuple[int, int]:
    """Returns the index of the last rise, and how many values follow it. A rise is a value that exceeds the rise before
    it by more than min_delta. The first value counts as a rise, and smaller increases add up."""
    last = 0
    for index, value in enumerate(values):
        if value > values[last] + min_delta:
            last = index
    return last, len(values) - 1 - last


def _level(history: History, window: int) -> float | None:
    """Returns the entropy at the start of the stage; None if it is not known yet, or is 0."""
    if len(history.entropy_level) < window:
        return None
    level = median(history.entropy_level[:window])
    return level if level > 0 else None


class Validation(NamedTuple):
    """Mean reward of a domain, or of all of them. `variance` is an upper bound of that mean's variance, or 0 if the
    number of rollouts is not recorded."""

    step: int
    reward: float
    variance: float


def validations_of(history: History, key: str) -> list[Validation]:
    """Returns the validations of a mean. The variance of the mean over D domains, which are independent, is the sum of
    their variances divided by D squared."""
    domains = _domain_keys(history) if key == DOMAIN_MEAN else [key]
    variances = [_variances(history, domain) for domain in domains]
    sums = {step: sum(of_step.get(step, 0.0) for of_step in variances) for step, _ in history.series[key]}
    return [
        Validation(step, reward, sums[step] / max(1, len(domains)) ** 2)
        for step, reward in history.series[key]
    ]


def _variances(history: History, key: str) -> dict[int, float]:
    """Returns an upper bound of the variance of a mean reward over rollouts, by step.

    A score in [0, 1] with mean p has a variance of at most p (1 - p), and the mean of p_i (1 - p_i) over prompts is at
    most that of their mean (Jensen). All validations have the same prompts, so their difficulty adds no noise.
    """
    counts = dict(history.series.get(key.removesuffix(SCORE) + NUM_ROLLOUTS, ()))
    return {
        step: max(0.0, reward * (1 - reward)) / counts[step]
        for step, reward in history.series[key]
        if counts.get(step, 0) > 0
    }


def standard_error(one: Validation, other: Validation) -> float:
    """Returns an upper bound of the standard error of the difference between two means."""
    return sqrt(one.variance + other.variance)


def _domain_keys(history: History) -> list[str]:
    """Returns the names of the rewards of single domains."""
    keys = (key for key in history.series if key.startswith(VALIDATION) and key.endswith(SCORE))
    return sorted(key for key in keys if key != PROMPT_MEAN)


def _is_of_validation(key: str) -> bool:
    return key == DOMAIN_MEAN or (key.startswith(VALIDATION) and key.endswith((SCORE, NUM_ROLLOUTS)))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
