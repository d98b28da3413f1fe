"""Settings that are passed through to vLLM and Megatron: a mistake is found before either is imported."""

from __future__ import annotations

import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from nemo_prorl.config import (
    ConfigError,
    Fp8Recipe,
    ModelConfig,
    Precision,
    Recompute,
    RunConfig,
    SamplerConfig,
)
from nemo_prorl.engines import passthrough
from nemo_prorl.engines.passthrough import MEGATRON, VLLM, check_engine_args, check_megatron

ROOT = Path(__file__).parents[2]


def engine_args(**given: Any) -> RunConfig:
    return RunConfig(sampler=SamplerConfig(engine_args=given))


def megatron(model: dict[str, Any] | None = None, **given: Any) -> RunConfig:
    return RunConfig(model=ModelConfig(megatron=given, **(model or {})))


DELAYED = {"fp8": Fp8Recipe.delayed}
BLOCKWISE = {"fp8": Fp8Recipe.blockwise}
SELECTIVE = {"recompute": Recompute.selective}


GOOD: list[dict[str, Any]] = [
    {"kv_cache_dtype": "fp8", "enable_prefix_caching": False},
    {"compilation_config": {"cudagraph_mode": "FULL_DECODE_ONLY"}, "attention_backend": "FLASH_ATTN"},
    {"cudagraph_capture_sizes": [1, 2, 4], "max_num_scheduled_tokens": 4096, "cpu_offload_gb": 1},
    {"async_scheduling": None, "kv_cache_dtype_skip_layers": ["0"]},
]


@pytest.mark.parametrize("given", GOOD, ids=[", ".join(given) for given in GOOD])
def test_good_engine_args_pass(given: dict[str, Any]) -> None:
    check_engine_args(engine_args(**given))


def test_good_settings_of_megatron_pass() -> None:
    check_megatron(megatron(overlap_grad_reduce=True, bucket_size=40_000_000, attention_backend="fused"))
    check_megatron(megatron(SELECTIVE, recompute_modules=["core_attn", "mlp"], barrier_with_L1_time=False))
    check_megatron(megatron(DELAYED, fp8_margin=1, fp8_amax_history_len=16))
    check_megatron(megatron(BLOCKWISE, first_last_layers_bf16=True, num_layers_at_start_in_bf16=2))


BAD_ENGINE_ARGS: dict[str, dict[str, Any]] = {
    "kv_cache_dtyp is not a field of EngineArgs: did you mean kv_cache_dtype": {"kv_cache_dtyp": "fp8"},
    "zebra is not a field of EngineArgs: vllm has no such setting": {"zebra": 1},
    "max_num_seqs is set by sampler.max_sequences: write that": {"max_num_seqs": 8},
    "dtype is set by model.precision": {"dtype": "float16"},
    "hf_overrides cannot be set, because the trainer relies on its value": {"hf_overrides": {}},
    "block_size cannot be set on CPU": {"block_size": 64},
    "use_tqdm_on_load cannot be set": {"use_tqdm_on_load": True},
}


@pytest.mark.parametrize("message", BAD_ENGINE_ARGS)
def test_bad_engine_args_are_refused(message: str) -> None:
    with pytest.raises(ConfigError, match=f"^sampler.engine_args.{message}.*[.?]$"):
        check_engine_args(engine_args(**BAD_ENGINE_ARGS[message]))


BAD_MEGATRON: dict[str, dict[str, Any]] = {
    "overlap_grad_reduc is not a field of TransformerConfig or .*: did you mean overlap_grad_reduce": {
        "overlap_grad_reduc": True
    },
    "lr is set by trainer.learning_rate": {"lr": 1e-6},
    "num_layers is set by model.path": {"num_layers": 2},
}


WITHOUT_EFFECT = {
    "fp8_margin has no effect with model.fp8=off: leave it out, or write model.fp8=delayed": ({}, 1),
    "fp8_amax_history_len has no effect with model.fp8=blockwise: .*=delayed": (BLOCKWISE, 16),
    "fp8_amax_compute_algo has no effect with model.fp8=tensorwise: .*=delayed": (
        {"fp8": Fp8Recipe.tensorwise},
        "max",
    ),
    "first_last_layers_bf16 has no effect with model.fp8=delayed: .*=tensorwise or blockwise": (
        DELAYED,
        True,
    ),
    "num_layers_at_end_in_bf16 has no effect with model.fp8=off: .*=tensorwise or blockwise": ({}, 1),
    "recompute_modules has no effect with model.recompute=full: .*=selective": (
        {"recompute": Recompute.full},
        ["mlp"],
    ),
}


@pytest.mark.parametrize("message", WITHOUT_EFFECT)
def test_settings_that_megatron_would_ignore_are_refused(message: str) -> None:
    model, value = WITHOUT_EFFECT[message]
    name = message.split(" ")[0]
    with pytest.raises(ConfigError, match=rf"^model\.megatron\.{message}\.$"):
        check_megatron(megatron(model, **{name: value}))


@pytest.mark.parametrize(
    ("backend", "precision", "message"),
    [
        (
            "local",
            Precision.bf16,
            "leaves Transformer Engine without an attention: write auto, fused or unfused",
        ),
        (
            "flash",
            Precision.bf16,
            r"needs the package flash-attn, which is not installed here: write auto, fused",
        ),
        ("fused", Precision.fp32, "computes in 16 bits: write model.precision=bf16, or auto or unfused"),
    ],
)
def test_an_attention_that_cannot_run_is_refused_before_anything_is_loaded(
    backend: str, precision: Precision, message: str
) -> None:
    with pytest.raises(ConfigError, match=rf"^model\.megatron\.attention_backend={backend} {message}"):
        check_megatron(megatron({"precision": precision}, attention_backend=backend))


