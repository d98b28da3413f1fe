"""Can this model be trained as the configuration says? Cheap: reads config.json, imports neither torch nor Megatron.

What needs the hardware itself (compute capability, CUDA version) is checked in build.py.
"""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nemo_prorl.config import ConfigError, Fp8Recipe, LayerSpec, Precision, RunConfig
from nemo_prorl.engines.environment import has_cuda
from nemo_prorl.engines.megatron.architecture import Architecture, read_architecture
from nemo_prorl.engines.passthrough import check_engine_args, check_megatron
from nemo_prorl.layout import check_layout

CPU_HEAD_DIMS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""What vLLM's CPU attention takes (CPUAttentionBackend.get_supported_head_sizes in 0.32.0); it refuses any other at the
first forward pass only."""

CPU_BLOCK_TOKENS = 32
"""Tokens of a block of vLLM's KV cache on CPU. vLLM's own default, 128, is longer than most prompts of small models:
siblings would share nothing."""

FP8_MULTIPLE = {Fp8Recipe.delayed: 16, Fp8Recipe.tensorwise: 16, Fp8Recipe.blockwise: 128}
"""Tokens of a pass and widths of the linear layers on each rank must be multiples of this."""

CHECKPOINT_MARK = "policy.json"
"""A folder with this file is one of our Megatron checkpoints (see checkpoint.py)."""


def check_model(
    model: str | Path | Mapping[str, Any], config: RunConfig, world_size: int, *, trains: bool = True
) -> None:
    """Raises ConfigError, one sentence, unless the model can be built as `config` says on `world_size` ranks.

    `model` is the folder (config.model.path) or the content of a config.json, for which files are not looked at.
    `trains` is False where only the sampler runs, so that Megatron's options do not matter.
    """
    if not model:
        raise ConfigError("model.path is empty: write model.path=FOLDER of a Hugging Face checkpoint.")
    architecture = read_architecture(model)
    if not isinstance(model, Mapping):
        check_files(Path(model), architecture)
    check_shape(architecture, config, world_size)
    _check_head_dim(architecture)
    _check_kv_cache(architecture, config)
    check_engine_args(config)
    if trains:
        _check_layer_spec(config)
        _check_fp8(architecture, config)
        check_megatron(config)


def check_shape(architecture: Architecture, config: RunConfig, world_size: int) -> None:
    """The part of `check_model` that holds on any machine: raises ConfigError unless layout and context fit."""
    _check_layout(architecture, config, world_size)
    _check_context(architecture, config)


def has_transformer_engine() -> bool:
    """Both halves: with the core but without the torch extension, importing Megatron itself fails. Its file is where
    Transformer Engine looks for it (common/__init__.py there): in the package, or beside it where that is editable.
    Python does not find it by its name until Transformer Engine has loaded it."""
    package = importlib.util.find_spec("transformer_engine")
    if package is None or package.origin is None:
        return False
    folder = Path(package.origin).parent
    places = (folder / "wheel_lib", folder, folder.parent)
    return any(file for place in places for file in place.glob("transformer_engine_torch*.so"))


def use_transformer_engine(config: RunConfig, cuda: bool) -> bool:
    """The meaning of model.layer_spec on this machine."""
    spec = config.model.layer_spec
    return spec is LayerSpec.transformer_engine or (spec is LayerSpec.auto and cuda)


def check_files(folder: Path, architecture: Architecture) -> None:
    """Raises ConfigError unless the folder holds weights, and a tokenizer, if any, of this model's vocabulary."""
    weights = ("model.safetensors", "model.safetensors.index.json", CHECKPOINT_MARK)
    if not any((folder / name).exists() for name in weights):
        raise ConfigError(f"model.path={folder} holds no weights: one of {', '.join(weights)} is needed.")
    tokenizer = folder / "tokenizer.json"
    if tokenizer.exists():
        content = json.loads(tokenizer.read_text())
        ids = [token["id"] for token in content.get("added_tokens") or []]
        vocabulary = content.get("model", {}).get("vocab")
        ids += vocabulary.values() if isinstance(vocabulary, dict) else [len(vocabulary or [0]) - 1]
        if max(ids) >= architecture.vocab_size:
            raise ConfigError(
                f"The tokenizer in {folder} produces token {max(ids)}, but the model's vocabulary has "
                f"{architecture.vocab_size} entries: the two do not belong together."
            )


def _check_layout(architecture: Architecture, config: RunConfig, world_size: int) -> None:
    tensor, pipeline = config.trainer.tensor_parallel, config.trainer.pipeline_parallel
    check_layout(world_size, tensor, pipeline)
    if architecture.num_heads % architecture.num_kv_heads:
        raise ConfigError(
            f"The model's {architecture.num_heads} attention heads are no multiple of its "
            f"{architecture.num_kv_heads} key-value heads."
        )
    split = {
        "attention heads": architecture.num_heads,
        "key-value heads": architecture.num_kv_heads,
        "feed-forward columns": architecture.ffn_size,
    }
    for what, count in split.items():
        if count % tensor:
            raise ConfigError(
                f"trainer.tensor_parallel={tensor} does not divide the model's {count} {what}: write a divisor of it."
            )
    sampler = config.sampler.tensor_parallel
    for what, count in {
        "rank(s)": world_size,
        "attention heads of the model": architecture.num_heads,
    }.items():
        if count % sampler:
            raise ConfigError(
                f"sampler.tensor_parallel={sampler} does not divide the {count} {what}: write a divisor of it."
            )
    if architecture.num_layers < pipeline:
        raise ConfigError(
            f"trainer.pipeline_parallel={pipeline} is more than the model's {architecture.num_layers} layers: "
            "write at most as many."
        )


