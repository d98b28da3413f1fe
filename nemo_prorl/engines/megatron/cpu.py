"""Lets Megatron-Core run on a machine without CUDA.

Megatron-Core names the CUDA device in its code instead of asking where a tensor is. `install` makes those names mean
the CPU; everything else in Megatron runs unchanged, on gloo. Where CUDA is available, `install` does nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import _device

_CPU = torch.device("cpu")
_installed = False


def install() -> None:
    """Redirects CUDA calls to the CPU. Has to be called before anything of Megatron is imported; may be repeated."""
    global _installed
    if _installed or torch.cuda.is_available():
        return
    _installed = True
    # Under `with torch.device("meta")`, where transformers builds models, torch recognises tensor constructors by
    # identity and caches their list on first use. It has to hold the originals: with wrapped ones in it, buffers of
    # such models would keep garbage.
    _device._device_constructors()
    _redirect_cuda_calls()
    _redirect_tensor_constructors()
    _redirect_tensor_types()
    # Megatron's small fused functions stay plain Python: compiling them on CPU would start a C++ compiler for a few
    # additions.
    compile_: Any = torch.compile
    torch.compile = lambda function: function  # type: ignore[assignment]
    try:
        import megatron.core.jit  # noqa: F401  binds torch.compile at import
        from megatron.core.tensor_parallel import random
    finally:
        torch.compile = compile_
    # Recomputation of activations restores the CPU's random state.
    random._get_cuda_rng_state = lambda *_args, **_kwargs: torch.get_rng_state()
    random._set_cuda_rng_state = lambda state, *_args, **_kwargs: torch.set_rng_state(state)


def _redirect_cuda_calls() -> None:
    """Replaces the calls that Megatron makes even without a GPU, since each would try to initialise CUDA. Each gets a
    function of its own: torch.compile keeps its rules by function and fails to import if two names share one."""

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
    """Makes tensor constructors use the CPU for device="cuda", and for an integer as device, which is what
    `torch.cuda.current_device()` returns."""

    def redirected(constructor: Any) -> Any:
        @functools.wraps(constructor)
        def construct(*args: Any, **kwargs: Any) -> torch.Tensor:
            device = kwargs.get("device")
            if device is not None and (isinstance(device, int) or torch.device(device).type == "cuda"):
                kwargs["device"] = _CPU
            return constructor(*args, **kwargs)

        return construct

    for name in ("zeros", "ones", "empty", "full", "tensor", "arange"):
        setattr(torch, name, redirected(getattr(torch, name)))


def _redirect_tensor_types() -> None:
    """Makes `Tensor.type()` return CUDA's names: Megatron's optimizers recognise precisions by
    `param.type() == "torch.cuda.FloatTensor"`."""
    original = torch.Tensor.type

    def named(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        if isinstance(result, str) and not result.startswith("torch.cuda."):
            return result.replace("torch.", "torch.cuda.", 1)
        return result

    tensor: Any = torch.Tensor
    tensor.type = named


@contextmanager
def passes(num_threads: int) -> Iterator[None]:
    """Runs the `with` block, which computes passes through the model, with `num_threads` CPU threads, and with the
    faster kernels for fp32 products where they are exact (`_onednn_is_exact`)."""
    mkldnn: Any = torch.backends.mkldnn
    before = torch.get_num_threads(), mkldnn.matmul.fp32_precision
    # torch's internal function, because vLLM disables torch.set_num_threads.
    set_num_threads: Any = torch._C.set_num_threads  # type: ignore[attr-defined]
    set_num_threads(num_threads)
    if _onednn_is_exact():
        mkldnn.matmul.fp32_precision = "bf16"
    try:
        yield
    finally:
        set_num_threads(before[0])
        mkldnn.matmul.fp32_precision = before[1]


@functools.cache
def _onednn_is_exact() -> bool:
    """Returns whether oneDNN computes fp32 products in full precision although it may round them to bf16.

    torch uses oneDNN for them only if it may. Otherwise it uses MKL, which leaves out AVX-512 on processors that are
    not Intel's, and is half as fast there. On processors with AMX oneDNN does round."""
    mkldnn: Any = torch.backends.mkldnn
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(64, 512, generator=generator) for _ in range(2))
    exact = left.double() @ right.double().t()
    before = mkldnn.matmul.fp32_precision
    mkldnn.matmul.fp32_precision = "bf16"
    try:
        error = (left @ right.t() - exact).abs().max()
    finally:
        mkldnn.matmul.fp32_precision = before
    return float(error) < 1e-3  # in fp32 1e-4, in bf16 0.2
