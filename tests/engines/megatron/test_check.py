"""What the command line refuses before torch is imported: one clear sentence each."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nemo_prorl.config import (
    ConfigError,
    ControllerConfig,
    Fp8Recipe,
    LayerSpec,
    LoraConfig,
    ModelConfig,
    RunConfig,
    SamplerConfig,
    TrainerConfig,
    WatchLimitsConfig,
)
from nemo_prorl.engines.megatron import check
from nemo_prorl.engines.megatron.architecture import read_architecture
from nemo_prorl.engines.megatron.check import check_model
from nemo_prorl.engines.megatron.families import Rope
from tests.model_folders import QWEN, SMALL, write_model


def run_config(model: dict[str, Any] | None = None, context: int = 1024, **trainer: Any) -> RunConfig:
    return RunConfig(
        model=ModelConfig(**(model or {})),
        trainer=TrainerConfig(**trainer),
        controller=ControllerConfig(limits=WatchLimitsConfig(max_nats=0.25)),
        sampler=SamplerConfig(max_prompt_tokens=128, max_response_tokens=context - 128),
    )


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in QWEN.items() if name != key}


LLAMA3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 8192, "rope_theta": 1e6}
YARN = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 1024}
PHI = QWEN | {"architectures": ["Phi3ForCausalLM"]}
BAD_MODELS = {
    "GemmaForCausalLM is not supported: use a dense decoder, one of": QWEN
    | {"architectures": ["GemmaForCausalLM"]},
    "vision_config={}, which Qwen2ForCausalLM does not have": QWEN | {"vision_config": {}},
    "use_mrope=true": QWEN | {"use_mrope": True},
    "clip_qkv=8, which Qwen2ForCausalLM does not have, and which might": QWEN | {"clip_qkv": 8},
    "resid_pdrop=0.0, which Qwen2ForCausalLM does not have": QWEN | {"resid_pdrop": 0.0},
    "resid_pdrop, under which": PHI | {"resid_pdrop": 0.1},
    "Phi3ForCausalLM takes default": PHI | {"rope_scaling": {"type": "longrope", "short_factor": [1.0]}},
    "The model uses sliding-window attention": PHI | {"sliding_window": 2047},
    "uses sliding-window attention, which": QWEN
    | {"architectures": ["MistralForCausalLM"], "max_position_embeddings": 32768},
    r"\(none\) is not supported": without("architectures"),
    r'architectures="Qwen2ForCausalLM": a list of texts is needed': QWEN
    | {"architectures": "Qwen2ForCausalLM"},
    "no vocab_size: a whole number above 0 is needed": without("vocab_size"),
    'num_hidden_layers="six"': QWEN | {"num_hidden_layers": "six"},
    "num_key_value_heads=-4": QWEN | {"num_key_value_heads": -4},
    'rms_norm_eps="x"': QWEN | {"rms_norm_eps": "x"},
    "rms_norm_eps=null: a number above 0 is needed": QWEN | {"rms_norm_eps": None},
    "rope_theta=NaN": QWEN | {"rope_theta": float("nan")},
    r"rope_scaling=\[\]: an object is needed": QWEN | {"rope_scaling": []},
    'factor="eight"': QWEN | {"rope_parameters": LLAMA3 | {"factor": "eight"}},
    'tie_word_embeddings="false": true or false is needed': QWEN | {"tie_word_embeddings": "false"},
    'layer_types="full': QWEN | {"layer_types": "full_attention"},
    "hidden_act=gelu": QWEN | {"hidden_act": "gelu"},
    "sliding-window": QWEN | {"use_sliding_window": True},
    "sliding-window attention": QWEN | {"layer_types": ["full_attention", "sliding_attention"]},
    "attention_bias=true": QWEN | {"attention_bias": True},
    "mlp_bias=true": QWEN | {"mlp_bias": True},
    "rope_theta=-1": QWEN | {"rope_theta": 1e6, "rope_parameters": {"rope_theta": -1}},
    "no rope_theta: a number above 0 is needed": without("rope_theta"),
    "no original_max_position_embeddings": QWEN
    | {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0}},
    "rope scaling yarn has attention_factor=1.2": QWEN
    | {"rope_parameters": YARN | {"attention_factor": 1.2}},
    r"max_position_embeddings=4096 is more than .* = 2048: write at most": QWEN
    | {"rope_parameters": YARN | {"factor": 2}},
    "rope scaling yarn is not supported: LlamaForCausalLM takes default or llama3 with": QWEN
    | {"architectures": ["LlamaForCausalLM"], "rope_parameters": YARN},
    "rope scaling llama3": QWEN
    | {"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 2.0}},
    "partial_rotary_factor": QWEN | {"partial_rotary_factor": 0.5},
    "are quantised": QWEN | {"quantization_config": {"bits": 4}},
    "not reproducible": QWEN | {"attention_dropout": 0.1},
    "is not a multiple of its": QWEN | {"num_key_value_heads": 3},
    "head_dim=8 is not supported": QWEN | {"architectures": ["LlamaForCausalLM"], "head_dim": 8},
    "which Qwen2ForCausalLM does not support": QWEN | {"head_dim": 64},
}


@pytest.mark.parametrize("message", BAD_MODELS)
def test_models_that_are_refused(message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        check_model(BAD_MODELS[message], run_config(), 1)
    assert_one_sentence(raised.value)


BAD_RUNS: dict[str, tuple[RunConfig, int]] = {
    "tensor_parallel=3 does not divide the model's 8 attention heads": (run_config(tensor_parallel=3), 3),
    "tensor_parallel=8 does not divide the model's 4 key-value heads": (run_config(tensor_parallel=8), 8),
    "pipeline_parallel=8 is more than the model's 6 layers": (run_config(pipeline_parallel=8), 8),
    r"3 rank\(s\) cannot hold whole replicas": (run_config(tensor_parallel=2), 3),
    "max_response_tokens=8064 are together longer than the model's": (run_config(context=8192), 1),
    "layer_spec=transformer_engine needs CUDA": (
        run_config({"layer_spec": LayerSpec.transformer_engine}), 1
    ),
    "fp8=blockwise needs CUDA and Transformer Engine": (run_config({"fp8": Fp8Recipe.blockwise}), 1),
    "lora.rank=257 is more than the model's hidden size 256": (
        replace(run_config(), lora=LoraConfig(rank=257)), 1
    ),
}  # fmt: skip


@pytest.mark.parametrize("message", BAD_RUNS)
def test_runs_that_are_refused(message: str) -> None:
    config, world_size = BAD_RUNS[message]
    with pytest.raises(ConfigError, match=message) as raised:
        check_model(QWEN, config, world_size)
    assert_one_sentence(raised.value)


def assert_one_sentence(error: ConfigError) -> None:
    assert str(error).endswith(".")
    assert "\n" not in str(error)


@pytest.fixture
def gpu_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "has_cuda", lambda: True)
    monkeypatch.setattr(check, "has_transformer_engine", lambda: True)


@pytest.mark.usefixtures("gpu_machine")
class TestWithGpu:
    def test_fp8_is_accepted(self) -> None:
        check_model(QWEN, run_config({"fp8": Fp8Recipe.tensorwise}), 1)
        check_model(QWEN, run_config({"fp8": Fp8Recipe.blockwise}), 1)

    def test_fp8_does_not_run_on_local_layers(self) -> None:
        with pytest.raises(ConfigError, match="needs CUDA and Transformer Engine's layers"):
            check_model(QWEN, run_config({"fp8": Fp8Recipe.delayed, "layer_spec": LayerSpec.local}), 1)

    def test_fp8_needs_wide_shards(self) -> None:
        with pytest.raises(ConfigError, match=r"multiples of 128, .* attention shard is 64"):
            check_model(QWEN, run_config({"fp8": Fp8Recipe.blockwise}, tensor_parallel=4), 4)

    def test_any_head_dim_is_left_to_the_gpu_kernels(self) -> None:
        check_model(QWEN | {"architectures": ["LlamaForCausalLM"], "head_dim": 40}, run_config(), 1)

    def test_auto_without_transformer_engine_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(check, "has_transformer_engine", lambda: False)
        with pytest.raises(
            ConfigError, match=r"layer_spec=auto uses .* not installed.* write .*local"
        ) as error:
            check_model(QWEN, run_config(), 1)
        assert_one_sentence(error.value)
        check_model(QWEN, run_config({"layer_spec": LayerSpec.local}), 1)
        check_model(QWEN, run_config(), 1, trains=False)  # the sampler has no such layers

    def test_auto_is_transformer_engine(self) -> None:
        assert check.use_transformer_engine(LayerSpec.auto, cuda=True)
        assert not check.use_transformer_engine(LayerSpec.local, cuda=True)


@pytest.mark.parametrize(
    ("file", "found"),
    [
        ("transformer_engine/wheel_lib/transformer_engine_torch.cpython-311-x86_64-linux-gnu.so", True),
        ("transformer_engine/transformer_engine_torch.cpython-311-x86_64-linux-gnu.so", True),
        ("transformer_engine_torch.cpython-311-x86_64-linux-gnu.so", True),
        ("transformer_engine/wheel_lib/libtransformer_engine.so", False),
        (None, False),
    ],
)
def test_transformer_engine_is_there_when_both_its_halves_are(
    file: str | None, found: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Installed from PyPI, built from source, editable; the core alone; nothing."""
    monkeypatch.syspath_prepend(tmp_path)
    if file is not None:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "transformer_engine").mkdir(exist_ok=True)
        (tmp_path / "transformer_engine/__init__.py").touch()
        (tmp_path / file).touch()
    assert check.has_transformer_engine() is found


