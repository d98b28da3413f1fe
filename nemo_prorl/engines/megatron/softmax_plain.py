"""Softmax statistics of logits and the gradient of the logits, in plain PyTorch.

softmax_triton.py has the same two functions for CUDA. These are used on CPU, and as the reference in its tests.

Shapes: N tokens, V entries of this rank's shard of the vocabulary, without padding.
"""

from __future__ import annotations

import torch


def statistics(logits_NV: torch.Tensor, column_N: torch.Tensor, temperature: float) -> torch.Tensor:
    """Returns four values of each row of z = logits / temperature, as [4, N]: the maximum m, sum exp(z - m),
    sum exp(z - m) (z - m), and z at the label. A row without entries (V = 0) has the maximum -inf and sums of 0.

    column_N: the label's column; outside of [0, V) if another rank holds it, and its z is 0 then. Overwrites the
    logits.
    """
    if not logits_NV.shape[1]:
        return torch.stack(
            [logits_NV.new_full(column_N.shape, -torch.inf), *logits_NV.new_zeros(3, len(column_N))]
        )
    z = logits_NV.div_(temperature) if temperature != 1.0 else logits_NV
    column, is_here = _within(column_N, z.shape[1])
    label_z = torch.where(is_here, z.gather(1, column).squeeze(1), 0.0)
    peak = z.amax(dim=1)
    exponentials = z.sub_(peak.unsqueeze(1)).exp()
    total = exponentials.sum(1)
    return torch.stack([peak, total, exponentials.mul_(z).sum(1), label_z])


def gradient(
    logits_NV: torch.Tensor,
    column_N: torch.Tensor,
    temperature: float,
    log_normaliser_N: torch.Tensor,
    entropy_N: torch.Tensor,
    grad_logprobs_N: torch.Tensor,
    grad_entropy_N: torch.Tensor | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Returns the [N, V] gradient of the logits in `dtype`, given the gradients of log-probability and entropy, with

    d logp / d z_j = [j is the label] - p_j;  d H / d z_j = -p_j (log p_j + H);  z = logits / temperature.

    column_N: see `statistics`. log_normaliser_N: log sum exp(z) over the whole vocabulary. grad_entropy_N: None means
    0. Overwrites the logits.
    """
    z = logits_NV.div_(temperature) if temperature != 1.0 else logits_NV
    log_p = z.sub_(log_normaliser_N.unsqueeze(1))
    grad_logp = grad_logprobs_N.unsqueeze(1) / temperature
    if grad_entropy_N is None:
        gradients = log_p.exp_().mul_(-grad_logp)
    else:
        grad_H = grad_entropy_N.unsqueeze(1) / temperature
        factor = (log_p + entropy_N.unsqueeze(1)).mul_(grad_H).add_(grad_logp)
        gradients = log_p.exp_().mul_(factor).neg_()
    if gradients.shape[1]:
        column, is_here = _within(column_N, gradients.shape[1])
        gradients.scatter_add_(1, column, grad_logp * is_here.unsqueeze(1))
    return gradients.to(dtype)


def _within(column_N: torch.Tensor, num_columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the column of each label, [N, 1], or 0 if it is not in this shard, and whether it is, [N]."""
    is_here = (column_N >= 0) & (column_N < num_columns)
    return torch.where(is_here, column_N, 0).unsqueeze(1), is_here
