"""Host memory that a GPU reads and writes at the full speed of its bus, allocated once and to the byte.

torch's own pinned memory is rounded up to powers of two, tensor by tensor: for the optimizer states of a 7B policy that
would be nearly twice their size.
"""

from __future__ import annotations

import mmap
from typing import Any

import torch


def pinned_like(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor of 0s in host memory, of the shape and type of `tensor`; pinned as long as it exists if `tensor`
    is on a GPU. Raises RuntimeError if CUDA cannot pin the memory."""
    size = max(1, tensor.numel()) * tensor.element_size()
    memory = _Pinned(-1, size) if tensor.is_cuda else mmap.mmap(-1, size)
    host = torch.frombuffer(memory, dtype=tensor.dtype)
    if isinstance(memory, _Pinned):
        memory.pin(host.data_ptr(), torch.cuda.cudart())
    return host[: tensor.numel()].view(tensor.shape)


class _Pinned(mmap.mmap):
    """Pages that CUDA has pinned, until nothing refers to them any more."""

    def pin(self, address: int, cudart: Any) -> None:
        error = cudart.cudaHostRegister(address, len(self), 0)
        if error != cudart.cudaError.success:
            raise RuntimeError(f"CUDA cannot pin {len(self):,} bytes of host memory: {error}.")
        self._unpin = lambda: cudart.cudaHostUnregister(address)

    # It runs before the pages are unmapped, which a weak reference's callback would not.
    def __del__(self) -> None:
        if unpin := getattr(self, "_unpin", None):
            unpin()
