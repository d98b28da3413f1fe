"""Functions that say what a run has gained so far and what drifts, from its numbers, for the checks in checks.py.

tests/training/control/test_gains.py has the false alarms of these thresholds on simulated runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import exp, log, sqrt
from statistics import fmean, median
from typing import NamedTuple

from nemo_prorl.training.control.signals import MAD_TO_DEVIATION

NUM_SINCE = 3
"""Least number of validations, not counting early ones, without a new best until the best is long past."""
PAST_SHARE = 0.5
"""Least share of the steps between the first and the newest validation that have passed since the best."""
FALL_ERRORS = 3.0
"""Least number of standard errors by which the slope of pass@k is below 0; the error is an upper bound."""
GROWTH_ERRORS = 4.0
"""Least number of standard errors of the difference between two medians that counts as growth; it is an estimate."""
MIN_VALIDATIONS = 4
"""Least number of validations for a slope."""
BLOCK = 10
"""Least number of steps in each quarter of a stretch that has grown steadily."""
LONGEST = 200
"""Largest number of steps of such a stretch: slower growth may be that of the task."""
GROWTH = 1.5
"""Least factor of the last quarter's median over the first one's."""
JUMP = 0.7
"""Largest share of the growth from one quarter to the next: more is a jump."""
MEDIAN_ERROR = 1.2533
"""Standard error of the median of many normal values over that of their mean: sqrt(pi / 2)."""


class HeldOut(NamedTuple):
    """Some results of one validation."""

    step: int
    mean: float
    """The mean reward that the reset controller uses."""
    variance: float
    """An upper bound of that mean's variance; 0 if it is not known."""
    pass_at_k: float = 0.0
    k: int = 1
    num_prompts: float = 0.0
    is_early: bool = False


def best_is_recent(validations: Sequence[HeldOut]) -> tuple[bool, str]:
    """Returns whether the best validation (of equal ones the last) is recent, and a sentence about it."""
    first, last = validations[0], validations[-1]
    best = max(validations, key=lambda one: (one.mean, one.step))
    since = {one.step for one in validations if one.step > best.step and not one.is_early}
    share = (last.step - best.step) / max(1, last.step - first.step)
    text = f"The best held-out reward, {best.mean:.3f}, was measured at step {best.step:,}"
    if len(since) < NUM_SINCE or share < PAST_SHARE:
        return True, f"{text}."
    error = sqrt(best.variance + last.variance)
    noise = f", {(best.mean - last.mean) / error:.1f} standard errors less" if error else ""
    return False, (
        f"{text} of {last.step:,}. None of the {len(since)} validations since was better; the last has {last.mean:.3f}"
        f"{noise}. Steps since then have gained nothing that shows: go back (controller.reset_to=best), change "
        "something, or end the stage."
    )


def keeps_solving(validations: Sequence[HeldOut], entropy_change: float | None) -> tuple[bool, str] | None:
    """Returns whether pass@k has not fallen, over the whole run or its newer half, and a sentence about it; None if too
    few validations measured it. entropy_change: share by which the entropy has changed since the run began."""
    k = validations[-1].k
    points = [(one.step, one.pass_at_k) for one in validations if one.k == k]
    num_prompts = validations[-1].num_prompts
    if k == 1 or not num_prompts or len(points) < MIN_VALIDATIONS:
        return None
    windows = [points, points[len(points) // 2 :]]
    falls = [window for window in windows if slope_in_errors(window, num_prompts) <= -FALL_ERRORS]
    (then, before), (_, now) = (falls or windows)[0][0], points[-1]
    if not falls:
        return True, f"pass@{k} is {now:.3f}, and was {before:.3f} at step {then:,}."
    lost = -(entropy_change or 0.0)
    narrower = f", while the entropy fell by {lost:.0%}" if lost > 0.5 else ""
    return False, (
        f"pass@{k} has fallen from {before:.3f} at step {then:,} to {now:.3f}{narrower}: the policy solves fewer "
        f"different problems than it could. More exploration (temperature, clip_high, entropy) or a reset may help."
    )


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


def steady_growth(values: Sequence[float]) -> tuple[int, float, float] | None:
    """Returns (number of newest values, median of their first quarter, of their last) of the longest stretch that has
    grown steadily; None if none has. The stretches are the newest LONGEST values, half as many, and so on.

    A stretch has grown steadily if the medians of its quarters rise one by one, none by more than the share JUMP of the
    total, and in total by the factor GROWTH and by GROWTH_ERRORS standard errors of the difference between two medians,
    all in logarithms.
    """
    length = min(len(values), LONGEST)
    while length >= 4 * BLOCK:
        size = length // 4
        newest = [log(max(value, 1e-12)) for value in values[-4 * size :]]
        quarters = [newest[start : start + size] for start in range(0, 4 * size, size)]
        middles = [median(quarter) for quarter in quarters]
        distances = [
            abs(value - m) for quarter, m in zip(quarters, middles, strict=True) for value in quarter
        ]
        error = MEDIAN_ERROR * MAD_TO_DEVIATION * median(distances) * sqrt(2 / size)
        rises, total = [after - before for before, after in pairwise(middles)], middles[-1] - middles[0]
        is_steady = min(rises) > 0 and max(rises) <= JUMP * total
        if is_steady and total >= max(log(GROWTH), GROWTH_ERRORS * error):
            return 4 * size, exp(middles[0]), exp(middles[-1])
        length //= 2
    return None
