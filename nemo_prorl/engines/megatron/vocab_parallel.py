"""Log-probability and entropy over a vocabulary that may be sharded, without the logits of all tokens in memory.

The logits of a batch would be by far the largest tensor of a training step (8k tokens x 152k entries x 4 bytes = 5 GB).
Here they exist for `chunk_tokens` tokens at a time: in the forward pass and, recomputed, in the backward pass. Between
the two only the log-normaliser and the entropy of each token are kept, so the backward pass needs no communication
over the vocabulary.

Shapes: N tokens, H hidden size, V vocabulary entries of this rank's shard.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from nemo_prorl.engines.megatron import softmax_plain


def logprob_and_entropy(
    hidden_NH: torch.Tensor,
    weight_VH: torch.Tensor,
    labels_N: torch.Tensor,
    *,
    vocab_size: int,
    temperature: float,
    chunk_tokens: int,
    group: Any = None,
    fused: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the label's log-probability [N] and the entropy in nats [N] of softmax(hidden @ weight.T / temperature),
    in fp32. Both can be differentiated; the entropy's gradient costs nothing if it is not used.

    group: ranks that hold consecutive shards of the vocabulary, in rank order; None means that this rank holds all of
    it. `hidden_NH` and `labels_N` are equal on all of them, and so are the results and the gradient of `hidden_NH`.
    The gradient of a 16-bit `weight_VH` is added to its fp32 `main_grad` if it has one (Megatron-Core's buffer).
    vocab_size: rows at or beyond it, counted over all shards, are padding, with probability 0 and no gradient.
    fused: use the Triton kernels of softmax_triton.py, which requires `can_fuse`.
    """
    kernels: Any = softmax_plain
    if fused:
        from nemo_prorl.engines.megatron import softmax_triton

        kernels = softmax_triton
    rank, size = (dist.get_rank(group), dist.get_world_size(group)) if group is not None else (0, 1)
    start = rank * weight_VH.shape[0]
    shard = _Shard(
        num_valid=max(0, min(weight_VH.shape[0], vocab_size - start)),
        group=group if size > 1 else None,
        temperature=temperature,
        chunk_tokens=chunk_tokens,
        kernels=kernels,
    )
    columns_N = labels_N - start  # outside of [0, num_valid) if another rank holds the label
    logprobs, entropy = _ChunkedHead.apply(hidden_NH, weight_VH, columns_N, shard)
    return logprobs, entropy


def can_fuse(device: torch.device) -> bool:
    """Returns whether softmax_triton.py can run on tensors of this device."""
    return device.type == "cuda" and importlib.util.find_spec("triton") is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shard:
    """This rank's shard of the vocabulary, and how to process the tokens."""

    num_valid: int
    """Number of entries before the padding."""
    group: Any
    temperature: float
    chunk_tokens: int
    kernels: Any
    """The module softmax_plain or softmax_triton."""

    def chunks(self, num_tokens: int) -> list[slice]:
        return [
            slice(i, min(i + self.chunk_tokens, num_tokens)) for i in range(0, num_tokens, self.chunk_tokens)
        ]

    def logits(self, hidden: torch.Tensor, weight_VH: torch.Tensor) -> torch.Tensor:
        """Returns the logits [chunk, num_valid] in at least fp32."""
        return _product(hidden, weight_VH[: self.num_valid].t())


