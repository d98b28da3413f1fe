"""Counts what would make the host wait for a GPU. The stand-in for the GPU is torch's device `meta`, whose tensors
have no values: whatever reads one raises."""

from __future__ import annotations

from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Waits(TorchDispatchMode):
    """Counts numbers and lists that are read from tensors, and copies from one device to another that block."""

    count = 0

    def __enter__(self) -> Waits:
        tolist = torch.Tensor.tolist

        def counted(tensor: torch.Tensor) -> Any:
            self.count += 1
            return tolist(tensor)

        self._patch = mock.patch.object(torch.Tensor, "tolist", counted)
        self._patch.start()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._patch.stop()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._local_scalar_dense.default:
            self.count += 1
        if func is torch.ops.aten._to_copy.default and result.device != args[0].device:
            self.count += not (kwargs or {}).get("non_blocking")
        return result