def _check_context(architecture: Architecture, config: RunConfig) -> None:
    if config.sampler.context_tokens > architecture.max_positions:
        raise ConfigError(
            f"sampler.max_prompt_tokens={config.sampler.max_prompt_tokens} and "
            f"sampler.max_response_tokens={config.sampler.max_response_tokens} are together longer than the model's "
            f"max_position_embeddings={architecture.max_positions}: write less of one of them."
        )


def _check_head_dim(architecture: Architecture) -> None:
    if not has_cuda() and architecture.head_dim not in CPU_HEAD_DIMS:
        raise ConfigError(
            f"The model's head_dim={architecture.head_dim} is not supported by vLLM's attention on CPU: "
            f"it takes {', '.join(map(str, CPU_HEAD_DIMS))}."
        )


def _check_kv_cache(architecture: Architecture, config: RunConfig) -> None:
    """vLLM refuses a cache that holds less than one sequence, or is larger than the machine's memory, only after the
    policy is built."""
    if has_cuda():
        return
    sampler = config.sampler
    bytes_an_element = 4 if config.model.precision is Precision.fp32 else 2
    heads = max(1, architecture.num_kv_heads // sampler.tensor_parallel)
    bytes_a_token = 2 * architecture.num_layers * heads * architecture.head_dim * bytes_an_element
    num_blocks = -(-sampler.context_tokens // CPU_BLOCK_TOKENS) + 1  # vLLM keeps one for padding
    needed_mib = -(-num_blocks * CPU_BLOCK_TOKENS * bytes_a_token // 2**20)
    if sampler.kv_cache_mib < needed_mib:
        raise ConfigError(
            f"sampler.kv_cache_mib={sampler.kv_cache_mib} has no room for one sequence of {sampler.context_tokens:,} "
            f"tokens: write at least {needed_mib} (several times that, for sequences side by side), or less of "
            "sampler.max_prompt_tokens or sampler.max_response_tokens."
        )
    free_mib = _free_memory_mib()
    if sampler.kv_cache_mib > free_mib:
        raise ConfigError(
            f"sampler.kv_cache_mib={sampler.kv_cache_mib} is more than this machine's free memory of {free_mib:,} MiB: "
            "write less."
        )


def _free_memory_mib() -> int:
    """What the kernel says programs can still have (MemAvailable of proc(5))."""
    found = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    return int(found[1]) // 1024 if found else sys.maxsize


def _check_layer_spec(config: RunConfig) -> None:
    """Refuses what is not installed. On a GPU Megatron's own layers are much slower and compute on padding, so a run
    gets them only if somebody asks for them."""
    spec = config.model.layer_spec
    if spec is LayerSpec.auto and has_cuda() and not has_transformer_engine():
        raise ConfigError(
            "model.layer_spec=auto takes Transformer Engine's layers on a GPU, and the package "
            "transformer_engine[pytorch] is not installed: install it, or write model.layer_spec=local (slower, and "
            "without packed sequences)."
        )
    if spec is LayerSpec.transformer_engine and not (has_cuda() and has_transformer_engine()):
        raise ConfigError(
            "model.layer_spec=transformer_engine needs CUDA and the package transformer_engine[pytorch]: "
            "install it, or write model.layer_spec=local."
        )


def _check_fp8(architecture: Architecture, config: RunConfig) -> None:
    """Megatron-Core ignores fp8 without Transformer Engine, silently: refused here."""
    recipe = config.model.fp8
    if recipe is Fp8Recipe.off:
        return
    if config.model.layer_spec is LayerSpec.local or not (has_cuda() and has_transformer_engine()):
        raise ConfigError(
            f"model.fp8={recipe.name} needs CUDA and Transformer Engine's layers: install transformer_engine[pytorch] "
            "and write model.layer_spec=auto, or write model.fp8=off."
        )
    tensor, multiple = config.trainer.tensor_parallel, FP8_MULTIPLE[recipe]
    widths = {
        "hidden size": architecture.hidden_size,
        "feed-forward shard": architecture.ffn_size // tensor,
        "attention shard": architecture.num_heads * architecture.head_dim // tensor,
        "query-key-value shard": (architecture.num_heads + 2 * architecture.num_kv_heads)
        * architecture.head_dim
        // tensor,
    }
    for what, width in widths.items():
        if width % multiple:
            raise ConfigError(
                f"model.fp8={recipe.name} needs layers whose widths are multiples of {multiple}, but the model's "
                f"{what} is {width}: write another recipe or trainer.tensor_parallel."
            )