def test_flash_attention_of_any_version_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passthrough, "_is_installed", lambda name: name == "flash-attn-3")
    check_megatron(megatron(attention_backend="flash"))
    with pytest.raises(ConfigError, match="computes in 16 bits"):
        check_megatron(megatron({"precision": Precision.fp32}, attention_backend="flash"))


@pytest.mark.parametrize("message", BAD_MEGATRON)
def test_bad_settings_of_megatron_are_refused(message: str) -> None:
    with pytest.raises(ConfigError, match=f"^model.megatron.{message}.*[.?]$"):
        check_megatron(megatron(**BAD_MEGATRON[message]))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        # The model.
        ("layernorm_zero_centered_gamma", True),
        ("softmax_scale", 0.1),
        ("softmax_type", "learnable"),
        ("window_size", [128, 0]),
        ("window_attn_skip_freq", 2),
        ("rotary_interleaved", True),
        ("no_rope_freq", 4),
        ("apply_query_key_layer_scaling", True),
        ("qk_l2_norm", True),
        ("attention_output_gate", True),
        ("num_moe_experts", 8),
        ("multi_latent_attention", True),
        ("hidden_dropout", 0.1),
        # Its precision.
        ("fp8_wgrad", False),
        ("fp4", "e2m1"),
        ("fp8_param", True),
        ("fp8_param_gather", True),
        ("params_dtype", "bf16"),
        # The gradient and the update.
        ("loss_scale", 128.0),
        ("initial_loss_scale", 2.0),
        ("decoupled_weight_decay", False),
        ("overlap_param_gather", True),
        ("delay_wgrad_compute", True),
        ("defer_embedding_wgrad_compute", True),
        ("use_precision_aware_optimizer", True),
    ],
)
def test_what_changes_the_model_or_the_update_is_refused(name: str, value: object) -> None:
    """With values that Megatron itself would take in silence, or drop gradients with. And what has no effect at all."""
    said = r"cannot be set, .* relies on its value: leave it out \(docs/gpu.md lists the fields that can be set\)\.$"
    with pytest.raises(ConfigError, match=rf"^model.megatron.{name} ({said}|is set by model.precision)"):
        check_megatron(megatron(**{name: value}))


def test_a_field_of_megatron_passes_only_if_the_documentation_lists_it() -> None:
    """Whatever fields a later version has."""
    passing = set()
    for name in passthrough.fields_of(MEGATRON):
        for model in ({}, DELAYED, BLOCKWISE, SELECTIVE):
            with suppress(ConfigError):
                check_megatron(megatron(model, **{name: None}))
                passing.add(name)
    section = (ROOT / "docs" / "gpu.md").read_text().split("## Settings of vLLM and Megatron-Core")[1]
    (listed,) = re.findall(r"rounding alone:\n\n(.*?)\n\n", section, re.DOTALL)
    assert passing == set(re.findall(r"`(\w+)`", listed))


def test_what_runs_on_cpu_alone_may_be_set_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passthrough, "has_cuda", lambda: True)
    check_engine_args(engine_args(block_size=64, max_num_batched_tokens=8192, enable_chunked_prefill=False))


@pytest.mark.medium
@pytest.mark.parametrize("target", [VLLM, MEGATRON], ids=["vllm", "megatron"])
def test_the_source_says_what_the_imported_dataclasses_say(target: passthrough.Target) -> None:
    """The fields are read without an import; here the real ones are asked. And no table names a field that is gone."""
    import dataclasses

    from megatron.core.distributed import DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig
    from megatron.core.transformer import TransformerConfig
    from vllm.engine.arg_utils import EngineArgs

    classes = (
        [EngineArgs]
        if target is VLLM
        else [TransformerConfig, DistributedDataParallelConfig, OptimizerConfig]
    )
    real = {field.name for one in classes for field in dataclasses.fields(one)}
    assert passthrough.fields_of(target) == real
    assert {*target.instead, *target.relied_on, *target.allowed} <= real
    assert not set(target.allowed) & {*target.instead, *target.relied_on}
    assert target is MEGATRON or set(passthrough.RELIED_ON_ON_CPU) <= real


def test_nothing_heavy_is_imported() -> None:
    code = (
        "import sys; from nemo_prorl.engines import passthrough as p; p.fields_of(p.VLLM); p.fields_of(p.MEGATRON); "
        "assert not {'torch', 'vllm', 'megatron.core'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_package_that_is_missing_is_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passthrough.importlib.util, "find_spec", lambda package: None)
    with pytest.raises(ConfigError, match="is given, but the package vllm is not installed"):
        check_engine_args(engine_args(kv_cache_dtype="fp8"))
    check_engine_args(engine_args())


def test_what_an_engine_refuses_is_the_settings_fault_only_where_there_are_any() -> None:
    with (
        pytest.raises(
            ConfigError,
            match=r"^the engine .* with model.megatron={.bucket_size.: 0}: too small for 2 ranks\.$",
        ),
        passthrough.refusals("model.megatron", {"bucket_size": 0}),
    ):
        raise ValueError("too small\nfor 2 ranks.")
    with pytest.raises(ValueError, match="ours") as raised, passthrough.refusals("model.megatron", {}):
        raise ValueError("ours")
    assert not isinstance(raised.value, ConfigError)
