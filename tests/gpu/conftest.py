"""Tests that want a GPU take the fixture `gpu`; everything else here runs on CPU, on the same code."""

from __future__ import annotations

import pytest


@pytest.fixture
def gpu() -> None:
    """Skips with one sentence on a machine without CUDA."""
    import torch

    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device: docs/gpu.md says what else make gpu-check shows there")