def test_a_good_model_passes() -> None:
    check_model(QWEN, run_config(tensor_parallel=2, pipeline_parallel=2, sequence_parallel=True), 8)


def test_the_vocabulary_is_padded_to_the_ranks() -> None:
    architecture = read_architecture(QWEN | {"vocab_size": 1001})
    assert [architecture.padded_vocab(*sizes) for sizes in ((1, 1), (2, 1), (2, 128))] == [1001, 1002, 1024]


def test_rope_of_either_transformers_version() -> None:
    old = read_architecture(QWEN)
    new = read_architecture(
        without("rope_theta") | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}
    )
    assert old == new
    assert old.rope == Rope(theta=1e6)
    both = {"rope_scaling": {"rope_theta": 2e6}, "rope_parameters": {"rope_theta": 3e6}}
    assert read_architecture(QWEN | both).rope == Rope(theta=3e6)
    llama3 = read_architecture(QWEN | {"rope_parameters": LLAMA3 | {"factor": 8}}).rope
    assert llama3 == Rope(theta=1e6, kind="llama3", factor=8.0)
    yarn = YARN | {"beta_fast": 16, "truncate": False}
    assert read_architecture(QWEN | {"rope_parameters": yarn}).rope == Rope(
        theta=1e6, kind="yarn", factor=4.0, original_positions=1024, beta_fast=16.0, truncate=False
    )


