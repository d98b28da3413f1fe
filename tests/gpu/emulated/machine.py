"""Makes this process believe that its CPU is an H100. Transformer Engine's kernels are emulated (extension.py).

`install` replaces names in this process and writes nothing. What torch says of a GPU it says only to Transformer
Engine, Megatron-Core and the policy: the sampler, torch.distributed and torch itself go on using the CPU.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

BELIEVERS = ("/transformer_engine/", "/megatron/core/", "/nemo_prorl/engines/megatron/")
"""Parts of the paths of the files that are told of a GPU."""

H100 = SimpleNamespace(
    name="NVIDIA H100 80GB HBM3",
    major=9,
    minor=0,
    total_memory=85_028_569_088,
    multi_processor_count=132,
)


def is_installable() -> bool:
    """Returns whether the Python of Transformer Engine and Triton, which it imports, are there."""
    return all(importlib.util.find_spec(name) is not None for name in ("transformer_engine", "triton"))


def install() -> None:
    """Replaces the kernels and the answers about the device. Has to be called before the engines are imported; may be
    repeated."""
    if "transformer_engine_torch" in sys.modules:
        return
    if not is_installable():
        raise ModuleNotFoundError(
            "the Python of Transformer Engine, or Triton, is not here: run `make test-te`"
        )
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    _import_transformer_engine()
    import nemo_prorl.engines.megatron.core  # noqa: F401  makes the name "cuda" mean the CPU

    _answer_as_h100()
    _set_what_needs_a_driver()


def _import_transformer_engine() -> None:
    """Imports Transformer Engine's Python, with extension.py in the place of its compiled part, and without its core
    library, cuBLAS and cuDNN, which a set-up of it (NVTE_PROJECT_BUILDING) does without too."""
    from tests.gpu.emulated import extension

    sys.modules["transformer_engine_torch"] = extension
    os.environ["NVTE_PROJECT_BUILDING"] = "1"
    spec: Any = importlib.util.find_spec("transformer_engine")
    package = sys.modules["transformer_engine"] = importlib.util.module_from_spec(spec)
    common: Any = importlib.import_module("transformer_engine.common")
    common.load_framework_extension = lambda _framework: None
    spec.loader.exec_module(package)
    del os.environ["NVTE_PROJECT_BUILDING"]
    importlib.import_module("transformer_engine.pytorch")
    # This module has copied the names that are defined; it passes on requests for the others.
    copies: Any = importlib.import_module("transformer_engine.pytorch.cpp_extensions")
    copies.__getattr__ = extension.__getattr__


def _answer_as_h100() -> None:
    import torch

    def believes(depth: int = 2) -> bool:
        file = sys._getframe(depth).f_code.co_filename.replace(os.sep, "/")
        return any(part in file for part in BELIEVERS)

    cuda: Any = torch.cuda
    is_available = cuda.is_available
    cuda.is_available = lambda: believes() or is_available()
    cuda.get_device_properties = lambda device=None: H100
    cuda.get_device_capability = lambda device=None: (H100.major, H100.minor)
    cuda.get_device_name = lambda device=None: H100.name
    cuda.is_current_stream_capturing = lambda: False
    torch.version.cuda = torch.version.cuda or "13.0"
    tensor: Any = torch.Tensor
    tensor.is_cuda = property(lambda self: "/transformer_engine/" in sys._getframe(1).f_code.co_filename)

    from nemo_prorl.engines.megatron import check

    check.has_cuda = lambda: True
    check.has_transformer_engine = lambda: True


def _set_what_needs_a_driver() -> None:
    """Replaces the few calls of Transformer Engine that would start CUDA or NCCL."""
    import torch
    import transformer_engine.pytorch.distributed as distributed

    @contextmanager
    def one_by_one(*_args: Any, **_kwargs: Any) -> Iterator[Any]:
        """In the place of NCCL's grouping of collectives, which gloo lacks: each is complete when it returns."""
        yield SimpleNamespace(wait=lambda: None)

    distributed.torch = _with(torch, distributed=_with(torch.distributed, _coalescing_manager=one_by_one))
    distributed._get_cuda_rng_state = lambda *_args, **_kwargs: torch.get_rng_state()
    distributed._set_cuda_rng_state = lambda state, *_args, **_kwargs: torch.set_rng_state(state)


def _with(module: Any, **changes: Any) -> Any:
    """Returns a module that has some other names than `module`, and all others from it."""
    changed = ModuleType(module.__name__)
    changed.__dict__.update(changes, __getattr__=lambda name: getattr(module, name))
    return changed