class _ChunkedHead(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, columns: torch.Tensor, shard: _Shard
    ) -> tuple[torch.Tensor, torch.Tensor]:
        dtype = torch.promote_types(hidden.dtype, torch.float32)
        logprobs, entropy, log_normaliser = hidden.new_empty(3, hidden.shape[0], dtype=dtype).unbind()
        for part in shard.chunks(hidden.shape[0]):
            statistics_4N = shard.kernels.statistics(
                shard.logits(hidden[part], weight), columns[part], shard.temperature
            )
            peak, total, weighted, label_z = _merge(statistics_4N, shard.group)
            log_sum = total.log()
            logprobs[part] = label_z - peak - log_sum
            entropy[part] = log_sum - weighted / total
            log_normaliser[part] = log_sum + peak
        ctx.save_for_backward(hidden, weight, columns, log_normaliser, entropy)
        ctx.shard = shard
        ctx.set_materialize_grads(False)
        return logprobs, entropy

    @staticmethod
    def backward(  # type: ignore[override]
        ctx: Any, grad_logprobs: torch.Tensor | None, grad_entropy: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, columns, log_normaliser, entropy = ctx.saved_tensors
        shard: _Shard = ctx.shard
        if grad_logprobs is None:
            grad_logprobs = torch.zeros_like(entropy)
        grad_hidden = torch.empty_like(hidden)
        grad_weight = sums = None
        if ctx.needs_input_grad[1]:  # not in low-rank training
            sums = getattr(weight, "main_grad", None)
            if sums is None or sums.dtype == weight.dtype:
                sums = grad_weight = torch.zeros_like(weight, dtype=entropy.dtype)
        for part in shard.chunks(hidden.shape[0]):
            grad_logits = shard.kernels.gradient(
                shard.logits(hidden[part], weight),
                columns[part],
                shard.temperature,
                log_normaliser[part],
                entropy[part],
                grad_logprobs[part],
                None if grad_entropy is None else grad_entropy[part],
                hidden.dtype,
            )
            # For a 16-bit result cuBLAS may add partial sums in 16 bits, too coarse for sums over a vocabulary
            # (torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction).
            if grad_logits.is_cuda:
                grad_hidden[part] = _product(grad_logits, weight[: shard.num_valid])
            else:
                torch.mm(grad_logits, weight[: shard.num_valid], out=grad_hidden[part])
            if sums is not None:
                # Added in the precision of the sum, without a second tensor of its size.
                total = sums[: shard.num_valid]
                if grad_logits.is_cuda and grad_logits.dtype != total.dtype:
                    torch.addmm(total, grad_logits.t(), hidden[part], out_dtype=total.dtype, out=total)
                else:
                    total.addmm_(grad_logits.t().to(total.dtype), hidden[part].to(total.dtype))
            del grad_logits  # before the next chunk's are made
        if shard.group is not None:
            dist.all_reduce(grad_hidden, group=shard.group)
        if grad_weight is not None:
            grad_weight = grad_weight.to(weight.dtype)
        elif sums is not None:
            # Tells Megatron's hook not to add it, which yet waits for some gradient: of a tied matrix the embedding's.
            weight.grad_added_to_main_grad = True
            grad_weight = None if getattr(weight, "zero_out_wgrad", False) else torch.empty_like(weight)
        return grad_hidden, grad_weight, None, None


def _merge(statistics_4N: torch.Tensor, group: Any) -> tuple[torch.Tensor, ...]:
    """Returns the `statistics` of the whole vocabulary, each [N], from this rank's shard: the sums of all
    ranks are rescaled to the common maximum and added. Collective over `group`."""
    if group is None:
        return statistics_4N.unbind()
    own_peak, total, weighted, label_z = statistics_4N.unbind()
    peak = own_peak.clone()
    dist.all_reduce(peak, op=dist.ReduceOp.MAX, group=group)
    drop = torch.where(own_peak == -torch.inf, 0.0, own_peak - peak)
    shrink = drop.exp()
    sums = torch.stack([total * shrink, (weighted + drop * total) * shrink, label_z])
    dist.all_reduce(sums, group=group)
    return peak, *sums.unbind()


def _product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Returns left @ right in at least fp32: 16-bit logits would be rounded to steps of up to 0.1 nats."""
    if left.dtype in (torch.float32, torch.float64):
        return left @ right
    if left.is_cuda:
        return torch.mm(left, right, out_dtype=torch.float32)
    return left.float() @ right.float()
