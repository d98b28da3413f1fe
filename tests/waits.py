"""Counts what would make the host wait for a GPU, and what is copied. The stand-ins for the GPU are torch's device
`meta`, whose tensors have no values (whatever reads one raises), and copies that are made late."""

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


class CopiedBytes(TorchDispatchMode):
    """Counts the bytes of all copies that torch makes meanwhile, except small ones, which are random states. late:
    makes those that need not be waited for when `arrive` is called."""

    def __init__(self, *, late: bool = False) -> None:
        super().__init__()
        self.total, self._late, self._copies = 0, late, list[tuple[torch.Tensor, torch.Tensor]]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        aten = torch.ops.aten
        if func is aten.copy_.default and self._late and args[2:] == (True,):
            self._copies.append(args[:2])
            return args[0].fill_(torch.nan)
        result = func(*args, **(kwargs or {}))
        if func in (aten._to_copy.default, aten.clone.default, aten.copy_.default):
            self.total += result.nbytes if result.device.type == "cpu" else 0
        return result

    def arrive(self) -> int:
        """Returns the bytes that were still to arrive."""
        num_bytes = 0
        while self._copies:
            target, source = self._copies.pop()
            num_bytes += target.copy_(source).nbytes
        return num_bytes
