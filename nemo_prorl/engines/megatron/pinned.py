"""Host memory for copies of tensors: pinned where these are on a GPU, which then copies several times faster and, with
`non_blocking`, while the host goes on."""

from __future__ import annotations

import torch


def empty_on_host(tensor: torch.Tensor) -> torch.Tensor:
    """Returns memory on the host for a contiguous copy of the tensor. It has the tensor's size, as
    `engines.environment.set_allocator` makes torch take it."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
