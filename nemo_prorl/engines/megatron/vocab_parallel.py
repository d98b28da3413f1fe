"""Log-probability and entropy over a vocabulary that may be sharded, with the logits of no more than a chunk of tokens.

Logits of a batch would be the largest tensor of a training step by far (8k tokens x 152k entries x 4 bytes = 5 GB).
Here they exist for `chunk_tokens` tokens at a time, in the forward pass and again, recomputed, in the backward pass.
Between the two only the log-normaliser and the entropy of each token are kept, so the backward pass needs no
communication over the vocabulary.

Shapes: N tokens, H hidden size, V vocabulary entries of this rank's shard.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist


def logprob_and_entropy(
    hidden_NH: torch.Tensor,
    weight_VH: torch.Tensor,
    labels_N: torch.Tensor,
    *,
    vocab_size: int,
    temperature: float,
    chunk_tokens: int,
    group: Any = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(log-probability of the label [N], entropy in nats [N]) of softmax(hidden @ weight.T / temperature), in fp32.

    `group`: ranks that hold consecutive shards of the vocabulary, in rank order; None: this rank holds all of it.
    `hidden_NH` and `labels_N` are the same on all of them, and so are the results and the gradient of `hidden_NH`.
    Rows at or beyond `vocab_size`, counted over all shards, are padding: they get no probability and no gradient.
    Both results can be differentiated; the entropy's gradient costs nothing where it is not used.
    """
    rank, size = (dist.get_rank(group), dist.get_world_size(group)) if group is not None else (0, 1)
    start = rank * weight_VH.shape[0]
    shard = _Shard(
        start=start,
        num_valid=max(0, min(weight_VH.shape[0], vocab_size - start)),
        group=group if size > 1 else None,
        temperature=temperature,
        chunk_tokens=chunk_tokens,
    )
    logprobs, entropy = _ChunkedHead.apply(hidden_NH, weight_VH, labels_N, shard)
    return logprobs, entropy


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shard:
    """This rank's part of the vocabulary and how to work through the tokens."""

    start: int
    num_valid: int
    """Entries before the padding."""
    group: Any
    temperature: float
    chunk_tokens: int

    def chunks(self, num_tokens: int) -> list[slice]:
        return [
            slice(i, min(i + self.chunk_tokens, num_tokens)) for i in range(0, num_tokens, self.chunk_tokens)
        ]

    def logits(self, hidden: torch.Tensor, weight_VH: torch.Tensor) -> torch.Tensor:
        """[chunk, num_valid] at temperature, at least fp32."""
        logits = _product(hidden, weight_VH[: self.num_valid].t())
        return logits.div_(self.temperature) if self.temperature != 1.0 else logits

    def locate(self, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(column of each label, [chunk, 1], 0 where another rank holds it; whether this rank holds it, [chunk])."""
        local = labels - self.start
        mine = (local >= 0) & (local < self.num_valid)
        return torch.where(mine, local, 0).unsqueeze(1), mine


class _ChunkedHead(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, shard: _Shard
    ) -> tuple[torch.Tensor, torch.Tensor]:
        dtype = torch.promote_types(hidden.dtype, torch.float32)
        logprobs, entropy, log_normaliser = hidden.new_empty(3, hidden.shape[0], dtype=dtype).unbind()
        for part in shard.chunks(hidden.shape[0]):
            logits = shard.logits(hidden[part], weight)
            peak = logits.amax(dim=1) if shard.num_valid else logits.new_full(logits.shape[:1], -torch.inf)
            if shard.group is not None:
                dist.all_reduce(peak, op=dist.ReduceOp.MAX, group=shard.group)
            logits.sub_(peak.unsqueeze(1))
            column, mine = shard.locate(labels[part])
            of_label = logits.gather(1, column).squeeze(1) if shard.num_valid else torch.zeros_like(peak)
            of_label = torch.where(mine, of_label, 0.0)
            exponentials = logits.exp()
            sums = torch.stack([exponentials.sum(1), of_label, exponentials.mul_(logits).sum(1)])
            if shard.group is not None:
                dist.all_reduce(sums, group=shard.group)
            log_sum = sums[0].log()
            logprobs[part] = sums[1] - log_sum
            entropy[part] = log_sum - sums[2] / sums[0]
            log_normaliser[part] = log_sum + peak
        ctx.save_for_backward(hidden, weight, labels, log_normaliser, entropy)
        ctx.shard = shard
        ctx.set_materialize_grads(False)
        return logprobs, entropy

    @staticmethod
    def backward(  # type: ignore[override]
        ctx: Any, grad_logprobs: torch.Tensor | None, grad_entropy: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        """d logp / d z_j = [j is the label] - p_j;  d H / d z_j = -p_j (log p_j + H);  z = logits at temperature."""
        hidden, weight, labels, log_normaliser, entropy = ctx.saved_tensors
        shard: _Shard = ctx.shard
        if grad_logprobs is None:
            grad_logprobs = torch.zeros_like(entropy)
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros_like(weight, dtype=entropy.dtype)
        for part in shard.chunks(hidden.shape[0]):
            log_p = shard.logits(hidden[part], weight).sub_(log_normaliser[part].unsqueeze(1))
            of_logprob = grad_logprobs[part].unsqueeze(1) / shard.temperature
            if grad_entropy is None:
                grad_logits = log_p.exp_().mul_(-of_logprob)
            else:
                of_entropy = grad_entropy[part].unsqueeze(1) / shard.temperature
                inner = (log_p + entropy[part].unsqueeze(1)).mul_(of_entropy).add_(of_logprob)
                grad_logits = log_p.exp_().mul_(inner).neg_()
            column, mine = shard.locate(labels[part])
            if shard.num_valid:
                grad_logits.scatter_add_(1, column, of_logprob * mine.unsqueeze(1))
            grad_logits = grad_logits.to(hidden.dtype)
            torch.mm(grad_logits, weight[: shard.num_valid], out=grad_hidden[part])
            grad_weight[: shard.num_valid].add_(_product(grad_logits.t(), hidden[part]))
        if shard.group is not None:
            dist.all_reduce(grad_hidden, group=shard.group)
        return grad_hidden, grad_weight.to(weight.dtype), None, None


def _product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """left @ right in at least fp32: 16-bit logits would be rounded to steps of up to 0.1 nats."""
    if left.dtype in (torch.float32, torch.float64):
        return left @ right
    if left.is_cuda:
        return torch.mm(left, right, out_dtype=torch.float32)
    return left.float() @ right.float()
