"""Pinned host memory, with CUDA's two functions replaced by a record of their calls."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from nemo_prorl.engines.megatron.optimizer_state import _Pinned, pinned_like


class FakeCudart:
    cudaError = SimpleNamespace(success=0)

    def __init__(self, answer: int = 0) -> None:
        self.answer, self.pinned = answer, {}

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        self.pinned[address] = size
        return self.answer

    def cudaHostUnregister(self, address: int) -> None:
        del self.pinned[address]


@pytest.mark.parametrize("shape", [(3, 5), (7,), (), (0, 4)])
def test_a_copy_has_shape_and_type_and_its_own_memory(shape: tuple[int, ...]) -> None:
    tensor = torch.randn(shape, dtype=torch.bfloat16)
    host = pinned_like(tensor)
    assert (host.shape, host.dtype, host.device.type) == (tensor.shape, tensor.dtype, "cpu")
    assert torch.equal(host.copy_(tensor), tensor)
    assert host.is_contiguous()


def test_pages_stay_pinned_exactly_as_long_as_something_refers_to_them() -> None:
    cudart = FakeCudart()
    memory = _Pinned(-1, 10_000)
    host = torch.frombuffer(memory, dtype=torch.float32)
    memory.pin(host.data_ptr(), cudart)
    assert cudart.pinned == {host.data_ptr(): 10_000}
    part = host[5:7]
    del memory, host
    assert len(cudart.pinned) == 1
    del part
    assert not cudart.pinned


def test_memory_that_cannot_be_pinned_is_an_error() -> None:
    cudart, memory = FakeCudart(answer=2), _Pinned(-1, 4096)
    with pytest.raises(RuntimeError, match="cannot pin 4,096 bytes"):
        memory.pin(1234, cudart)
    del memory
    assert cudart.pinned == {1234: 4096}, "what was not pinned is not unpinned"
