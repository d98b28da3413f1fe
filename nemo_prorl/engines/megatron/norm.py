"""Two layers for Megatron's local spec, which lacks them: an RMSNorm that supports sequence parallelism, and a causal
attention that never stores its [T, T] scores. Transformer Engine has its own versions of both."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from nemo_prorl.engines.megatron.core import MegatronModule, TransformerConfig


class RMSNorm(torch.nn.Module):
    """RMSNorm over the last dimension. Megatron's own wrapper refuses sequence parallelism, under which each rank sees
    a part of the tokens, so the weight's gradient must be summed over tensor-parallel ranks. `finalize_model_grads`
    does this for weights with the attribute `sequence_parallel`."""

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
    """RMSNorm for the CPU, with six passes over the activations, forward and backward; torch's own makes a dozen."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        size = x.shape[-1]
        scale = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(size).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, scale)
        return (x * scale).mul_(weight)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        """Returns dx = scale (g w - n mean(g w n)) and dw = sum(g n), with n = x scale."""
        x, weight, scale = ctx.saved_tensors
        normed = x * scale
        product = grad * normed
        grad_weight = product.flatten(0, -2).sum(0)
        mean = torch.matmul(product, weight).unsqueeze(-1).div_(-x.shape[-1])
        return (grad * weight).addcmul_(normed, mean).mul_(scale), grad_weight, None


class CausalAttention(MegatronModule):
    """Replacement for Megatron's DotProductAttention, for sequences padded on the right: under a causal mask no real
    token sees the padding, so no further mask is needed. Memory grows with T instead of its square, and results do not
    depend on the amount of padding."""

    def __init__(self, config: TransformerConfig, layer_number: int, **_unused: Any) -> None:
        super().__init__(config=config)

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_unused: Any, **_also_unused: Any
    ) -> torch.Tensor:
        """Returns [T, B, heads * D] from query [T, B, heads, D] and key and value [T, B, kv_heads, D]."""
        repeats = query.shape[2] // key.shape[2]
        if repeats > 1:
            key, value = (x.repeat_interleave(repeats, dim=2) for x in (key, value))
        query, key, value = (x.permute(1, 2, 0, 3) for x in (query, key, value))
        context = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return context.permute(2, 0, 1, 3).flatten(2)
