"""Checks whether a model can be trained as the configuration says. Cheap: reads JSON files and headers, and imports
torch only for a tied model with an output layer in its files, and vLLM only for sampler.engine_args. build.py checks
compute capability and CUDA version.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from nemo_prorl.config import (
    ConfigError,
    Fp8Recipe,
    LayerSpec,
    Optimizer,
    Precision,
    RunConfig,
    TrainerConfig,
)
from nemo_prorl.config.layout import check_layout
from nemo_prorl.engines.environment import has_cuda
from nemo_prorl.engines.megatron.architecture import Architecture, read_architecture, read_json_object
from nemo_prorl.engines.megatron.weight_files import check_weights
from nemo_prorl.engines.passthrough import check_engine_args, check_megatron

CPU_HEAD_DIMS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Head sizes that vLLM's CPU attention supports (CPUAttentionBackend.get_supported_head_sizes in 0.32.0). vLLM would
refuse another one only at the first forward pass."""

CPU_BLOCK_TOKENS = 32
"""Tokens in a block of vLLM's KV cache on CPU. vLLM's default, 128, is longer than most prompts of small models, so
siblings could not share the blocks of their prompt."""

FP8_MULTIPLE = {Fp8Recipe.delayed: 16, Fp8Recipe.tensorwise: 16, Fp8Recipe.blockwise: 128}
"""The number of which the tokens of a pass and the widths of the linear layers on each rank must be multiples."""

CHECKPOINT_MARK = "policy.json"
"""The file that marks a folder as a complete Megatron checkpoint of ours (see checkpoint.py)."""


def check_model(
    model: str | Path | Mapping[str, Any], config: RunConfig, world_size: int, *, trains: bool = True
) -> None:
    """Raises ConfigError unless the model can be built as `config` says on `world_size` ranks.

    model: the folder (config.model.path), or the content of a config.json, for which no files are checked.
    trains: False if only the sampler runs, so that Megatron's options do not matter.
    """
    if not model:
        raise ConfigError("model.path is empty: write model.path=FOLDER of a Hugging Face checkpoint.")
    architecture = read_architecture(model)
    if not isinstance(model, Mapping):
        check_files(Path(model), architecture)
    check_shape(architecture, config, world_size)
    if not has_cuda() and architecture.head_dim not in CPU_HEAD_DIMS:
        raise ConfigError(
            f"The model's head_dim={architecture.head_dim} is not supported by vLLM's attention on CPU: "
            f"it takes {', '.join(map(str, CPU_HEAD_DIMS))}."
        )
    _check_kv_cache(architecture, config)
    check_engine_args(config.sampler)
    if trains:
        _check_layer_spec(config.model.layer_spec)
        _check_fp8(architecture, config)
        check_megatron(config.model)


def check_shape(architecture: Architecture, config: RunConfig, world_size: int) -> None:
    """Raises ConfigError unless layout and context length fit the model. This part of `check_model` does not depend on
    the machine."""
    tensor, pipeline = config.trainer.tensor_parallel, config.trainer.pipeline_parallel
    check_layout(world_size, tensor, pipeline)
    if architecture.num_heads % architecture.num_kv_heads:
        raise ConfigError(
            f"The model's number of attention heads, {architecture.num_heads}, is not a multiple of its "
            f"{architecture.num_kv_heads} key-value heads."
        )
    sampler = config.sampler.tensor_parallel
    for option, ranks, count, what in (
        ("trainer.tensor_parallel", tensor, architecture.num_heads, "model's {} attention heads"),
        ("trainer.tensor_parallel", tensor, architecture.num_kv_heads, "model's {} key-value heads"),
        ("trainer.tensor_parallel", tensor, architecture.ffn_size, "model's {} feed-forward columns"),
        ("sampler.tensor_parallel", sampler, world_size, "{} rank(s)"),
        ("sampler.tensor_parallel", sampler, architecture.num_heads, "{} attention heads of the model"),
    ):
        if count % ranks:
            raise ConfigError(
                f"{option}={ranks} does not divide the {what.format(count)}: write a divisor of it."
            )
    if config.lora.rank > architecture.hidden_size:
        raise ConfigError(
            f"lora.rank={config.lora.rank} is more than the model's hidden size {architecture.hidden_size}, the rank "
            "of full matrices: write a smaller one, or lora.rank=0 to train all weights."
        )
    if architecture.num_layers < pipeline:
        raise ConfigError(
            f"trainer.pipeline_parallel={pipeline} is more than the model's {architecture.num_layers} layers: "
            "write at most as many."
        )
    _check_positions(architecture, config)


