"""The KL penalty that holds the policy to its reference."""

from __future__ import annotations

import torch

from nemo_prorl.algorithm.mismatch import MAX_OWN_WEIGHT
from nemo_prorl.algorithm.numerics import exp
from nemo_prorl.config import AlgorithmConfig, KlEstimator


def kl_estimate(log_ratio: torch.Tensor, estimator: KlEstimator) -> torch.Tensor:
    """Returns estimates of KL(current || reference) in nats, elementwise, from d = log(reference / current) of tokens
    drawn from current (http://joschu.net/blog/kl-approx.html).

    k1 = -d, unbiased, of either sign; k2 = d^2 / 2, biased, small variance;
    k3 = exp(d) - d - 1 (ProRL eq. 5), unbiased, never negative.

    In the loss each is differentiated directly, with slopes 1, -d and 1 - exp(d). In expectation over tokens drawn from
    current these are 0 (k1 does not pull towards the reference at all), the gradient of the KL itself (k2), and that of
    the reverse KL(reference || current) (k3).
    """
    match estimator:
        case KlEstimator.k1:
            return -log_ratio
        case KlEstimator.k2:
            return 0.5 * log_ratio.square()
        case KlEstimator.k3:
            return exp(log_ratio) - log_ratio - 1.0


def kl_penalty(
    current_logprobs: torch.Tensor, reference_logprobs: torch.Tensor, config: AlgorithmConfig
) -> torch.Tensor:
    """Returns `kl_estimate` with the configured estimator and clamps, in nats, elementwise.

    First d is clamped to +-kl_clamp_log_ratio, then the value to +-kl_clamp_value; 0 turns a clamp off. Where a clamp
    is active (`kl_is_clamped`), a token's KL counts in the value of the loss and its gradient is exactly 0.
    """
    log_ratio = _clamped(reference_logprobs - current_logprobs, config.kl_clamp_log_ratio)
    return _clamped(kl_estimate(log_ratio, config.kl_estimator), config.kl_clamp_value)


def weighted_kl_penalty(
    current_logprobs: torch.Tensor,
    reference_logprobs: torch.Tensor,
    ratio: torch.Tensor,
    importance_weight: torch.Tensor,
    config: AlgorithmConfig,
) -> torch.Tensor:
    """Returns importance_weight * ratio * `kl_penalty`, in nats, elementwise, for tokens that an older policy drew
    (DeepSeek-V3.2, arXiv 2512.02556 eq. 7). ratio: of each token's current to old probability.

    The gradient flows through the ratio as well. In expectation that of k1 and of k3 is the gradient of KL(current ||
    reference), whichever policy drew the tokens, if the weights are their ratios and not a geometric mean: their slopes
    are ratio * (1 - d) and ratio * -d. So that no token outweighs the others, a ratio above MAX_OWN_WEIGHT counts as
    that, without a slope of its own. Where a clamp of the KL is active the gradient is exactly 0, because the ratio's
    alone would push away from the reference.
    """
    is_clamped = kl_is_clamped(current_logprobs, reference_logprobs, config)
    ratio = torch.where(is_clamped, ratio.detach(), ratio).clamp(max=MAX_OWN_WEIGHT)
    return importance_weight * ratio * kl_penalty(current_logprobs, reference_logprobs, config)


def kl_is_clamped(
    current_logprobs: torch.Tensor, reference_logprobs: torch.Tensor, config: AlgorithmConfig
) -> torch.Tensor:
    """Returns a boolean tensor, elementwise: where a clamp of `kl_penalty` is active."""
    log_ratio = reference_logprobs - current_logprobs
    value = kl_estimate(_clamped(log_ratio, config.kl_clamp_log_ratio), config.kl_estimator)
    return _is_beyond(log_ratio, config.kl_clamp_log_ratio) | _is_beyond(value, config.kl_clamp_value)


def _clamped(values: torch.Tensor, bound: float) -> torch.Tensor:
    return values.clamp(-bound, bound) if bound > 0 else values


def _is_beyond(values: torch.Tensor, bound: float) -> torch.Tensor:
    return values.abs() > bound if bound > 0 else torch.zeros_like(values, dtype=torch.bool)
