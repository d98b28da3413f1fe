"""Advantages: a rollout's reward compared with a baseline, scaled."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from nemo_prorl.algorithm.kl import kl_penalty
from nemo_prorl.config import Advantage, AlgorithmConfig
from nemo_prorl.types import FloatArray, IntArray, RolloutGroup

_Values = NDArray[np.float64]

STD_EPSILON = 1e-6
"""Added to a group's standard deviation. It changes the advantages of right and wrong answers (up to 100 rollouts) by
less than 1 in 10^5, and keeps rounding noise of 1e-16 between equal rewards from becoming advantages of +-1."""
BATCH_VARIANCE_FLOOR = 1e-8
"""Lower bound of the variance in `batch_normalised`."""


def step_advantages(
    groups: Sequence[RolloutGroup], config: AlgorithmConfig, kl_sums: Sequence[Sequence[float]] = ()
) -> list[FloatArray]:
    """Returns one [n] float32 array per group: the advantages of its rollouts, by `algorithm.advantage`.

    groups: all groups of the step, since batch_std normalises over them; so the result does not depend on how they are
    later distributed over updates and replicas. Rollouts that shaping keeps out of the loss count in the statistics of
    their group but not in those of the batch.
    kl_sums: `response_kl` of every rollout, one [n] sequence per group; needed only with kl_in=reward, where the
    rewards are those of `rewards_after_kl`. Raises ValueError on a reward that is NaN or infinite.
    """
    rewards = [group.rewards for group in groups]
    if config.takes_kl_from_rewards:
        rewards = [rewards_after_kl(*pair, config) for pair in zip(rewards, kl_sums, strict=True)]
    advantages = [group_advantages(values, config.advantage) for values in rewards]
    if config.advantage is not Advantage.batch_std:
        return [values.astype(np.float32) for values in advantages]
    num_tokens = [
        np.array([member.rollout.num_tokens * member.in_loss for member in group.members]) for group in groups
    ]
    return [values.astype(np.float32) for values in batch_normalised(advantages, num_tokens)]


def group_advantages(rewards: Sequence[float], kind: Advantage) -> _Values:
    """Returns the [n] advantages of the n rollouts of one prompt, from their rewards R alone:

    group_std: (R_i - mean(R)) / std(R) (ProRL eq. 2, GRPO). The paper does not say which standard deviation: it is the
    sample's (n - 1), with 1e-6 added.
    group_mean: R_i - mean(R) (Dr. GRPO, arXiv 2503.20783).
    leave_one_out: R_i - mean of the others, which is n / (n - 1) times group_mean (RLOO, arXiv 2402.14740 section 3.2).
    batch_std: R_i - mean(R), which `batch_normalised` then normalises.
    maxrl: (R_i - mean(R)) / (mean(R) - min(R)) (MaxRL, arXiv 2602.02710, whose rewards are 0 and 1). Measured from the
    lowest one, scores of -1 and 1 mean the same, and with penalties no advantage exceeds n - 1.

    Exactly 0 everywhere when the rewards are all equal or n is 1. Raises ValueError on a reward
    that is NaN or infinite.
    """
    values = np.asarray(rewards, dtype=np.float64)
    if not np.isfinite(values).all():
        raise ValueError(f"rewards must be finite, got {list(rewards)}")
    # Equality is decided on the rewards themselves: in floating point the mean of equal numbers is not always that
    # number, and dividing the remainder by its own spread would make advantages out of rounding errors.
    if values.size == 0 or values.max() == values.min():
        return np.zeros(values.shape)
    # Differences between similar rewards are exact; their mean would be rounded first.
    offsets = values - values.min()
    deviations = offsets - offsets.mean()
    match kind:
        case Advantage.group_std:
            return deviations / (offsets.std(ddof=1) + STD_EPSILON)
        case Advantage.leave_one_out:
            return deviations * (values.size / (values.size - 1))
        case Advantage.group_mean | Advantage.batch_std:
            return deviations
        case Advantage.maxrl:
            return deviations / max(offsets.mean(), STD_EPSILON)


def batch_normalised(advantages: Sequence[_Values], num_tokens: Sequence[IntArray]) -> list[_Values]:
    """Returns (A - mean) / sqrt(max(variance, 1e-8)), with mean and variance over all response tokens of the batch,
    each of which has the advantage of its rollout (REINFORCE++-baseline, arXiv 2501.03262; ProRL v2).

    The batch is the whole step, before it is split into updates, and the variance is that of the population. The mean
    of R_i - mean(R) over tokens is not 0 if right answers have another length than wrong ones.

    advantages, num_tokens: one [n] array per group, of the same rollouts. Without any tokens the advantages are
    returned unchanged.
    """
    if not sum(int(counts.sum()) for counts in num_tokens):
        return list(advantages)
    values = np.concatenate([np.asarray(part, dtype=np.float64) for part in advantages])
    weights = np.concatenate([np.asarray(part, dtype=np.float64) for part in num_tokens])
    mean = np.average(values, weights=weights)
    variance = np.average(np.square(values - mean), weights=weights)
    scale = 1.0 / np.sqrt(max(variance, BATCH_VARIANCE_FLOOR))
    return [(part - mean) * scale for part in advantages]


def rewards_after_kl(
    rewards: Sequence[float], kl_sums: Sequence[float], config: AlgorithmConfig
) -> tuple[float, ...]:
    """Returns the rewards of a group's rollouts less kl_beta times the response's sum of `kl_penalty` (kl_in=reward).

    R'_i = R_i - beta * sum_t KL_t, with KL_t from `old` log-probabilities: a constant, without gradient. With k1 the
    sum is log(old / reference) of the whole response (RLOO, arXiv 2402.14740). Raises ValueError if the penalty makes a
    reward NaN or infinite, which happens with an unclamped k3 at tokens whose probability has changed by a factor of
    exp(80).
    """
    penalised = tuple(
        reward - config.kl_beta * kl_sum for reward, kl_sum in zip(rewards, kl_sums, strict=True)
    )
    if not np.isfinite(penalised).all():
        raise ValueError(
            "the KL penalty that algorithm.kl_in=reward subtracts makes a reward infinite or NaN: bound "
            "it with algorithm.kl_clamp_log_ratio=20"
        )
    return penalised


def response_kl(old_logprobs: FloatArray, reference_logprobs: FloatArray, config: AlgorithmConfig) -> float:
    """Returns the sum of `kl_penalty` over the tokens of one response, in nats; both arrays are [R]."""
    old, reference = (
        torch.from_numpy(np.asarray(array, dtype=np.float64)) for array in (old_logprobs, reference_logprobs)
    )
    return float(kl_penalty(old, reference, config).sum())
