"""The loss of an update: DAPO's decoupled clip with ProRL's KL penalty, and what may be added to it.

Pure functions of tensors. B rollouts, T tokens of prompt and response; a value at position t belongs to the token at
t. Helpers work elementwise on any shape unless their arguments say `_BT`. Log-probabilities are in nats, at the
training temperature. docs/algorithm.md has every formula beside its function.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from nemo_prorl.config import Aggregation, AlgorithmConfig, ImportanceCorrection, KlEstimator
from nemo_prorl.types import FloatArray, Totals, TrainBatch

_MAX_EXPONENT = 80.0
"""exp(80) = 5.5e34 still fits float32."""


def policy_loss(
    current_logprobs_BT: torch.Tensor,
    entropy_BT: torch.Tensor,
    batch: TrainBatch,
    totals: Totals,
    *,
    config: AlgorithmConfig,
    entropy_coefficient: float,
) -> torch.Tensor:
    """ProRL eq. 4, negated: -(L_GRPO - beta * KL(current || reference)) - entropy_coefficient * entropy.

    L_GRPO is eq. 1 with the clip of eq. 3. Scalar, in the precision of current_logprobs_BT but at least float32. It
    is this micro-batch's share of the loss of the whole update: shares add up over micro-batches and ranks, however
    the update was split, because each is divided by `totals`. With its keywords bound it is a LossFunction.

    Gradients flow into current_logprobs_BT and, if the bonus is on, entropy_BT. Positions outside the response
    contribute exactly 0 to value and gradient, whatever they hold. The importance weight applies to L_GRPO alone.
    Raises ValueError on tensors of another shape than the batch, and on empty totals.
    """
    _check_shapes(current_logprobs_BT, entropy_BT, batch)
    data = _masked_tensors(current_logprobs_BT, batch)
    ratio_BT = probability_ratio(data.current_BT, data.old_BT)
    surrogate_BT = clipped_surrogate(ratio_BT, data.advantages_B1, config)
    importance_BT = importance_ratio(data.old_BT, data.sampler_BT, config.importance_correction)
    loss_BT = -importance_weight(importance_BT, config) * surrogate_BT
    # A term that is off is left out instead of multiplied by 0: its inputs may be absent, and 0 * infinity is NaN.
    if config.kl_beta > 0:
        loss_BT = loss_BT + config.kl_beta * kl_penalty(
            data.current_BT, data.reference_BT, config.kl_estimator
        )
    if entropy_coefficient != 0:
        entropy_BT = torch.where(data.mask_BT, entropy_BT.to(data.current_BT.dtype), 0.0)
        loss_BT = loss_BT - entropy_coefficient * entropy_BT
    return (loss_BT * token_shares(data.mask_BT, totals, config.aggregation).to(loss_BT.dtype)).sum()


def supervised_loss(
    current_logprobs_BT: torch.Tensor, entropy_BT: torch.Tensor, batch: TrainBatch, totals: Totals
) -> torch.Tensor:
    """Mean negative log-likelihood of the response tokens of an update, in nats a token. A LossFunction.

    This micro-batch's share, as with `policy_loss`; entropy and the batch's log-probabilities are not used.
    Raises ValueError as `policy_loss` does.
    """
    _check_shapes(current_logprobs_BT, entropy_BT, batch)
    mask_BT = torch.tensor(batch.tokens.response_mask_BT, device=current_logprobs_BT.device)
    current_BT = torch.where(mask_BT, _at_least_float32(current_logprobs_BT), 0.0)
    return -(current_BT * token_shares(mask_BT, totals, Aggregation.token_mean).to(current_BT.dtype)).sum()


def probability_ratio(current_logprobs: torch.Tensor, old_logprobs: torch.Tensor) -> torch.Tensor:
    """r of ProRL eq. 1, for one token: current / old probability. Exactly 1 where they are equal."""
    return _exp(current_logprobs - old_logprobs)


def clipped_surrogate(ratio: torch.Tensor, advantages: torch.Tensor, config: AlgorithmConfig) -> torch.Tensor:
    """ProRL eq. 1 with eq. 3, to be maximised: min(r A, clip(r, 1 - clip_low, 1 + clip_high) A).

    With dual_clip = c: max(that, c A) where A < 0 (dual-clip PPO, arXiv 1912.09729), which bounds what one token
    that became far more likely can cost. The gradient is exactly 0 where `clip_bindings` says that a bound binds.
    """
    clipped = ratio.clamp(1.0 - config.clip_low, 1.0 + config.clip_high)
    surrogate = torch.minimum(ratio * advantages, clipped * advantages)
    if config.dual_clip == 0:
        return surrogate
    return torch.where(advantages < 0, torch.maximum(surrogate, config.dual_clip * advantages), surrogate)


@dataclass(frozen=True, slots=True)
class ClipBindings:
    """Where `clipped_surrogate` is constant in the ratio, by the bound that makes it so."""

    low: torch.Tensor
    """A < 0 and the ratio is below 1 - clip_low: the token is unlikely enough already."""
    high: torch.Tensor
    """A > 0 and the ratio is above 1 + clip_high: the token is likely enough already."""
    dual: torch.Tensor
    """A < 0 and the ratio is above dual_clip; nowhere when it is off."""


def clip_bindings(ratio: torch.Tensor, advantages: torch.Tensor, config: AlgorithmConfig) -> ClipBindings:
    """Boolean tensors of the shape of ratio and advantages broadcast together. ProRL eq. 3, arXiv 1912.09729."""
    dual = (advantages < 0) & (ratio > config.dual_clip)
    return ClipBindings(
        low=(advantages < 0) & (ratio < 1.0 - config.clip_low),
        high=(advantages > 0) & (ratio > 1.0 + config.clip_high),
        dual=dual if config.dual_clip > 0 else torch.zeros_like(dual),
    )


def kl_penalty(
    current_logprobs: torch.Tensor, reference_logprobs: torch.Tensor, estimator: KlEstimator
) -> torch.Tensor:
    """KL(current || reference) from single tokens drawn from current; http://joschu.net/blog/kl-approx.html.

    With d = log(reference / current): k1 = -d, unbiased, of either sign; k2 = d^2 / 2, biased, small variance;
    k3 = exp(d) - d - 1 (ProRL eq. 5), unbiased, never negative.

    As a term of the loss each is differentiated as it stands: 1, -d and 1 - exp(d). In expectation over tokens drawn
    from current those are 0 (k1 does not pull towards the reference at all), the gradient of the KL itself (k2), and
    that of the reverse KL(reference || current) (k3).
    """
    log_ratio = reference_logprobs - current_logprobs
    match estimator:
        case KlEstimator.k1:
            return -log_ratio
        case KlEstimator.k2:
            return 0.5 * log_ratio.square()
        case KlEstimator.k3:
            return _exp(log_ratio) - log_ratio - 1.0


def importance_ratio(
    old_logprobs_BT: torch.Tensor, sampler_logprobs_BT: torch.Tensor, correction: ImportanceCorrection
) -> torch.Tensor:
    """[B, T] weight that makes up for sampling with another engine: old / sampler probability, not yet truncated.

    The policy that samples and the one that trains have the same weights and other kernels, so their probabilities
    differ (Yao et al. 2025, "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training"; truncation as
    in IMPALA, arXiv 1802.01561 eq. 1). `token`: of each token; `sequence`: product over the response, on each of its
    tokens; `off`: 1. Arguments must be equal (as 0 and 0) outside the response.
    """
    log_ratio_BT = old_logprobs_BT - sampler_logprobs_BT
    match correction:
        case ImportanceCorrection.off:
            return torch.ones_like(log_ratio_BT)
        case ImportanceCorrection.token:
            return _exp(log_ratio_BT)
        case ImportanceCorrection.sequence:
            return _exp(log_ratio_BT.sum(dim=1, keepdim=True)).expand_as(log_ratio_BT)


def importance_weight(ratio: torch.Tensor, config: AlgorithmConfig) -> torch.Tensor:
    """What the loss is multiplied by: `importance_ratio`, truncated; exactly 1 where it is off, whatever the cap."""
    off = config.importance_correction is ImportanceCorrection.off
    return ratio if off else ratio.clamp(max=config.importance_cap)


def token_shares(mask_BT: torch.Tensor, totals: Totals, aggregation: Aggregation) -> torch.Tensor:
    """[B, T] float64 weight of each token's loss in the loss of the update; 0 outside the response.

    token_mean: 1 / tokens of the update (DAPO eq. 8). sequence_mean_token_mean: 1 / (rollouts * tokens of this
    rollout) (GRPO, arXiv 2402.03300 eq. 3). sequence_mean_token_sum: 1 / rollouts (Dr. GRPO, arXiv 2503.20783,
    without its constant). `totals` counts the update on all ranks, so no share depends on the split.
    Raises ValueError where the total that it divides by is not positive.
    """
    total = totals.num_tokens if aggregation is Aggregation.token_mean else totals.num_rollouts
    if total <= 0:
        raise ValueError(f"{aggregation.value} divides by the size of the update, which is {totals}")
    share_BT = mask_BT.double() / total
    if aggregation is Aggregation.sequence_mean_token_mean:
        # A row without response tokens (padding of a micro-batch) has nothing to average.
        share_BT = share_BT / mask_BT.sum(dim=1, keepdim=True).clamp(min=1)
    return share_BT


@dataclass(frozen=True, slots=True)
class _MaskedTensors:
    """A micro-batch beside the current log-probabilities: same device and precision, 0 outside the response."""

    mask_BT: torch.Tensor
    current_BT: torch.Tensor
    old_BT: torch.Tensor
    sampler_BT: torch.Tensor
    reference_BT: torch.Tensor
    advantages_B1: torch.Tensor


def _masked_tensors(current_logprobs_BT: torch.Tensor, batch: TrainBatch) -> _MaskedTensors:
    current_BT = _at_least_float32(current_logprobs_BT)
    mask_BT = torch.tensor(batch.tokens.response_mask_BT, device=current_BT.device)

    def masked(values_BT: torch.Tensor) -> torch.Tensor:
        # `where` before any arithmetic: multiplying by the mask afterwards leaves NaN * 0 = NaN in value and gradient.
        return torch.where(mask_BT, values_BT, 0.0)

    def tensor(array: FloatArray) -> torch.Tensor:
        return torch.tensor(array, dtype=current_BT.dtype, device=current_BT.device)

    return _MaskedTensors(
        mask_BT=mask_BT,
        current_BT=masked(current_BT),
        old_BT=masked(tensor(batch.old_logprobs_BT)),
        sampler_BT=masked(tensor(batch.sampler_logprobs_BT)),
        reference_BT=masked(tensor(batch.reference_logprobs_BT)),
        advantages_B1=tensor(batch.advantages_B).unsqueeze(1),
    )


def _at_least_float32(values: torch.Tensor) -> torch.Tensor:
    """bf16 has 8 bits of mantissa: a ratio would be wrong by up to 0.4 %."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def _exp(exponent: torch.Tensor) -> torch.Tensor:
    """exp with gradient 0 instead of infinity where the value is infinite.

    Where a clip discards such a value, 0 * infinity would make its gradient NaN. Where nothing does, the infinite
    loss gets the update refused, which a value that was cut off quietly would not.
    """
    return torch.where(exponent > _MAX_EXPONENT, torch.inf, exponent.clamp(max=_MAX_EXPONENT).exp())


def _check_shapes(current_logprobs_BT: torch.Tensor, entropy_BT: torch.Tensor, batch: TrainBatch) -> None:
    expected = batch.tokens.response_mask_BT.shape
    for name, shape in (
        ("current_logprobs_BT", current_logprobs_BT.shape),
        ("entropy_BT", entropy_BT.shape),
        ("old_logprobs_BT", batch.old_logprobs_BT.shape),
        ("sampler_logprobs_BT", batch.sampler_logprobs_BT.shape),
        ("reference_logprobs_BT", batch.reference_logprobs_BT.shape),
    ):
        if tuple(shape) != expected:
            raise ValueError(f"{name} has shape {tuple(shape)}, the response mask {expected}")
    if batch.advantages_B.shape != expected[:1]:
        raise ValueError(f"advantages_B has shape {batch.advantages_B.shape}, the batch {expected[0]} rows")