def test_null_stands_for_the_default_where_transformers_takes_it_so() -> None:
    unset = dict.fromkeys(("head_dim", "rope_scaling", "layer_types", "quantization_config", "mlp_bias"))
    unset |= dict.fromkeys(("attention_dropout", "partial_rotary_factor", "use_sliding_window"))
    assert read_architecture(QWEN | unset) == read_architecture(QWEN)
    assert read_architecture(without("rms_norm_eps")).norm_epsilon == 1e-6
    phi = {**without("rms_norm_eps"), "architectures": ["Phi3ForCausalLM"]}
    assert read_architecture(phi).norm_epsilon == 1e-5


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model", SMALL)


def write(name: str, text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(text)


def adapter(folder: Path) -> None:
    (folder / "config.json").rename(folder / "adapter_config.json")


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda folder: (folder / "model.safetensors").unlink(), "holds no weights"),
        (lambda folder: (folder / "config.json").unlink(), r"no config\.json in model\.path="),
        (adapter, r"which is an adapter \(LoRA\): merge it into its base model"),
        (write("config.json", "{"), r"config\.json is damaged .*fetch it again"),
        (write("config.json", "[]"), r"config\.json is damaged \(it holds no JSON object\): fetch"),
        (write("generation_config.json", '{"eos'), r"generation_config\.json is damaged .*fetch it again"),
    ],
)
def test_folders_that_are_refused(folder: Path, spoil: Callable[[Path], object], sentence: str) -> None:
    check_model(folder, run_config(), 1)
    spoil(folder)
    with pytest.raises(ConfigError, match=sentence) as raised:
        check_model(folder, run_config(), 1)
    assert_one_sentence(raised.value)
    assert str(folder) in str(raised.value)


