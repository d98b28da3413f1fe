"""Host memory for copies of tensors: pinned where these are on a GPU, which then copies several times faster and, with
`non_blocking`, while the host goes on."""

from __future__ import annotations

from collections import defaultdict

import torch


def empty_on_host(tensor: torch.Tensor) -> torch.Tensor:
    """Returns memory on the host for a contiguous copy of the tensor. It has the tensor's size, as
    `engines.environment.set_allocator` makes torch take it."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)


class Copies:
    """Copies of tensors on the host, in memory that may be used again: pinning it takes long."""

    def __init__(self, *, keep: bool) -> None:
        """keep: whether memory is to be given back; else each copy is freed by whoever holds it."""
        self.keep = keep
        self._free: dict[tuple[torch.Size, torch.dtype, bool], list[torch.Tensor]] = defaultdict(list)

    def begin(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a copy that is complete when the host has waited for the GPU."""
        free = self._free[tensor.shape, tensor.dtype, tensor.is_cuda]
        return (free.pop() if free else empty_on_host(tensor)).copy_(tensor, non_blocking=True)

    def give_back(self, copies: list[torch.Tensor]) -> None:
        """Takes copies that nobody will read again, and empties the list. May be called from another thread."""
        while copies:
            copy = copies.pop()
            self._free[copy.shape, copy.dtype, copy.is_pinned()].append(copy)
