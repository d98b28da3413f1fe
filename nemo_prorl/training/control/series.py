"""Series of metrics, and what is computed of them: medians, trends, slopes and the noise of validations.

Pure functions without sentences; watches.py says what their numbers mean. docs/resets.md has the formulas and the
reasons for the defaults, tests/training/control/test_watches.py the false alarms on simulated runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from math import comb, exp, isfinite, log, sqrt
from statistics import fmean, median
from typing import Any, NamedTuple

from nemo_prorl.config import ControllerConfig, WatchLimitsConfig
from nemo_prorl.run_folder.validation_metrics import (
    DOMAIN_MEAN,
    EARLY,
    MEASUREMENT,
    NUM_ROLLOUTS,
    PROMPT_MEAN,
    SCORE,
    STD,
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
"""Metrics of steps that the controller examines; no other is kept. Those of a validation are recognised by their
names."""

MAD_TO_DEVIATION = 1.4826
"""The standard deviation of a normal distribution over its median absolute deviation: 1 / Phi^-1(3/4)."""
MIN_VALIDATIONS = 4
"""Least number of validations for a slope."""

Series = tuple[tuple[int, float], ...]
"""Pairs (step, value), in the order of steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Metrics of a stage since its last reset; only finite numbers count.

    Example: History(stage="run1", since=400, step=460, entropy_level=(0.61, 0.6),
                     peaks=(0.38, 0.42),
                     series={"validation/math/score": ((400, 0.41), (420, 0.43)), ...})
    """

    stage: str
    since: int
    """Step of the last reset or other decision, or of the stage's start."""
    step: int
    """Step of the newest record."""
    entropy_level: tuple[float, ...] = ()
    """Entropies of the stage's first steps, kept across resets."""
    peaks: tuple[float, ...] = ()
    """Best mean over domains in each period between the stage's resets."""
    series: Mapping[str, Series] = field(default_factory=dict)
    """Values by metric."""
    warned: Mapping[str, int] = field(default_factory=dict)
    """Watch -> step of its last warning."""
    measurement: str = ""
    """Name of what the validations in `peaks` and `series` measured (record key MEASUREMENT); empty if it is not
    known."""

    @classmethod
    def of_json(cls, saved: Mapping[str, Any]) -> History:
        """Returns the history that `asdict` has written as JSON, which has lists for tuples."""
        tuples = {
            "entropy_level": tuple(saved["entropy_level"]),
            "peaks": tuple(saved["peaks"]),
            "series": {key: tuple((s, v) for s, v in points) for key, points in saved["series"].items()},
        }
        return cls(**{**saved, **tuples})

    def extended(self, record: Mapping[str, Any], config: ControllerConfig) -> History:
        """Returns the history with one more record. It keeps all validations that measured the same as the newest, and
        of other metrics what a watch may need."""
        step, series, level = int(record["step"]), dict(self.series), self.entropy_level
        peaks, measured = self.peaks, str(record.get(MEASUREMENT, self.measurement))
        if self.measurement and measured != self.measurement:
            peaks, series = (), {key: points for key, points in series.items() if not _is_of_validation(key)}
        for key, value in record.items():
            if not _is_number(value) or (key == ROLLOUTS and record.get(UPDATES_BEHIND)):
                continue  # rollouts that were sampled ahead differ because of the updates since
            if key in STEP_KEYS or (_is_of_validation(key) and not record.get(EARLY)):
                points = (*series.get(key, ()), (step, float(value)))
                series[key] = points[-_num_kept(config) :] if key in STEP_KEYS else points
        if len(level) < config.limits.level_steps and _is_number(record.get(ENTROPY)):
            level = (*level, float(record[ENTROPY]))
        return replace(self, step=step, entropy_level=level, peaks=peaks, series=series, measurement=measured)

    def restarted(self, step: int) -> History:
        """Returns the history after a reset at `step`. Its `series` keep SAMPLER_KEYS and that step's validation."""
        kept = {
            key: tuple(point for point in series if point[0] == step)
            for key, series in self.series.items()
            if key.startswith(VALIDATION)
        } | self._of_the_sampler()
        peaks, rewards = self.peaks, self.series.get(DOMAIN_MEAN, ())
        if any(of_step > self.since for of_step, _ in rewards):  # the period had a validation of its own
            peaks = (*peaks, max(value for _, value in rewards))
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

    def has_moved(self) -> bool:
        """Returns whether the policy has left its reference in the newest steps since the last reset (`resting_kl`).
        True where KL or response length is not measured."""
        lengths = dict(self.series.get(LENGTH, ()))
        moved = [kl * lengths[step] for step, kl in self.series.get(KL, ()) if step in lengths]
        return not moved or max(moved) > resting_kl(self.step - self.since)

    def domain_keys(self) -> list[str]:
        """Returns the names of the rewards of single domains."""
        keys = (key for key in self.series if key.startswith(VALIDATION) and key.endswith(SCORE))
        return sorted(key for key in keys if key != PROMPT_MEAN)

    def validations(self, key: str) -> list[Validation]:
        """Returns the validations of a mean. The variance of the mean over D domains, which are independent, is the sum
        of their variances divided by D squared; its spread is that of all rollouts."""
        domains = self.domain_keys() if key == DOMAIN_MEAN else [key]
        variances = [self._variances(domain) for domain in domains]
        spreads = self._spreads(key)
        return [
            Validation(
                step,
                reward,
                sum(one.get(step, 0.0) for one in variances) / max(1, len(domains)) ** 2,
                spreads.get(step, 0.0),
            )
            for step, reward in self.series.get(key, ())
        ]

    def _variances(self, key: str) -> dict[int, float]:
        """Returns an upper bound of the variance of a mean reward over rollouts, by step: all validations have the same
        prompts, so that of their difficulty, which the spread contains, adds no noise."""
        counts = dict(self.series.get(key.removesuffix(SCORE) + NUM_ROLLOUTS, ()))
        return {
            step: spread * spread / counts[step]
            for step, spread in self._spreads(key).items()
            if counts.get(step, 0) > 0
        }

    def _spreads(self, key: str) -> dict[int, float]:
        """Returns the standard deviation of single rollouts, by step; that of scores of 0 and 1 if none is recorded."""
        binary = {step: sqrt(max(0.0, mean * (1 - mean))) for step, mean in self.series.get(key, ())}
        return binary | dict(self.series.get((PROMPT_MEAN if key == DOMAIN_MEAN else key) + STD, ()))