def check_context(architecture: Architecture, config: RunConfig) -> None:
    """Raises ConfigError unless the model, and vLLM's KV cache on CPU, have room for the longest prompt and response.
    This part of `check_model` depends on sampler.max_prompt_tokens and sampler.max_response_tokens alone."""
    _check_positions(architecture, config)
    _check_kv_cache(architecture, config)


def _check_positions(architecture: Architecture, config: RunConfig) -> None:
    if config.sampler.context_tokens > architecture.max_positions:
        raise ConfigError(
            f"sampler.max_prompt_tokens={config.sampler.max_prompt_tokens} and "
            f"sampler.max_response_tokens={config.sampler.max_response_tokens} are together longer than the model's "
            f"max_position_embeddings={architecture.max_positions}: reduce one of them."
        )


def has_transformer_engine() -> bool:
    """Returns whether Transformer Engine is installed together with its torch extension, without which importing
    Megatron fails. Looks for the extension's file where Transformer Engine does (its common/__init__.py): in the
    package, or beside it for an editable install. Python's import system does not find it before Transformer Engine
    has loaded it."""
    package = importlib.util.find_spec("transformer_engine")
    if package is None or package.origin is None:
        return False
    folder = Path(package.origin).parent
    places = (folder / "wheel_lib", folder, folder.parent)
    return any(file for place in places for file in place.glob("transformer_engine_torch*.so"))


def use_transformer_engine(spec: LayerSpec, cuda: bool) -> bool:
    """Returns whether model.layer_spec stands for Transformer Engine's layers on this machine."""
    return spec is LayerSpec.transformer_engine or (spec is LayerSpec.auto and cuda)


def shards_optimizer(trainer: TrainerConfig) -> bool:
    """Returns whether several replicas divide the optimizer's state among themselves: Adam's; SGD's stays whole."""
    return trainer.distributed_optimizer and trainer.optimizer is Optimizer.adam


def check_files(folder: Path, architecture: Architecture) -> None:
    """Raises ConfigError unless the folder holds the weights of the architecture and of nothing else, and names stop
    tokens that the model has. The tokenizer is checked where it is loaded (engines/tokenizer.py)."""
    declared_stop_ids(folder, architecture.vocab_size)
    check_weights(folder, architecture)


def declared_stop_ids(folder: Path, vocab_size: int) -> list[int]:
    """Returns eos_token_id of generation_config.json, or of config.json where that file does not exist. Raises
    ConfigError for ids that the model does not have."""
    file = folder / "generation_config.json"
    if not file.exists():
        file = folder / "config.json"
    found = read_json_object(file).get("eos_token_id")
    ids = found if isinstance(found, list) else [] if found is None else [found]
    if not all(type(item) is int and 0 <= item < vocab_size for item in ids):
        raise ConfigError(
            f"{file} has eos_token_id={json.dumps(found)}: a token of the model's vocabulary is needed, a whole "
            f"number from 0 to {vocab_size - 1}, or a list of them."
        )
    return ids


def _check_kv_cache(architecture: Architecture, config: RunConfig) -> None:
    """Raises ConfigError if the KV cache on CPU cannot hold one sequence, or is larger than the machine's free memory.
    vLLM would refuse it only after the policy is built."""
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
            f"tokens: write at least {needed_mib}, a multiple of it to sample several sequences at a time, or reduce "
            "sampler.max_prompt_tokens or sampler.max_response_tokens."
        )
    free_mib = psutil.virtual_memory().available >> 20
    if sampler.kv_cache_mib > free_mib:
        raise ConfigError(
            f"sampler.kv_cache_mib={sampler.kv_cache_mib} is more than this machine's free memory of {free_mib:,} MiB: "
            "reduce it."
        )


def _check_layer_spec(spec: LayerSpec) -> None:
    """Raises ConfigError if the layers are not installed. On a GPU, `auto` does not fall back to Megatron's own layers,
    which are much slower and compute on padding."""
    if spec is LayerSpec.auto and has_cuda() and not has_transformer_engine():
        raise ConfigError(
            "model.layer_spec=auto uses Transformer Engine's layers on a GPU, but the package "
            "transformer_engine[pytorch] is not installed: install it, or write model.layer_spec=local (slower, and "
            "without packed sequences)."
        )
    if spec is LayerSpec.transformer_engine and not (has_cuda() and has_transformer_engine()):
        raise ConfigError(
            "model.layer_spec=transformer_engine needs CUDA and the package transformer_engine[pytorch]: "
            "install it, or write model.layer_spec=local."
        )


def _check_fp8(architecture: Architecture, config: RunConfig) -> None:
    """Raises ConfigError if the model cannot run in FP8 here. Megatron-Core silently ignores fp8 without Transformer
    Engine."""
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
