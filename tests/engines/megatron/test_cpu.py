"""Tests of how passes compute on a CPU: with the threads asked for, in full precision, and as before afterwards."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from nemo_prorl.engines.megatron import cpu


def settings() -> tuple[int, str]:
    mkldnn: Any = torch.backends.mkldnn
    return torch.get_num_threads(), mkldnn.matmul.fp32_precision


def test_fp32_products_of_passes_are_exact() -> None:
    before = settings()
    left, right = torch.randn(96, 700), torch.randn(700, 80)
    with cpu.passes(2):
        assert settings() == (2, "bf16" if cpu._onednn_is_exact() else before[1])
        product = left @ right
    assert settings() == before
    torch.testing.assert_close(product.double(), left.double() @ right.double(), atol=1e-3, rtol=0)


def test_products_that_are_rounded_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    before = settings()
    exact = torch.Tensor.__matmul__

    def rounded(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        if left.dtype is torch.float32:
            return exact(left.bfloat16().float(), right.bfloat16().float())
        return exact(left, right)

    monkeypatch.setattr(torch.Tensor, "__matmul__", rounded)
    assert cpu._onednn_is_exact.__wrapped__() is False
    assert settings() == before


def test_an_error_in_a_pass_leaves_the_settings_as_they_were() -> None:
    before = settings()
    with pytest.raises(ZeroDivisionError), cpu.passes(2):
        raise ZeroDivisionError
    assert settings() == before
