"""Tests of whether the newest values leave their trend, by medians, which one odd step does not move."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log
from statistics import median

from nemo_prorl.config import SamplerMismatchConfig

MAD_TO_DEVIATION = 1.4826
"""The standard deviation of a normal distribution over its median absolute deviation: 1 / Phi^-1(3/4)."""


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


def mismatch_limit(before: Sequence[float], signal: SamplerMismatchConfig) -> float:
    """Returns the mean |log-probability of the sampler - of the trainer|, in nats, above which a step is suspicious.

    It is exp(median + max(log ratio, num_deviations * 1.4826 MAD)) of the logarithms of the last `window` values of
    `before`, but at least min_nats and at most max_nats. With fewer values than `window` it is max_nats.
    """
    recent = before[-signal.window :]
    if len(recent) < signal.window:
        return signal.max_nats
    logs = [log(max(value, signal.min_nats / signal.ratio)) for value in recent]
    middle = median(logs)
    deviation = MAD_TO_DEVIATION * median(abs(value - middle) for value in logs)
    return min(signal.max_nats, exp(middle + max(log(signal.ratio), signal.num_deviations * deviation)))
