"""Whether numbers leave what came before them, by medians, which an odd step does not move. Pure functions."""

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
    """above_trend of the logarithms, in the values' own unit. What is not positive (KL right after a reset) has no
    logarithm and is left out."""
    if not values or values[-1] <= 0:
        return None
    logs = [log(value) for value in values if value > 0]
    numbers = above_trend(logs, patience, window, log(ratio), num_deviations)
    return None if numbers is None else {name: exp(value) for name, value in numbers.items()}


def above_trend(
    values: Sequence[float], patience: int, window: int, rise: float, num_deviations: float
) -> dict[str, float] | None:
    """Whether each of the last `patience` values exceeds median + max(rise, num_deviations * 1.4826 MAD) of the
    `window` values before them. MAD: the median distance from the median, which outliers in the window do not move.

    A steady trend is its own spread: when values grow along a line, the next one lies half a window above the median
    and MAD is a quarter of a window, so that steady growth does not fire from num_deviations = 2 on.
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
    """Up to which mean |log-probability of the sampler - of the trainer| of a step's tokens, in nats, they agree.

    exp(median + max(log ratio, num_deviations * 1.4826 MAD)) of the logarithms of the last `window` values of `before`,
    but at most max_nats, which is also the limit until there are so many values, and at least min_nats.
    """
    recent = before[-signal.window :]
    if len(recent) < signal.window:
        return signal.max_nats
    logs = [log(max(value, signal.min_nats / signal.ratio)) for value in recent]
    middle = median(logs)
    deviation = MAD_TO_DEVIATION * median(abs(value - middle) for value in logs)
    return min(signal.max_nats, exp(middle + max(log(signal.ratio), signal.num_deviations * deviation)))
