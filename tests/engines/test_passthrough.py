"""Settings that are passed through to vLLM and Megatron: a mistake is found before any engine is built."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nemo_prorl.config import ConfigError, Fp8Recipe, ModelConfig, Precision, Recompute, SamplerConfig
from nemo_prorl.engines import passthrough
from nemo_prorl.engines.passthrough import (
    MEGATRON_ALLOWED,
    MEGATRON_INSTEAD,
    RELIED_ON_ON_CPU,
    VLLM_INSTEAD,
    VLLM_RELIED_ON,
)

ROOT = Path(__file__).parents[2]
DELAYED, BLOCKWISE = {"fp8": Fp8Recipe.delayed}, {"fp8": Fp8Recipe.blockwise}
FP32, FULL, SELECTIVE = (
    {"precision": Precision.fp32},
    {"recompute": Recompute.full},
    {"recompute": Recompute.selective},
)


def check_engine_args(**given: Any) -> None:
    passthrough.check_engine_args(SamplerConfig(engine_args=given))


def check_megatron(model: dict[str, Any] | None = None, **given: Any) -> None:
    passthrough.check_megatron(ModelConfig(megatron=given, **(model or {})))


@pytest.mark.parametrize(
    ("check", "given"),
    [
        (check_engine_args, {"kv_cache_dtype": "fp8", "enable_prefix_caching": False}),
        (check_engine_args, {"compilation_config": {"cudagraph_mode": "FULL"}, "async_scheduling": None}),
        (
            check_megatron,
            {"overlap_grad_reduce": True, "bucket_size": 40_000_000, "attention_backend": "fused"},
        ),
        (check_megatron, {"model": SELECTIVE, "recompute_modules": ["mlp"], "barrier_with_L1_time": False}),
        (check_megatron, {"model": DELAYED, "fp8_margin": 1, "fp8_amax_history_len": 16}),
        (check_megatron, {"model": BLOCKWISE, "first_last_layers_bf16": True}),
    ],
)
def test_good_settings_pass(check: Callable[..., None], given: dict[str, Any]) -> None:
    check(**given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"kv_cache_dtyp": "fp8"}, "kv_cache_dtyp is not a field of EngineArgs: did you mean kv_cache_dtype"),
        ({"zebra": 1}, "zebra is not a field of EngineArgs: vllm has no such setting"),
        ({"max_num_seqs": 8}, "max_num_seqs is set by sampler.max_sequences: write that"),
        ({"hf_overrides": {}}, "hf_overrides cannot be set, because the trainer relies on its value"),
        ({"block_size": 64}, "block_size cannot be set on CPU"),
    ],
)
def test_bad_engine_args_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=f"^sampler.engine_args.{said}.*[.?]$"):
        check_engine_args(**given)


@pytest.mark.parametrize(
    ("model", "name", "value", "said"),
    [
        ({}, "overlap_grad_reduc", True, "cannot be set, .*: did you mean overlap_grad_reduce"),
        ({}, "lr", 1e-6, "is set by trainer.learning_rate"),
        ({}, "num_layers", 2, "is set by model.path"),
        ({}, "params_dtype", "bf16", "is set by model.precision"),
        # Values with which Megatron would, in silence, build another model, drop gradients, or do nothing.
        ({}, "softmax_scale", 0.1, "cannot be set"),
        ({}, "num_moe_experts", 8, "cannot be set"),
        ({}, "hidden_dropout", 0.1, "cannot be set"),
        ({}, "fp8_wgrad", False, "cannot be set"),
        ({}, "initial_loss_scale", 2.0, "cannot be set"),
        ({}, "overlap_param_gather", True, "cannot be set"),
        ({}, "fp8_margin", 1, "has no effect with model.fp8=off: leave it out, or write model.fp8=delayed"),
        (BLOCKWISE, "fp8_amax_history_len", 16, "has no effect with model.fp8=blockwise"),
        (DELAYED, "first_last_layers_bf16", True, "has no effect .*=tensorwise or blockwise"),
        (FULL, "recompute_modules", ["mlp"], "has no effect .* write model.recompute=selective"),
        ({}, "attention_backend", "local", "=local leaves Transformer Engine without an attention"),
        ({}, "attention_backend", "flash", "=flash needs the package flash-attn"),
        (FP32, "attention_backend", "fused", "=fused computes in 16 bits: write model.precision=bf16"),
    ],
)
def test_bad_settings_of_megatron_are_refused(
    model: dict[str, Any], name: str, value: object, said: str
) -> None:
    with pytest.raises(ConfigError, match=rf"^model\.megatron\.{name} ?{said}.*[.?]$"):
        check_megatron(model, **{name: value})


def test_flash_attention_of_any_version_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passthrough, "_is_installed", lambda name: name == "flash-attn-3")
    check_megatron(attention_backend="flash")


def test_a_field_of_megatron_passes_only_if_the_documentation_lists_it() -> None:
    section = (ROOT / "docs" / "gpu.md").read_text().split("## Settings of vLLM and Megatron-Core")[1]
    (listed,) = re.findall(r"rounding alone:\n\n(.*?)\n\n", section, re.DOTALL)
    assert set(MEGATRON_ALLOWED) == set(re.findall(r"`(\w+)`", listed))


def test_what_runs_on_cpu_alone_may_be_set_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passthrough, "has_cuda", lambda: True)
    check_engine_args(block_size=64, max_num_batched_tokens=8192, enable_chunked_prefill=False)


@pytest.mark.medium
def test_no_table_names_a_field_that_is_gone() -> None:
    from megatron.core.distributed import DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig
    from megatron.core.transformer import TransformerConfig
    from vllm.engine.arg_utils import EngineArgs

    def fields_of(*classes: Any) -> set[str]:
        return {field.name for one in classes for field in dataclasses.fields(one)}

    assert {*VLLM_INSTEAD, *VLLM_RELIED_ON, *RELIED_ON_ON_CPU} <= fields_of(EngineArgs)
    known = fields_of(TransformerConfig, DistributedDataParallelConfig, OptimizerConfig)
    assert {*MEGATRON_INSTEAD, *MEGATRON_ALLOWED} <= known
    assert not set(MEGATRON_ALLOWED) & set(MEGATRON_INSTEAD)


def test_a_package_that_is_missing_is_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm.engine.arg_utils", None)
    with pytest.raises(ConfigError, match="is given, but vLLM cannot be imported here: "):
        check_engine_args(kv_cache_dtype="fp8")
    check_engine_args()


def test_what_an_engine_refuses_is_the_settings_fault_only_where_there_are_any() -> None:
    said = r"^the engine .* with model.megatron={.bucket_size.: 0}: too small for 2 ranks\.$"
    with pytest.raises(ConfigError, match=said), passthrough.refusals("model.megatron", {"bucket_size": 0}):
        raise ValueError("too small\nfor 2 ranks.")
    with pytest.raises(ValueError, match="ours") as raised, passthrough.refusals("model.megatron", {}):
        raise ValueError("ours")
    assert not isinstance(raised.value, ConfigError)
