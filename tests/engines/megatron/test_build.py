"""Settings of model.megatron as Megatron's own dataclasses get them."""

from __future__ import annotations

from typing import Any

import pytest

from nemo_prorl.config import ConfigError, LoraConfig, RunConfig
from nemo_prorl.distributed import Layout
from nemo_prorl.engines.megatron import build, core


def built(**given: object) -> object:
    return build._build(
        core.DistributedDataParallelConfig,
        given,
        overlap_grad_reduce=False,
    )


def layers(**given: object) -> Any:
    return build._build(core.TransformerConfig, given, num_layers=1, hidden_size=8, num_attention_heads=1)


def test_a_setting_replaces_the_trainers_own() -> None:
    assert vars(built(overlap_grad_reduce=True))["overlap_grad_reduce"] is True
    assert vars(built(bucket_size=40_000_000))["bucket_size"] == 40_000_000


@pytest.mark.parametrize("value", ["often", 1, None])
def test_a_value_of_another_type_is_refused_with_its_key(value: object) -> None:
    with pytest.raises(ConfigError, match=r"^model\.megatron\.overlap_grad_reduce=.* bool\.$"):
        built(overlap_grad_reduce=value)


def test_a_member_that_an_enum_lacks_is_refused_with_its_key() -> None:
    assert layers(attention_backend="flash").attention_backend.name == "flash"
    with pytest.raises(ConfigError, match=r"^model\.megatron\.attention_backend=fast .* flash, "):
        layers(attention_backend="fast")


@pytest.mark.parametrize(
    ("world_size", "tensor", "pipeline", "rank", "overlaps"),
    [
        (8, 1, 1, 0, False),
        (16, 1, 1, 0, True),
        (16, 2, 1, 0, True),
        (16, 1, 2, 0, False),
        (16, 1, 1, 8, False),
    ],
)
def test_gradients_are_exchanged_in_the_backward_pass_where_replicas_span_machines_of_eight(
    monkeypatch: pytest.MonkeyPatch, world_size: int, tensor: int, pipeline: int, rank: int, overlaps: bool
) -> None:
    """Not where each machine holds all replicas of one pipeline stage, nor in low-rank training."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    layout = Layout(rank=0, world_size=world_size, tensor_parallel=tensor, pipeline_parallel=pipeline)
    assert build.overlaps_exchange(RunConfig(lora=LoraConfig(rank=rank)), layout) is overlaps
