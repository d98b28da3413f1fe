"""Arithmetic that several terms of the loss share."""

from __future__ import annotations

import torch

_MAX_EXPONENT = 80.0
"""exp(80) = 5.5e34 still fits float32."""


def at_least_float32(values: torch.Tensor) -> torch.Tensor:
    """bf16 has 8 bits of mantissa: a ratio would be wrong by up to 0.4 %."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def exp(exponent: torch.Tensor) -> torch.Tensor:
    """exp with gradient 0 instead of infinity where the value is infinite.

    Where a clip discards such a value, 0 * infinity would make its gradient NaN. Where nothing does, the infinite
    loss gets the update refused, which a value that was cut off quietly would not.
    """
    return torch.where(exponent > _MAX_EXPONENT, torch.inf, exponent.clamp(max=_MAX_EXPONENT).exp())


def response_sum(values_BT: torch.Tensor) -> torch.Tensor:
    """[B, T]: each token gets the sum over its rollout. `values_BT` must be 0 outside the response."""
    return values_BT.sum(dim=1, keepdim=True).expand_as(values_BT)


def response_mean(values_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """[B, T]: each token gets the mean over the response tokens of its rollout, 0 where there are none. `values_BT`
    must be 0 outside the response."""
    return response_sum(values_BT) / mask_BT.sum(dim=1, keepdim=True).clamp(min=1)
