"""Copies in host memory: what is asked for, what is copied."""

from __future__ import annotations

import pytest
import torch

from nemo_prorl.engines.megatron import policy as policies
from tests.engines.megatron.helpers import MakePolicy
from tests.waits import CopiedBytes


def test_the_reference_asks_for_its_exact_size_and_goes_through_no_other_memory(
    make_policy: MakePolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, asked = make_policy(), []
    before = list(policy._reference.values())

    def pin(tensor: torch.Tensor) -> torch.Tensor:
        asked.append(tensor.nbytes)
        return torch.empty(tensor.shape, dtype=tensor.dtype)

    monkeypatch.setattr(policies, "empty_on_host", pin)
    with CopiedBytes() as copied:
        policy.adopt_as_reference()
    assert sum(asked) == copied.total == sum(weight.nbytes for weight in policy.model.parameters())
    addresses = {tensor.data_ptr() for tensor in before}
    assert not addresses & {tensor.data_ptr() for tensor in policy._reference.values()}, (
        "a checkpoint may still be written from the reference before"
    )