@pytest.mark.parametrize("file", ["generation_config.json", "config.json"])
@pytest.mark.parametrize("ids", [10, -1, [1, 999999], "<|end|>", True, [None], 1.0, {}])
def test_stop_tokens_that_the_model_does_not_have(folder: Path, file: str, ids: Any) -> None:
    (folder / file).write_text(json.dumps(SMALL | {"eos_token_id": ids}))
    with pytest.raises(ConfigError, match=rf"{file} has eos_token_id=.*: a token of the model's vocabulary"):
        check_model(folder, run_config(), 1)


def test_stop_tokens_are_those_of_the_generation_config(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps(SMALL | {"eos_token_id": 3}))
    assert check.declared_stop_ids(folder, 10) == [3]
    for content, ids in (('{"eos_token_id": [5, 9]}', [5, 9]), ("{}", [])):
        (folder / "generation_config.json").write_text(content)
        assert check.declared_stop_ids(folder, 10) == ids


def test_names_of_models_that_are_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    for name, sentence in (
        ("", r"model\.path is empty"),
        ("file", r"model\.path=file is a file: write the folder"),
        ("Qwen/Qwen3-0.6B", r"`hf download Qwen/Qwen3-0\.6B --local-dir Qwen/Qwen3-0\.6B`"),
        ("runs/tiny/policy", r"`python -m nemo_prorl\.demo\.build` makes it"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            check_model(name, run_config(), 1)
    (tmp_path / "runs").mkdir()
    with pytest.raises(ConfigError) as raised:
        check_model("runs/mine", run_config(), 1)
    assert "hf download" not in str(raised.value), "runs/ is a folder here, not somebody on the hub"


def test_nothing_heavy_is_imported() -> None:
    script = (
        "import sys, nemo_prorl.engines.megatron.check\n"
        "assert not {'torch', 'megatron', 'numpy', 'transformers'} & set(sys.modules), sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=Path(__file__).resolve().parents[3])


@pytest.mark.parametrize(
    ("num_layers", "expected"),
    [
        (28, {1: [28], 2: [14, 14], 4: [7, 7, 7, 7]}),
        (5, {2: [3, 2], 3: [2, 2, 1], 4: [1, 2, 1, 1], 5: [1, 1, 1, 1, 1]}),
        (11, {4: [3, 3, 3, 2], 8: [1, 2, 2, 2, 1, 1, 1, 1]}),
    ],
)
def test_layers_are_spread_as_evenly_as_they_go(num_layers: int, expected: dict[int, list[int]]) -> None:
    for pipeline_parallel, counts in expected.items():
        architecture = read_architecture({**QWEN, "num_hidden_layers": num_layers})
        assert architecture.layers_per_stage(pipeline_parallel) == counts
        assert sum(counts) == num_layers


def kv_config(kv_cache_mib: int, context: int = 1024, sampler_tensor_parallel: int = 1) -> RunConfig:
    config = run_config(context=context)
    config.sampler.kv_cache_mib = kv_cache_mib
    config.sampler.tensor_parallel = sampler_tensor_parallel
    return config


def test_a_kv_cache_without_room_for_one_sequence_is_refused() -> None:
    """6 layers x 4 heads x 32 x keys and values in bf16: 3,072 bytes a token, 3 MiB for 1,024 of them, and a block."""
    check_model(QWEN, kv_config(4), 1)
    check_model(QWEN, kv_config(3, context=1024 - check.CPU_BLOCK_TOKENS), 1)
    with pytest.raises(
        ConfigError, match=r"sampler\.kv_cache_mib=3 has no room for one .*write at least 4,"
    ) as caught:
        check_model(QWEN, kv_config(3), 1)
    assert "\n" not in str(caught.value)
    check_model(QWEN, kv_config(2, sampler_tensor_parallel=2), 2)


def test_a_kv_cache_larger_than_the_machine_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"sampler\.kv_cache_mib=200000000 is more than this machine's free memory"
    ):
        check_model(QWEN, kv_config(200_000_000), 1)


@pytest.mark.parametrize("window", [None, 4096, 262144])
def test_a_window_as_long_as_the_context_is_none(window: int | None) -> None:
    assert read_architecture(PHI | {"sliding_window": window}).max_positions == 4096


def test_what_other_programs_leave_in_a_config_does_not_matter() -> None:
    left = {
        "_attn_implementation_autoset": True,
        "temperature": 0.6,
        "torchscript": False,
        "id2label": {"0": "a"},
    }
    assert read_architecture(QWEN | left | {"unsloth_version": "2025.1"}) == read_architecture(QWEN)
