"""The loss of an update, composed of ratio.py (the objective), mismatch.py (importance weights) and kl.py.

Pure functions of tensors. B rollouts, T tokens of prompt and response; a value at position t belongs to the token at t.
Log-probabilities are in nats, at the training temperature. docs/algorithm.md lists every formula with its function.
"""

from __future__ import annotations

from functools import partial

import torch

from nemo_prorl.algorithm.kl import kl_penalty, weighted_kl_penalty
from nemo_prorl.algorithm.mismatch import importance_weights
from nemo_prorl.algorithm.numerics import at_least_float32, on_device
from nemo_prorl.algorithm.ratio import probability_change, probability_ratio, surrogate
from nemo_prorl.config import Aggregation, AlgorithmConfig, RatioLevel
from nemo_prorl.types import Totals, TrainBatch


def policy_loss(
    current_logprobs_BT: torch.Tensor,
    entropy_BT: torch.Tensor,
    batch: TrainBatch,
    totals: Totals,
    *,
    config: AlgorithmConfig,
    entropy_coefficient: float,
) -> torch.Tensor:
    """Returns ProRL eq. 4, negated: -(w L - beta * KL(current || reference)) - entropy_coefficient * entropy.

    L is `ratio.surrogate` (ProRL eq. 1 with the clip of eq. 3 by default), w `mismatch.importance_weights`. With
    kl_in=reward the advantages contain the KL, and the loss has none. The result is a scalar, in the precision of
    current_logprobs_BT but at least float32. It is this micro-batch's share of the loss of the whole update: because
    each share is divided by `totals`, shares add up over micro-batches and ranks, however the update was split. With
    its keyword arguments bound (functools.partial), this function is a LossFunction.

    Gradients flow into current_logprobs_BT and, if the bonus is on, entropy_BT. Positions outside the response
    contribute exactly 0 to value and gradient, whatever they contain; so does w L of a token whose advantage or weight
    is 0, whatever its ratio. The importance weight applies to L and, with kl_weighted, to the KL; a token whose weight
    is 0 still counts in `totals`. Raises ValueError on tensors that differ in shape from the batch, and on empty
    totals.
    """
    _check_shapes(current_logprobs_BT, entropy_BT, batch)
    current_BT = at_least_float32(current_logprobs_BT)
    tensor = partial(on_device, device=current_BT.device, dtype=current_BT.dtype)
    mask_BT = on_device(batch.tokens.response_mask_BT, current_BT.device)
    # `where` before any arithmetic: multiplying by the mask afterwards would leave NaN * 0 = NaN.
    current_BT = torch.where(mask_BT, current_BT, 0.0)
    sampler_BT = torch.where(mask_BT, tensor(batch.sampler_logprobs_BT), 0.0)
    old_BT, reference_BT = (
        current_BT.detach() if logprobs_BT is None else torch.where(mask_BT, tensor(logprobs_BT), 0.0)
        for logprobs_BT in (batch.old_logprobs_BT, batch.reference_logprobs_BT)
    )
    advantages_B1 = tensor(batch.advantages_B).unsqueeze(1)

    weight_BT = importance_weights(old_BT - sampler_BT, mask_BT, config).weight_BT
    # Selected before they are multiplied by an advantage, a weight or a share of 0, because 0 * infinity is NaN.
    counts_BT = mask_BT & (advantages_B1 != 0) & (weight_BT != 0)
    ratio_BT = probability_ratio(current_BT, old_BT, mask_BT, config.ratio_level, counts_BT)
    moved_BT = probability_change(current_BT, sampler_BT)
    chosen_BT = torch.where(counts_BT, current_BT, 0.0)
    loss_BT = -weight_BT * surrogate(ratio_BT, chosen_BT, moved_BT, advantages_B1, config)
    # A term that is off is left out, not multiplied by 0: its inputs may be absent, and 0 * infinity is NaN.
    if config.has_kl_in_loss:
        kl_BT = kl_penalty(current_BT, reference_BT, config)
        if config.kl_weighted:
            ratio_BT = probability_ratio(current_BT, old_BT, mask_BT, RatioLevel.token)
            kl_BT = weighted_kl_penalty(current_BT, reference_BT, ratio_BT, weight_BT, config)
        loss_BT = loss_BT + config.kl_beta * kl_BT
    if entropy_coefficient != 0:
        entropy_BT = torch.where(mask_BT, entropy_BT.to(current_BT.dtype), 0.0)
        loss_BT = loss_BT - entropy_coefficient * entropy_BT
    share_BT = token_shares(mask_BT, totals, config.aggregation, constant=config.aggregation_constant)
    return (loss_BT * share_BT.to(loss_BT.dtype)).sum()


def token_shares(
    mask_BT: torch.Tensor, totals: Totals, aggregation: Aggregation, *, constant: float = 1.0
) -> torch.Tensor:
    """Returns the [B, T] float64 weight of each token's loss in the loss of the update; 0 outside the response.

    token_mean: 1 / tokens of the update (DAPO eq. 8). sequence_mean_token_mean: 1 / (rollouts * tokens of this
    rollout) (GRPO, arXiv 2402.03300 eq. 3). sequence_mean_token_sum: 1 / (rollouts * constant) (Dr. GRPO, arXiv
    2503.20783, whose constant is the largest number of response tokens). `totals` counts the update on all ranks, so no
    share depends on the split. Raises ValueError if the total in the denominator is not positive.
    """
    total = totals.num_tokens if aggregation is Aggregation.token_mean else totals.num_rollouts
    if total <= 0:
        raise ValueError(f"{aggregation.value} divides by the size of the update, which is {totals}")
    share_BT = mask_BT.double() / total
    if aggregation is Aggregation.sequence_mean_token_mean:
        # A row without response tokens (padding of a micro-batch) has nothing to average.
        share_BT = share_BT / mask_BT.sum(dim=1, keepdim=True).clamp(min=1)
    if aggregation is Aggregation.sequence_mean_token_sum:
        share_BT = share_BT / constant
    return share_BT


def _check_shapes(current_logprobs_BT: torch.Tensor, entropy_BT: torch.Tensor, batch: TrainBatch) -> None:
    expected = batch.tokens.response_mask_BT.shape
    of_batch = ("sampler_logprobs_BT", "old_logprobs_BT", "reference_logprobs_BT", "advantages_B")
    arrays = {name: getattr(batch, name) for name in of_batch}
    arrays |= {"current_logprobs_BT": current_logprobs_BT, "entropy_BT": entropy_BT}
    for name, array in arrays.items():
        wanted = expected[:1] if name == "advantages_B" else expected
        if array is not None and tuple(array.shape) != wanted:
            raise ValueError(f"{name} has shape {tuple(array.shape)}, and the response mask {expected}")
