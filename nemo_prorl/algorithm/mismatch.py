"""Importance weights that correct for sampling with another engine, or with older weights.

The policies that sample and train have the same weights but different kernels, so their probabilities differ (Yao et
al. 2025, "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training"); with `sampler.ahead` the sampler's
weights are also one step old. docs/algorithm.md lists the equivalents in other trainers of each combination of level
and mode.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from nemo_prorl.algorithm.numerics import exp, response_mean, response_sum
from nemo_prorl.config import AlgorithmConfig, CorrectionLevel, CorrectionMode

MAX_OWN_WEIGHT = 5.0
"""Largest weight of a token where correction_high bounds another ratio than the token's own, and in the weighted KL, so
that no token outweighs the others: IcePop's upper bound."""


@dataclass(frozen=True, slots=True)
class ImportanceWeights:
    """Factors on the tokens' policy-gradient terms. No gradient flows through them."""

    weight_BT: torch.Tensor
    """[B, T]; exactly 1 where the correction is off, and always finite."""
    limited_BT: torch.Tensor
    """[B, T], boolean: the weight was truncated, or the token was masked or dropped with its rollout. Meaningful on
    response tokens only."""


def importance_ratio(
    log_ratio_BT: torch.Tensor, mask_BT: torch.Tensor, level: CorrectionLevel
) -> torch.Tensor:
    """Returns the [B, T] ratio of old to sampler probability, unbounded, from `log_ratio_BT` = old - sampler
    log-probability, which must be 0 outside the response.

    token: of each token. sequence: the product over the response, on each of its tokens. geometric: the geometric mean
    over the response, on each of its tokens. off: 1.
    """
    match level:
        case CorrectionLevel.off:
            return torch.ones_like(log_ratio_BT)
        case CorrectionLevel.token:
            return exp(log_ratio_BT)
        case CorrectionLevel.sequence:
            return exp(response_sum(log_ratio_BT))
        case CorrectionLevel.geometric:
            return exp(response_mean(log_ratio_BT, mask_BT))


def importance_weights(
    log_ratio_BT: torch.Tensor, mask_BT: torch.Tensor, config: AlgorithmConfig
) -> ImportanceWeights:
    """Returns weights from `importance_ratio`; `correction_mode` decides outside [correction_low, correction_high].

    truncate: the ratio is clamped to the bounds (IMPALA, arXiv 1802.01561 eq. 1, has only the upper one).
    mask: where the ratio is outside the bounds, the weight is 0.
    drop: a rollout with a ratio outside the bounds gets the weight 0 on all of its tokens; the tokens of every other
    rollout keep their own ratio, whatever the level, up to correction_high or MAX_OWN_WEIGHT, whichever is larger.

    Arguments as for `importance_ratio`. With level `off` every weight is 1, whatever the bounds.
    """
    ratio_BT = importance_ratio(log_ratio_BT, mask_BT, config.correction_level)
    if config.correction_level is CorrectionLevel.off:
        return ImportanceWeights(ratio_BT, torch.zeros_like(mask_BT))
    outside_BT = (ratio_BT < config.correction_low) | (ratio_BT > config.correction_high)
    match config.correction_mode:
        case CorrectionMode.truncate:
            weight_BT = ratio_BT.clamp(config.correction_low, config.correction_high)
        case CorrectionMode.mask:
            weight_BT = torch.where(outside_BT, 0.0, ratio_BT)
        case CorrectionMode.drop:
            outside_BT = (outside_BT & mask_BT).any(dim=1, keepdim=True).expand_as(outside_BT)
            own_BT, bound = exp(log_ratio_BT), max(config.correction_high, MAX_OWN_WEIGHT)
            weight_BT = torch.where(outside_BT, 0.0, own_BT.clamp(max=bound))
            outside_BT = outside_BT | (own_BT > bound)
    return ImportanceWeights(weight_BT, outside_BT)
