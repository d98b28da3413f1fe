"""Tests of fingerprints, which are sums of bits: against plain Python, and for any partition of a tensor."""

from __future__ import annotations

import struct

import pytest
import torch

from nemo_prorl.algorithm import fingerprint as module
from nemo_prorl.algorithm.fingerprint import MODULUS, fingerprint, joined


def test_it_is_the_sum_of_the_bits_as_integers() -> None:
    values = [0.0, -0.0, 1.5, -2.25e-7, 3e30]
    expected = sum(struct.unpack("<i", struct.pack("<f", value))[0] for value in values) % MODULUS
    assert fingerprint(torch.tensor(values)) == expected


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_parts_add_up_to_the_whole(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = torch.randn(12, 10, generator=torch.Generator().manual_seed(1)).to(dtype)
    expected = fingerprint(whole)
    monkeypatch.setitem(module._CHUNK, "cpu", 7)
    assert fingerprint(whole) == expected
    for parts in (whole.split([2, 3, 7]), whole.chunk(2, dim=1)):
        assert joined(fingerprint(part) for part in parts) == expected
    assert fingerprint(torch.cat([whole, torch.zeros(3, 10, dtype=dtype)])) == expected
    assert fingerprint(whole.t()) == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_least_change_of_one_element_shows(dtype: torch.dtype) -> None:
    whole = torch.randn(1000, generator=torch.Generator().manual_seed(1)).to(dtype)
    changed = whole.clone()
    integers = torch.int32 if dtype is torch.float32 else torch.int16
    changed.view(integers)[500] += 1
    assert fingerprint(changed) != fingerprint(whole)


def test_an_empty_tensor_has_none() -> None:
    assert fingerprint(torch.zeros(0)) == 0
