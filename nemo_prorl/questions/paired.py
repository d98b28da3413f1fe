"""How much better one arm is than another, with a 95 % interval. Pure functions of rewards by seed and prompt.

With several seeds the interval is Student's, over seeds, of the difference of the means over prompts: it contains the
luck of training. With a single seed it is the bootstrap's over prompts, which does not.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass

from nemo_prorl.algorithm.pass_at_k import bootstrap_interval

Rewards = Mapping[int, Mapping[str, float]]
"""Seed -> uid -> mean reward of a held-out prompt."""
LEVEL = 0.95
NUM_RESAMPLES = 10_000
MOST_SEEDS = 1000
"""More seeds than these are not counted: nobody trains them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """The difference of an arm to another, with its interval."""

    value: float
    low: float
    high: float
    num_seeds: int
    num_prompts: int
    seeds_needed: int | None
    """With about as many seeds, the interval would leave out 0 if the difference stayed as it is; MOST_SEEDS + 1 stands
    for more than MOST_SEEDS. None: the interval leaves out 0, or there is only one seed."""

    @property
    def is_certain(self) -> bool:
        """Returns whether the interval leaves out 0."""
        return self.low > 0 or self.high < 0


def gain(ours: Rewards, base: Rewards) -> Gain:
    """Returns how much larger the mean reward of `ours` is, over the seeds and the prompts that both have. Raises
    ValueError if they have none in common."""
    seeds = sorted(ours.keys() & base.keys())
    prompts = (
        sorted(set.intersection(*({*of[seed]} for of in (ours, base) for seed in seeds))) if seeds else []
    )
    if not prompts:
        raise ValueError("the arms have no seed or no prompt in common")
    differences = [[ours[seed][uid] - base[seed][uid] for uid in prompts] for seed in seeds]
    means = [statistics.fmean(of_seed) for of_seed in differences]
    value, needed = statistics.fmean(means), None
    if len(seeds) == 1:
        low, high = bootstrap_interval(differences[0], num_resamples=NUM_RESAMPLES, seed=0)
    else:
        deviation = statistics.stdev(means)
        half = half_width(deviation, len(seeds))
        low, high = value - half, value + half
        if low <= 0 <= high:
            needed = seeds_needed(value, deviation)
    return Gain(
        value=value,
        low=low,
        high=high,
        num_seeds=len(seeds),
        num_prompts=len(prompts),
        seeds_needed=needed,
    )


def half_width(deviation: float, num_seeds: int) -> float:
    """Returns half of Student's interval of a mean over seeds with this sample standard deviation."""
    return t_quantile(num_seeds - 1) * deviation / math.sqrt(num_seeds)


def seeds_needed(value: float, deviation: float) -> int:
    """Returns the fewest seeds whose interval would leave out 0 with this mean and standard deviation; MOST_SEEDS + 1
    if MOST_SEEDS would not do."""
    numbers = range(2, MOST_SEEDS + 1)  # the more seeds, the narrower
    return 2 + bisect_left(numbers, True, key=lambda n: half_width(deviation, n) < abs(value))


def t_quantile(freedom: int) -> float:
    """Returns the t with P(|T| <= t) = 0.95 for Student's distribution with 1 or more degrees of freedom."""
    if freedom <= len(_QUANTILES):
        return _QUANTILES[freedom - 1]
    # Fisher's expansion about the normal distribution (Abramowitz and Stegun, 26.7.5).
    z = statistics.NormalDist().inv_cdf(0.5 + LEVEL / 2)
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


_QUANTILES = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""Two-sided 95 % quantiles of Student's distribution, with 1 to 30 degrees of freedom, as tables print them."""


def mean_reward(rewards: Rewards) -> float:
    """Returns the mean over seeds of the mean over prompts."""
    return statistics.fmean(statistics.fmean(of_seed.values()) for of_seed in rewards.values())
