"""Forecasts a learning curve by the sigmoid of ScaleRL (arXiv 2510.13786 eq. 1), with steps in place of compute:

    R(x) = R0 + (A - R0) / (1 + (M / x)^B), and every value is R(x) + noise of standard deviation s

The posterior is computed on a grid of M, B and s. Given these, R0 and A enter linearly, so that with normal priors they
are integrated out exactly. tests/report/test_forecast.py has how well it did on recorded runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

WINDOW = 10
"""Steps over which a forecast is a mean: single steps are noise."""
LEAST_VALUES = 12
"""Fewer values say nothing about a curve of four parameters."""
SURPRISE = 0.99
"""If the newest WINDOW values are outside the interval that holds this share, what was learned before does not go
on."""
NUM_M, NUM_B, NUM_S = 40, 16, 16
B_RANGE, S_RANGE = (0.3, 4.0), (0.01, 0.2)
M_FACTOR = 12.0
"""M is between 1 and this many times the newest step, evenly in its logarithm."""
PRIOR_MEAN, PRIOR_DEVIATION = 0.5, 0.29
"""Mean and deviation of R0 and A: those of the uniform distribution over [0, 1]."""
NUM_DRAWS = 10_000

_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The mean of the WINDOW steps up to a step. With a `reason` it cannot be told, and the numbers are NaN."""

    low: float = np.nan
    middle: float = np.nan
    """The median."""
    high: float = np.nan
    gain: tuple[float, float, float] = (np.nan, np.nan, np.nan)
    """Low, median and high of the curve's change since the newest WINDOW values, without noise."""
    reason: str = ""


def forecast(values: Sequence[tuple[int, float]], at: Sequence[int], *, level: float = 0.8) -> list[Forecast]:
    """Returns a forecast for each step in `at`, with intervals that hold `level` of the probability.

    values: (step, mean score of the step's rollouts, 0 to 1), ascending; steps are counted from 1 at the stage's start
    or after its last reset. Deterministic: the same values give the same forecast. Raises ValueError on a step below 1.
    """
    if any(step < 1 for step, _ in values):
        raise ValueError("steps are counted from 1")
    if len(values) < LEAST_VALUES:
        since = f"{len(values)} step{'s' * (len(values) != 1)} since the last reset or the stage's start"
        return [Forecast(reason=f"{since}, and a forecast needs {LEAST_VALUES}")] * len(at)
    steps, scores = np.array(values, dtype=np.float64).T
    if len(values) >= LEAST_VALUES + WINDOW:
        before = _Posterior.of(steps[:-WINDOW], scores[:-WINDOW])
        expected = before.draws(before.shares(steps[-WINDOW:]), noisy=True)
        low, high = np.quantile(expected, ((1 - SURPRISE) / 2, (1 + SURPRISE) / 2))
        recent = float(scores[-WINDOW:].mean())
        if not low <= recent <= high:
            curve = f"the curve of those before leads to {low:.3f} to {high:.3f}"
            reason = f"the newest {WINDOW} steps have a mean of {recent:.3f}, and {curve}"
            return [Forecast(reason=reason)] * len(at)
    posterior = _Posterior.of(steps, scores)
    now = posterior.shares(steps[-WINDOW:])
    quantiles = ((1 - level) / 2, 0.5, (1 + level) / 2)
    found = []
    for end in at:
        then = posterior.shares(np.arange(max(1, end - WINDOW + 1), end + 1, dtype=np.float64))
        score = np.quantile(posterior.draws(then, noisy=True), quantiles).clip(0.0, 1.0)
        gain = np.quantile(posterior.draws(then, noisy=False, minus=now), quantiles).clip(-1.0, 1.0)
        low, middle, high = map(float, score)
        found.append(
            Forecast(low=low, middle=middle, high=high, gain=(float(gain[0]), float(gain[1]), float(gain[2])))
        )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Posterior:
    """The posterior of the curve: a mixture of N normal distributions of (R0, A), one per node of the grid."""

    m_N: _Floats
    b_N: _Floats
    s_N: _Floats
    weight_N: _Floats
    mean_N2: _Floats
    root_N22: _Floats
    """Cholesky factors of the covariances."""

    @staticmethod
    def of(steps: _Floats, scores: _Floats) -> _Posterior:
        m = np.geomspace(1.0, M_FACTOR * steps[-1], NUM_M)
        grid = np.meshgrid(m, np.geomspace(*B_RANGE, NUM_B), np.geomspace(*S_RANGE, NUM_S), indexing="ij")
        m_N, b_N, s_N = (axis.ravel() for axis in grid)
        # Normal equations of the two linear parameters; those of nodes that differ in s alone are the same.
        share = _share(m_N[::NUM_S], b_N[::NUM_S], steps)
        design = np.stack([1 - share, share], axis=-1)
        gram = np.repeat(np.einsum("ntk,ntl->nkl", design, design), NUM_S, axis=0)
        moment = np.repeat(np.einsum("ntk,t->nk", design, scores - PRIOR_MEAN), NUM_S, axis=0)
        precision = gram / s_N[:, None, None] ** 2 + np.eye(2) / PRIOR_DEVIATION**2
        covariance = np.linalg.inv(precision)
        pull = moment / s_N[:, None] ** 2
        mean = np.einsum("nkl,nl->nk", covariance, pull)
        log_weight = (
            0.5 * np.einsum("nk,nk->n", pull, mean)
            - 0.5 * np.linalg.slogdet(precision)[1]
            - 0.5 * np.square(scores - PRIOR_MEAN).sum() / s_N**2
            - len(scores) * np.log(s_N)
        )
        weight = np.exp(log_weight - log_weight.max())
        return _Posterior(
            m_N=m_N,
            b_N=b_N,
            s_N=s_N,
            weight_N=weight / weight.sum(),
            mean_N2=mean + PRIOR_MEAN,
            root_N22=np.linalg.cholesky(covariance),
        )

    def shares(self, steps: _Floats) -> _Floats:
        """Returns [N]: how far the curve is from R0 to A, mean over these steps."""
        return _share(self.m_N, self.b_N, steps).mean(axis=1)

    def draws(self, share_N: _Floats, *, noisy: bool, minus: _Floats | None = None) -> _Floats:
        """Returns draws of the curve at `share_N`, minus that at `minus`. noisy: of the mean of WINDOW noisy values."""
        random = np.random.default_rng(0)
        node = random.choice(len(self.weight_N), NUM_DRAWS, p=self.weight_N)
        ends = self.mean_N2[node] + np.einsum(
            "nkl,nl->nk", self.root_N22[node], random.normal(size=(NUM_DRAWS, 2))
        )
        at = share_N[node]
        if minus is not None:
            return (at - minus[node]) * (ends[:, 1] - ends[:, 0])
        curve = ends[:, 0] + at * (ends[:, 1] - ends[:, 0])
        noise = self.s_N[node] / np.sqrt(WINDOW) * random.normal(size=NUM_DRAWS)
        return curve + noise if noisy else curve


def _share(m_N: _Floats, b_N: _Floats, steps: _Floats) -> _Floats:
    """Returns [N, steps]: 1 / (1 + (M / x)^B)."""
    return 1 / (1 + (m_N[:, None] / steps) ** b_N[:, None])
