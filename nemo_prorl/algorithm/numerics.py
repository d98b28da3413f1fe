"""Arithmetic that several terms of the loss share, and the way of their inputs to the device."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray

_MAX_EXPONENT = 80.0
"""exp(80) = 5.5e34 still fits float32."""


def at_least_float32(values: torch.Tensor) -> torch.Tensor:
    """Converts to float32 unless the precision is higher. In bf16, with 8 bits, a ratio is off by up to 0.4 %."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def on_device(values: NDArray[Any], device: torch.device, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Returns a copy on the device. It goes through pinned memory, so that the host does not wait for the work that a
    GPU has still to do."""
    copy = torch.tensor(values, dtype=dtype)
    return copy if device.type == "cpu" else copy.pin_memory().to(device, non_blocking=True)


def exp(exponent: torch.Tensor) -> torch.Tensor:
    """Returns exp(exponent), with a gradient of 0 instead of infinity where the value is infinite.

    If a clip discards such a value, 0 * infinity would make its gradient NaN. If nothing does, the infinite loss makes
    the policy refuse the update, which a silently clamped value would not.
    """
    return torch.where(exponent > _MAX_EXPONENT, torch.inf, exponent.clamp(max=_MAX_EXPONENT).exp())


def response_sum(values_BT: torch.Tensor) -> torch.Tensor:
    """Returns [B, T]: the sum over the rollout, for each token. `values_BT` must be 0 outside the response."""
    return values_BT.sum(dim=1, keepdim=True).expand_as(values_BT)


def response_mean(values_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """Returns [B, T]: the mean over the rollout's response tokens, for each token; 0 if there are none. `values_BT`
    must be 0 outside the response."""
    return response_sum(values_BT) / mask_BT.sum(dim=1, keepdim=True).clamp(min=1)
