"""Settings of model.megatron as Megatron's own dataclasses get them."""

from __future__ import annotations

import pytest

from nemo_prorl.config import ConfigError, ModelConfig, RunConfig
from nemo_prorl.engines.megatron import build, core


def built(**given: object) -> object:
    return build._build(
        core.DistributedDataParallelConfig,
        RunConfig(model=ModelConfig(megatron=given)),
        overlap_grad_reduce=False,
    )


def test_a_setting_replaces_the_trainers_own() -> None:
    assert vars(built(overlap_grad_reduce=True))["overlap_grad_reduce"] is True
    assert vars(built(bucket_size=40_000_000))["bucket_size"] == 40_000_000


@pytest.mark.parametrize("value", ["often", 1, None])
def test_a_value_of_another_type_is_refused_with_its_key(value: object) -> None:
    with pytest.raises(ConfigError, match=r"^model\.megatron\.overlap_grad_reduce=.* bool\.$"):
        built(overlap_grad_reduce=value)


def test_a_member_that_an_enum_lacks_is_refused_with_its_key() -> None:
    default = core.TransformerConfig.__dataclass_fields__["attention_backend"].default
    assert build._value("model.megatron.attention_backend", "flash", default).name == "flash"
    with pytest.raises(ConfigError, match=r"^model\.megatron\.attention_backend=fast .* flash, "):
        build._value("model.megatron.attention_backend", "fast", default)
