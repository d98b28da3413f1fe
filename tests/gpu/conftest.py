"""Tests that need a GPU use the fixture `gpu`; all others here run the same code on CPU."""

from __future__ import annotations

import pytest


@pytest.fixture
def gpu() -> None:
    """Skips with one sentence on a machine without CUDA."""
    import torch

    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device: docs/gpu.md says what else make gpu-check shows there")
