"""The two layers that Megatron's local spec lacks: an RMSNorm that may run under sequence parallelism, and a causal
attention that never stores its [T, T] scores. Transformer Engine brings its own of both."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from nemo_prorl.engines.megatron.core import MegatronModule, TransformerConfig


class RMSNorm(torch.nn.Module):
    """Over the last dimension. Megatron's own wrapper refuses sequence parallelism, under which each rank sees a part
    of the tokens, so that the weight's gradient must be summed over tensor-parallel ranks: that is what the
    `sequence_parallel` mark on the weight asks `finalize_model_grads` to do."""

    def __init__(
        self, config: TransformerConfig, hidden_size: int, eps: float = 1e-6, **_unused: Any
    ) -> None:
        super().__init__()
        self.eps = eps
        self.weight = torch.nn.Parameter(
            torch.ones(hidden_size, dtype=config.params_dtype, device=torch.cuda.current_device())
        )
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.is_cuda or x.dtype != self.weight.dtype or x.dtype not in (torch.float32, torch.float64):
            return F.rms_norm(x, self.weight.shape, self.weight, self.eps)
        normed: torch.Tensor = _RMSNorm.apply(x, self.weight, self.eps)
        return normed


class _RMSNorm(torch.autograd.Function):
    """torch composes the norm on CPU of a dozen passes over the activations, forward and backward; these are six."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        size = x.shape[-1]
        scale = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(size).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, scale)
        return (x * scale).mul_(weight)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        """With n = x scale: dx = scale (g w - n mean(g w n)), dw = sum(g n)."""
        x, weight, scale = ctx.saved_tensors
        normed = x * scale
        product = grad * normed
        grad_weight = product.flatten(0, -2).sum(0)
        mean = torch.matmul(product, weight).unsqueeze(-1).div_(-x.shape[-1])
        return (grad * weight).addcmul_(normed, mean).mul_(scale), grad_weight, None


class CausalAttention(MegatronModule):
    """Drop-in for Megatron's DotProductAttention, for sequences padded on the right: under a causal mask no real token
    sees the padding, so no mask is needed. Memory grows with T instead of its square, and results do not depend on
    how far a sequence is padded."""

    def __init__(self, config: TransformerConfig, layer_number: int, **_unused: Any) -> None:
        super().__init__(config=config)

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_unused: Any, **_also_unused: Any
    ) -> torch.Tensor:
        """query [T, B, heads, D], key and value [T, B, kv_heads, D] -> [T, B, heads * D]."""
        repeats = query.shape[2] // key.shape[2]
        if repeats > 1:
            key, value = (x.repeat_interleave(repeats, dim=2) for x in (key, value))
        query, key, value = (x.permute(1, 2, 0, 3) for x in (query, key, value))
        context = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return context.permute(2, 0, 1, 3).flatten(2)