class Validation(NamedTuple):
    """Mean reward of a domain, or of all of them. `variance` is an upper bound of that mean's variance, or 0 if the
    number of rollouts is not recorded; `spread` is the standard deviation of single rollouts."""

    step: int
    reward: float
    variance: float
    spread: float


def resting_kl(num_steps: int) -> float:
    """Returns the KL to the reference, in nats a response, up to which a policy has hardly moved in so many steps: 1e-3
    a step, as long as mean rewards cannot differ by much. By Pinsker's inequality that is the root of half of it, of
    the rewards' range: 0.07 after 10 steps, and 0.3 after 200, where it no longer grows."""
    return 1e-3 * min(num_steps, 200)


def standard_error(one: Validation, other: Validation) -> float:
    """Returns an upper bound of the standard error of the difference between two means."""
    return sqrt(one.variance + other.variance)


def _num_kept(config: ControllerConfig) -> int:
    """Returns how many of the newest values a watch of steps may examine, or more."""
    patience = max(getattr(config.patience, option.name) for option in fields(config.patience))
    return patience + max(config.limits.window, config.limits.level_steps)


def _is_of_validation(key: str) -> bool:
    return key == DOMAIN_MEAN or (
        key.startswith(VALIDATION) and key.endswith((SCORE, SCORE + STD, NUM_ROLLOUTS))
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def beyond(values: Sequence[float], patience: int, limit: float, *, above: bool) -> bool:
    """Returns whether each of the last `patience` values has reached the limit, from above or from below."""
    recent = values[-patience:]
    return len(recent) == patience and (min(recent) >= limit if above else max(recent) <= limit)


def above_log_trend(
    values: Sequence[float], patience: int, ratio: float, limits: WatchLimitsConfig
) -> dict[str, float] | None:
    """Applies `above_trend` to the logarithms, and returns numbers in the values' own unit. Values that are not
    positive (KL right after a reset) are left out. ratio: the least rise, as a factor."""
    if not values or values[-1] <= 0:
        return None
    logs = [log(value) for value in values if value > 0]
    numbers = above_trend(logs, patience, log(ratio), limits)
    return None if numbers is None else {name: exp(value) for name, value in numbers.items()}


def above_trend(
    values: Sequence[float], patience: int, rise: float, limits: WatchLimitsConfig
) -> dict[str, float] | None:
    """Returns {value, median, limit} if each of the last `patience` values exceeds the limit, else None. The limit is
    median + max(rise, num_deviations * 1.4826 MAD) of the `window` values before them; MAD is the median distance from
    the median.

    Steady growth stays below it if num_deviations is at least 2: after values on a line the next is half a window's
    growth above the median, and the MAD is a quarter of that growth.
    """
    if len(values) < limits.window + patience:
        return None
    before, recent = values[-limits.window - patience : -patience], values[-patience:]
    middle = median(before)
    limit = middle + max(rise, limits.num_deviations * _deviation(before))
    if min(recent) <= limit:
        return None
    return {"value": recent[-1], "median": middle, "limit": limit}


def mismatch_limit(before: Sequence[float], limits: WatchLimitsConfig) -> float:
    """Returns the mean |log-probability of the sampler - of the trainer|, in nats, above which a step is suspicious.

    It is exp(median + max(log of limits.sampler_mismatch, num_deviations * 1.4826 MAD)) of the logarithms of the last
    level_steps values of `before`, but at least min_nats and at most max_nats. With fewer values it is max_nats.
    """
    recent, ratio = before[-limits.level_steps :], limits.sampler_mismatch
    if len(recent) < limits.level_steps:
        return limits.max_nats
    logs = [log(max(value, limits.min_nats / ratio)) for value in recent]
    return min(limits.max_nats, exp(median(logs) + max(log(ratio), limits.num_deviations * _deviation(logs))))


def _deviation(values: Sequence[float]) -> float:
    """Returns the robust standard deviation of normal values."""
    middle = median(values)
    return MAD_TO_DEVIATION * median(abs(value - middle) for value in values)


def last_rise(values: Sequence[float], min_delta: float) -> tuple[int, int]:
    """Returns the index of the last rise, and how many values follow it. A rise is a value that exceeds the rise before
    it by more than min_delta. The first value counts as a rise, and smaller increases add up."""
    last = 0
    for index, value in enumerate(values):
        if value > values[last] + min_delta:
            last = index
    return last, len(values) - 1 - last


def slope_in_errors(points: Sequence[tuple[int, float]], num_prompts: float) -> float:
    """Returns the slope of the least-squares line through (step, share of the prompts), in its standard errors; 0 for
    fewer than MIN_VALIDATIONS points.

    A share p of N prompts has a variance of at most p (1 - p) / N. The prompts are the same each time, so their
    difficulty adds none.
    """
    if len(points) < MIN_VALIDATIONS:
        return 0.0
    middle, mean = fmean(step for step, _ in points), fmean(value for _, value in points)
    spread = sum((step - middle) ** 2 for step, _ in points)
    variance = max(mean * (1 - mean), 1e-12) / num_prompts
    if not spread:
        return 0.0
    return sum((step - middle) * (value - mean) for step, value in points) / sqrt(spread * variance)


def chance_of_loss(lost: int, gained: int) -> float:
    """Returns the probability that at least `lost` of the prompts whose result differs between two validations got
    worse, if each of them got worse or better by chance: the one-sided sign test (Dixon and Mood, 1946)."""
    differing = lost + gained
    return sum(comb(differing, worse) for worse in range(lost, differing + 1)) / 2**differing
