"""The head's products with torch's build for CUDA: signatures, types and devices, by torch's own rules for tensors
without data. No kernel runs. Skipped with a build for the CPU (`make test-cuda-build`)."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from nemo_prorl.engines.megatron import vocab_parallel

if torch.version.cuda is None:
    pytest.skip("needs torch's build for CUDA: make test-cuda-build", allow_module_level=True)


def test_products_of_16_bit_tensors_are_summed_and_kept_in_fp32() -> None:
    with FakeTensorMode(allow_non_fake_inputs=True):
        hidden = torch.empty(64, 256, device="cuda", dtype=torch.bfloat16)
        weight = torch.empty(1003, 256, device="cuda", dtype=torch.bfloat16)
        logits = vocab_parallel._product(hidden, weight.t())
        assert (logits.dtype, logits.shape, logits.device.type) == (torch.float32, (64, 1003), "cuda")
        of_hidden = vocab_parallel._product(logits.bfloat16(), weight)
        assert (of_hidden.dtype, of_hidden.shape) == (torch.float32, (64, 256))
        total = torch.zeros(1003, 256, device="cuda")
        # As in the backward pass.
        torch.addmm(total, logits.bfloat16().t(), hidden, out_dtype=total.dtype, out=total)
        assert total.dtype is torch.float32
