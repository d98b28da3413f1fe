"""Lets Megatron-Core run on a machine without CUDA.

Megatron-Core names the CUDA device in its code instead of asking where a tensor is. `install` makes those names mean
the CPU; everything else in Megatron runs as it is, on gloo. It does nothing where CUDA is available.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_CPU = torch.device("cpu")
_installed = False


def install() -> None:
    """Call before anything of Megatron is imported. Idempotent."""
    global _installed
    if _installed or torch.cuda.is_available():
        return
    _installed = True
    _keep_meta_device_working()
    _redirect_cuda_calls()
    _redirect_tensor_constructors()
    _redirect_tensor_types()
    _redirect_megatron()


def _keep_meta_device_working() -> None:
    """`with torch.device("meta")`, on which transformers builds models, recognises constructors by identity and caches
    the list on first use: fill it with the originals before they are wrapped, or such models keep garbage buffers."""
    from torch.utils import _device

    _device._device_constructors()


def _redirect_cuda_calls() -> None:
    """The calls that Megatron makes whether or not it has a GPU; each would try to initialise CUDA. One function each:
    torch.compile keeps rules by function and refuses to load when two calls are one."""

    def nothing() -> Any:
        return lambda *_args, **_kwargs: None

    cuda: Any = torch.cuda
    cuda.current_device = lambda: _CPU
    cuda.set_device = nothing()
    cuda.synchronize = nothing()
    cuda.get_rng_state = lambda *_args, **_kwargs: torch.get_rng_state()
    cuda.random.get_rng_state = cuda.get_rng_state
    cuda.set_rng_state = lambda state, *_args, **_kwargs: torch.set_rng_state(state)
    cuda.manual_seed = lambda seed: torch.manual_seed(seed)
    tensor: Any = torch.Tensor
    tensor.cuda = lambda self, *_args, **_kwargs: self


def _redirect_tensor_constructors() -> None:
    """`torch.zeros(..., device="cuda")` and an index as device (`torch.cuda.current_device()`)."""

    def redirected(constructor: Any) -> Any:
        @functools.wraps(constructor)
        def construct(*args: Any, **kwargs: Any) -> torch.Tensor:
            device = kwargs.get("device")
            if device is not None and (isinstance(device, int) or torch.device(device).type == "cuda"):
                kwargs["device"] = _CPU
            result: torch.Tensor = constructor(*args, **kwargs)
            return result

        return construct

    for name in ("zeros", "ones", "empty", "full", "tensor", "arange"):
        setattr(torch, name, redirected(getattr(torch, name)))


def _redirect_tensor_types() -> None:
    """The optimizers tell precisions apart by `param.type() == "torch.cuda.FloatTensor"`."""
    original = torch.Tensor.type

    def named(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        if isinstance(result, str) and not result.startswith("torch.cuda."):
            return result.replace("torch.", "torch.cuda.", 1)
        return result

    tensor: Any = torch.Tensor
    tensor.type = named


def _redirect_megatron() -> None:
    """Megatron compiles small fused functions where it defines them: without a GPU that starts a C++ compiler for a
    handful of additions, so they stay plain Python. And recomputation of activations keeps the CPU's random state."""
    compile_: Any = torch.compile
    torch.compile = lambda function: function  # type: ignore[assignment]
    try:
        import megatron.core.jit  # noqa: F401  takes torch.compile as its fuser
        from megatron.core.tensor_parallel import random
    finally:
        torch.compile = compile_
    random._get_cuda_rng_state = lambda *_args, **_kwargs: torch.get_rng_state()
    random._set_cuda_rng_state = lambda state, *_args, **_kwargs: torch.set_rng_state(state)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Runs the body with `count` CPU threads. vLLM replaces torch.set_num_threads by nothing, hence the original."""
    before = torch.get_num_threads()
    if count == before:
        yield
        return
    set_num_threads: Any = torch._C.set_num_threads  # type: ignore[attr-defined]
    set_num_threads(count)
    try:
        yield
    finally:
        set_num_threads(before)
