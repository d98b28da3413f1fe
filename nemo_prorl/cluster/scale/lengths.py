"""A model of response lengths: a log-normal distribution, cut off at the longest response.

The papers show response lengths only as curves, so the distribution is our choice: a log-normal, which is usual for
lengths of texts, with rollouts of the same prompt correlated.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log, sqrt
from statistics import NormalDist

import numpy as np

from nemo_prorl.types import IntArray

SIGMA = 0.8
"""Standard deviation of the log length (our choice: with a mean of half the longest response, 14 % are cut off)."""
SIBLING_CORRELATION = 0.5
"""Share of the log length's variance that the prompt explains (our choice: hard prompts have long answers, but rollouts
of one prompt differ)."""

_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Tokens of a response: min(X, limit), log X normal with mean `mu` and standard deviation SIGMA.

    Example: Lengths.with_mean(3536, limit=7072)
    """

    mu: float
    limit: int

    @classmethod
    def with_mean(cls, mean: float, *, limit: int) -> Lengths:
        """Returns the distribution whose mean is `mean`, in (0, limit), after the cut."""
        low, high = -10.0, log(limit) + 20 * SIGMA
        for _ in range(100):
            middle = (low + high) / 2
            low, high = (middle, high) if _cut_moment(1, middle, limit) < mean else (low, middle)
        return cls(mu=low, limit=limit)

    @property
    def mean(self) -> float:
        return _cut_moment(1, self.mu, self.limit)

    @property
    def mean_square(self) -> float:
        """Mean square of the cut length, with which attention's arithmetic grows."""
        return _cut_moment(2, self.mu, self.limit)

    def draw(self, num_prompts: int, num_rollouts: int, seed: int) -> IntArray:
        """Draws [num_prompts, num_rollouts] lengths in whole tokens, at least 1."""
        rng = np.random.default_rng(seed)
        of_prompt = rng.standard_normal((num_prompts, 1))
        of_rollout = rng.standard_normal((num_prompts, num_rollouts))
        z = sqrt(SIBLING_CORRELATION) * of_prompt + sqrt(1 - SIBLING_CORRELATION) * of_rollout
        lengths = np.exp(self.mu + SIGMA * z)
        return np.clip(np.rint(lengths), 1, self.limit).astype(np.int64)


def _cut_moment(k: int, mu: float, limit: float) -> float:
    """Returns E[min(X, limit)^k], the limited moment of the log-normal: exp(k mu + k^2 SIGMA^2 / 2) Phi(a - k SIGMA)
    + limit^k (1 - Phi(a)) with a = (log limit - mu) / SIGMA (Klugman, Panjer and Willmot, Loss Models, appendix A)."""
    a = (log(limit) - mu) / SIGMA
    return exp(k * mu + (k * SIGMA) ** 2 / 2) * _NORMAL.cdf(a - k * SIGMA) + limit**k * (1 - _NORMAL.cdf(a))
