"""What log-probability and entropy need of the logits, and the gradient that comes back to them, in plain PyTorch.

softmax_triton.py has the same two functions for CUDA; these are what it is tested against, and the only ones on CPU.

Shapes: N tokens, V entries of this rank's shard of the vocabulary, without padding.
"""

from __future__ import annotations

import torch


def statistics(logits_NV: torch.Tensor, column_N: torch.Tensor, temperature: float) -> torch.Tensor:
    """[4, N] of z = logits / temperature: the peak m of each row, sum exp(z - m), sum exp(z - m) (z - m), and z of the
    label. `column_N`: where the label is, outside of [0, V) if another rank holds it: its z is 0 then. A row without
    any entry has the peak -inf and sums of 0. Uses the logits up.
    """
    if not logits_NV.shape[1]:
        return torch.stack(
            [logits_NV.new_full(column_N.shape, -torch.inf), *logits_NV.new_zeros(3, len(column_N))]
        )
    z = logits_NV.div_(temperature) if temperature != 1.0 else logits_NV
    column, mine = _within(column_N, z.shape[1])
    of_label = torch.where(mine, z.gather(1, column).squeeze(1), 0.0)
    peak = z.amax(dim=1)
    exponentials = z.sub_(peak.unsqueeze(1)).exp()
    total = exponentials.sum(1)
    return torch.stack([peak, total, exponentials.mul_(z).sum(1), of_label])


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
    """[N, V] gradient of the logits in `dtype`, given those of log-probability and entropy; uses the logits up.

    d logp / d z_j = [j is the label] - p_j;  d H / d z_j = -p_j (log p_j + H);  z = logits / temperature.
    """
    z = logits_NV.div_(temperature) if temperature != 1.0 else logits_NV
    log_p = z.sub_(log_normaliser_N.unsqueeze(1))
    of_logprob = grad_logprobs_N.unsqueeze(1) / temperature
    if grad_entropy_N is None:
        gradients = log_p.exp_().mul_(-of_logprob)
    else:
        of_entropy = grad_entropy_N.unsqueeze(1) / temperature
        inner = (log_p + entropy_N.unsqueeze(1)).mul_(of_entropy).add_(of_logprob)
        gradients = log_p.exp_().mul_(inner).neg_()
    if gradients.shape[1]:
        column, mine = _within(column_N, gradients.shape[1])
        gradients.scatter_add_(1, column, of_logprob * mine.unsqueeze(1))
    return gradients.to(dtype)


def _within(column_N: torch.Tensor, num_columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(column of each label, [N, 1], 0 where it is not here; whether it is here, [N])."""
    mine = (column_N >= 0) & (column_N < num_columns)
    return torch.where(mine, column_N, 0).unsqueeze(1), mine
