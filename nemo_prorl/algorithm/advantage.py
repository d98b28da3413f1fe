"""How much better a rollout did than its siblings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nemo_prorl.types import FloatArray

STD_EPSILON = 1e-6
"""Added to the standard deviation. It changes the advantages of a group that disagrees by less than 1 in 10^5, and
keeps rounding noise of 1e-16 between equal rewards from becoming advantages of +-1."""


def group_advantages(rewards: Sequence[float], *, normalise_std: bool) -> FloatArray:
    """ProRL eq. 2 (GRPO): A_i = (R_i - mean(R)) / std(R) over the n rollouts of one prompt.

    The paper does not say which standard deviation: it is the sample's (n - 1) with 1e-6 added, as in verl, which
    ProRL was trained with. `normalise_std=False` leaves the division out (Dr. GRPO, arXiv 2503.20783).

    rewards: n rewards of one group, any unit. Returns [n] float32; exactly 0 everywhere when the rewards are all
    equal or n is 1. Raises ValueError on a reward that is NaN or infinite.
    """
    values = np.asarray(rewards, dtype=np.float64)
    if not np.isfinite(values).all():
        raise ValueError(f"rewards must be finite, got {list(rewards)}")
    # Equality is decided on the rewards themselves: the mean of equal numbers is not always that number in floating
    # point, and dividing what is left over by its own spread gives advantages out of nothing.
    if values.size == 0 or values.max() == values.min():
        return np.zeros(values.shape, dtype=np.float32)
    # Rewards that differ little are subtracted from each other exactly; their mean would be rounded first.
    offsets = values - values.min()
    deviations = offsets - offsets.mean()
    if normalise_std:
        deviations /= offsets.std(ddof=1) + STD_EPSILON
    return deviations.astype(np.float32)
