"""The optimizer's state on its way to the host and back. The stand-in for a CUDA stream makes its copies as late as a
GPU might: when somebody waits for them. Until then what they are to fill holds NaN."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from nemo_prorl.config import LoraConfig, Precision
from nemo_prorl.distributed import Ranks
from nemo_prorl.engines.megatron import optimizer_state
from nemo_prorl.engines.megatron.policy import MegatronPolicy
from tests.engines.megatron.helpers import loss_function, run_config, save, token_batch, train_batch
from tests.engines.megatron.test_checkpoint import assert_same_contents


class LateStream(TorchDispatchMode):
    """Entered as `torch.cuda.stream(...)`."""

    def __init__(self) -> None:
        super().__init__()
        self.copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.calls: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not torch.ops.aten.copy_.default:
            return func(*args, **(kwargs or {}))
        self.copies.append(args[:2])
        return args[0].fill_(torch.nan)

    def wait_stream(self, _current: object) -> None:
        assert not self.copies
        self.calls.append("begin")

    def arrive(self, _stream: object) -> None:
        self.calls.append("wait")
        while self.copies:
            target, source = self.copies.pop()
            target.copy_(source)


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> LateStream:
    late = LateStream()
    monkeypatch.setattr(MegatronPolicy, "_makes_room", True)
    for name, stand_in in {
        "Stream": lambda: late,
        "stream": lambda given: given,
        "current_stream": lambda: SimpleNamespace(wait_stream=late.arrive),
        "synchronize": lambda: late.calls.append("synchronize"),
        "empty_cache": lambda: late.calls.append("empty_cache"),
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    return late


Make = Callable[[], MegatronPolicy]


@pytest.fixture(params=["fp32", "bf16", "low rank"])
def make(request: pytest.FixtureRequest, ranks: Ranks, hf_models: dict[str, Path]) -> Make:
    lora = LoraConfig(rank=4, alpha=8.0) if request.param == "low rank" else None
    config = run_config(hf_models["qwen2"], learning_rate=1e-3, warmup_updates=0, lora=lora)
    config.model.precision = Precision.fp32 if request.param == "fp32" else Precision.bf16
    return lambda: MegatronPolicy(config, ranks)


def held(policy: MegatronPolicy) -> dict[str, torch.Tensor]:
    """Returns what the optimizer holds."""
    slots = optimizer_state.slots(policy.optimizer, policy.trainable.module)
    return {
        f"{name} {part}": tensor
        for name, slot in slots.items()
        for part, tensor in {"main": slot.main.detach(), **slot.state}.items()
        if part != "step"
    }


def assert_same(first: MegatronPolicy, second: MegatronPolicy) -> None:
    """In weights and states, bit by bit."""
    for of in (held, lambda policy: dict(policy.named_weights())):
        wanted, found = of(second), of(first)
        assert wanted.keys() == found.keys()
        assert [name for name in wanted if not torch.equal(found[name], wanted[name])] == []


def test_nobody_waits_for_the_states_before_the_step(make: Make, stream: LateStream) -> None:
    """The memory on the host is pinned once, and the cache of the GPU's memory is the sampler's to empty."""
    moved, still = make(), make()
    step = moved.optimizer.step_with_ready_grads
    moved.optimizer.step_with_ready_grads = lambda: stream.calls.append("step") or step()
    moved.model.register_forward_pre_hook(lambda *_: stream.calls.append("pass"))
    addresses = []
    for _ in range(2):
        moved.finish_training()
        assert stream.calls == ["synchronize"]
        stream.calls.clear()
        away = {name: tensor.data_ptr() for name, tensor in held(moved).items() if "exp" in name}
        addresses.append(away)
        moved.prepare_for_training()
        assert stream.calls == ["begin"]
        for _ in range(2):
            for policy in (moved, still):
                policy.update(train_batch(token_batch()), loss_function)
        assert all(held(moved)[name].data_ptr() != address for name, address in away.items())
        passes = ["pass"] * (stream.calls.count("pass") // 2)
        assert stream.calls == ["begin", *passes, "wait", "step", *passes, "step"]
        assert_same(moved, still)
        stream.calls.clear()
    assert addresses[0] == addresses[1]


@pytest.mark.medium
def test_whatever_else_reads_or_writes_the_states_waits_too(
    make: Make, stream: LateStream, tmp_path: Path
) -> None:
    """While they arrive, and while they are on the host: the next way there, a hard reset, a rewind, a checkpoint."""
    moved, still = make(), make()
    save(still, tmp_path / "earlier")
    folders = []

    def checkpoint(policy: MegatronPolicy) -> None:
        folders.append(tmp_path / str(len(folders)))
        save(policy, folders[-1])

    for action in (
        lambda policy: policy is moved and policy.finish_training(),
        MegatronPolicy.reset_optimizer,
        MegatronPolicy.adopt_as_reference,
        checkpoint,
        lambda policy: policy.load(tmp_path / "earlier", reference=False),
    ):
        for policy in (moved, still):
            policy.update(train_batch(token_batch()), loss_function)
        for is_arriving in (True, False):
            moved.finish_training()
            if is_arriving:
                moved.prepare_for_training()
            for policy in (moved, still):
                action(policy)
            moved._offload.wait()
            assert_same(moved, still)
        moved.prepare_for_training()
    for of_moved, of_still in zip(folders[::2], folders[1::2], strict=True):
        assert_same_contents(of_moved, of_still)
