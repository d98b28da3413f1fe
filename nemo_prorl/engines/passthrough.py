"""Checks the settings that users pass through to vLLM and Megatron-Core: sampler.engine_args and model.megatron.

Names are compared with the engines' dataclasses, which are read from source: importing vLLM or Megatron takes seconds,
and a misspelt name should be found sooner. Values are left to the engine, whose error `refusals` makes a ConfigError.
"""

from __future__ import annotations

import ast
import functools
import importlib.metadata
import importlib.util
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_prorl.config import ConfigError, Precision, RunConfig, did_you_mean, one_line
from nemo_prorl.engines.environment import has_cuda


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The dataclasses of an engine that receive the settings of one of our options."""

    option: str
    package: str
    classes: Mapping[str, str]
    """Name of the dataclass -> its file in the package."""
    instead: Mapping[str, str]
    """Field that another of our options sets -> that option."""
    relied_on: tuple[str, ...] = ()
    """Fields that no option sets, but on whose value the trainer relies."""
    allowed: tuple[str, ...] = ()
    """The only fields that can be set, if not empty; the trainer relies on the values of all others."""


VLLM = Target(
    option="sampler.engine_args",
    package="vllm",
    classes={"EngineArgs": "engine/arg_utils.py"},
    instead={
        "model": "model.path",
        "dtype": "model.precision",
        "max_model_len": "sampler.max_prompt_tokens and sampler.max_response_tokens",
        "max_num_seqs": "sampler.max_sequences",
        "tensor_parallel_size": "sampler.tensor_parallel",
        "enforce_eager": "sampler.enforce_eager",
        "gpu_memory_utilization": "sampler.memory_fraction",
        "kv_cache_memory_bytes": "sampler.memory_fraction, or sampler.kv_cache_mib on CPU",
        "enable_sleep_mode": "sampler.release_memory",
    },
    relied_on=(
        "distributed_executor_backend",
        "load_format",
        "hf_overrides",
        "logprobs_mode",
        "generation_config",
        "skip_tokenizer_init",
        "disable_log_stats",
        "use_tqdm_on_load",
        "seed",
        "weight_transfer_config",
        # The trainer needs the defaults of these, since every process is one rank of one engine.
        "pipeline_parallel_size",
        "data_parallel_size",
        "worker_cls",
        "tokenizer",
    ),
)

RELIED_ON_ON_CPU = ("block_size", "enable_chunked_prefill", "max_num_batched_tokens")
"""Fields of EngineArgs that the sampler sets on CPU alone."""

_OF_THE_MODEL = (
    "num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", "kv_channels",
    "normalization", "layernorm_epsilon", "qk_layernorm", "add_qkv_bias", "add_bias_linear", "gated_linear_unit",
    "activation_func",
)  # fmt: skip
# Most fields define the model, the loss or the optimizer, and a wrong value raises no error. These change only speed,
# memory or rounding. Some that seem harmless are left out: the refit reads the weights right after the optimizer's step
# (overlap_param_gather); passes vary in their number of tokens (tp_comm_overlap, CUDA graphs); Megatron's output layer
# is not called (defer_embedding_wgrad_compute); gradient buffers are freed (nccl_ub); optimizer states are moved and
# saved as fp32 tensors (optimizer_cpu_offload, use_precision_aware_optimizer); Transformer Engine 2.15 has no FP8
# without FP8 gradients of weights (fp8_wgrad).
_OF_SPEED = (
    "recompute_modules", "cpu_offloading", "cpu_offloading_num_layers", "attention_backend",
    "bias_dropout_fusion", "clone_scatter_output_in_embedding", "deterministic_mode",
    "disable_bf16_reduced_precision_matmul", "overlap_grad_reduce", "bucket_size",
    "pad_buckets_for_high_nccl_busbw", "batch_p2p_comm", "batch_p2p_sync", "barrier_with_L1_time", "fp8_margin",
    "fp8_amax_history_len", "fp8_amax_compute_algo", "first_last_layers_bf16", "num_layers_at_start_in_bf16",
    "num_layers_at_end_in_bf16",
)  # fmt: skip

MEGATRON = Target(
    option="model.megatron",
    package="megatron.core",
    classes={
        "TransformerConfig": "transformer/transformer_config.py",
        "DistributedDataParallelConfig": "distributed/distributed_data_parallel_config.py",
        "OptimizerConfig": "optimizer/optimizer_config.py",
    },
    instead={
        "tensor_model_parallel_size": "trainer.tensor_parallel",
        "pipeline_model_parallel_size": "trainer.pipeline_parallel",
        "sequence_parallel": "trainer.sequence_parallel",
        "use_distributed_optimizer": "trainer.distributed_optimizer",
        "bf16": "model.precision",
        "params_dtype": "model.precision",
        "pipeline_dtype": "model.precision",
        "fp8": "model.fp8",
        "fp8_recipe": "model.fp8",
        "recompute_granularity": "model.recompute",
        "recompute_method": "model.recompute",
        "recompute_num_layers": "model.recompute",
        "lr": "trainer.learning_rate",
        "weight_decay": "trainer.weight_decay",
        "adam_beta1": "trainer.adam_beta1",
        "adam_beta2": "trainer.adam_beta2",
        "adam_eps": "trainer.adam_epsilon",
        "clip_grad": "trainer.clip_grad",
        **dict.fromkeys(_OF_THE_MODEL, "model.path"),
    },
    allowed=_OF_SPEED,
)


_FP8_BLOCKS_OR_TENSORS = ("tensorwise", "blockwise")
TAKES_EFFECT_WITH: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "fp8_margin": ("fp8", ("delayed",)),
    "fp8_amax_history_len": ("fp8", ("delayed",)),
    "fp8_amax_compute_algo": ("fp8", ("delayed",)),
    "first_last_layers_bf16": ("fp8", _FP8_BLOCKS_OR_TENSORS),
    "num_layers_at_start_in_bf16": ("fp8", _FP8_BLOCKS_OR_TENSORS),
    "num_layers_at_end_in_bf16": ("fp8", _FP8_BLOCKS_OR_TENSORS),
    "recompute_modules": ("recompute", ("selective",)),
}
"""Field of Megatron -> the option of `model`, and its values, without which Megatron ignores the field."""


FLASH_ATTENTION = ("flash-attn", "flash-attn-3", "flash-attn-4")
"""Distributions of which Transformer Engine uses any one."""


def check_engine_args(config: RunConfig) -> None:
    """Raises ConfigError for a key of sampler.engine_args that vLLM lacks or that cannot be set."""
    _check(VLLM, config.sampler.engine_args, () if has_cuda() else RELIED_ON_ON_CPU)


def check_megatron(config: RunConfig) -> None:
    """Raises ConfigError for a key of model.megatron that cannot be set or would have no effect, and for an attention
    that cannot run."""
    given = config.model.megatron
    _check(MEGATRON, given)
    for name in given:
        option, values = TAKES_EFFECT_WITH.get(name, ("", ()))
        if option and (found := getattr(config.model, option).name) not in values:
            raise ConfigError(
                f"model.megatron.{name} has no effect with model.{option}={found}: leave it out, or write "
                f"model.{option}={' or '.join(values)}."
            )
    if "attention_backend" in given:
        _check_attention(str(given["attention_backend"]), config.model.precision)


def _check_attention(backend: str, precision: Precision) -> None:
    """Raises ConfigError for an attention that Transformer Engine would miss only in the first pass, after everything
    is loaded."""
    key = f"model.megatron.attention_backend={backend}"
    if backend == "local":
        raise ConfigError(
            f"{key} leaves Transformer Engine without an attention: write auto, fused or unfused."
        )
    if backend == "flash" and not any(map(_is_installed, FLASH_ATTENTION)):
        raise ConfigError(
            f"{key} needs the package {FLASH_ATTENTION[0]}, which is not installed here: write auto, fused (cuDNN's) "
            "or unfused."
        )
    if backend in ("flash", "fused") and precision is Precision.fp32:
        raise ConfigError(f"{key} computes in 16 bits: write model.precision=bf16, or auto or unfused.")


def _is_installed(distribution: str) -> bool:
    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def fields_of(target: Target) -> set[str]:
    """Returns every field of the target's dataclasses. Raises ConfigError if the package is not installed."""
    # This does not import the package, only an enclosing namespace package, which is empty.
    spec = importlib.util.find_spec(target.package)
    if spec is None or not spec.origin:
        raise ConfigError(
            f"{target.option} is given, but the package {target.package} is not installed here."
        )
    folder = Path(spec.origin).parent
    return set().union(*(_fields(name, folder / file) for name, file in target.classes.items()))


@contextmanager
def refusals(option: str, given: Mapping[str, Any]) -> Iterator[None]:
    """Replaces an engine's error in the `with` block by a ConfigError that names the settings passed through. If there
    are none (`given` is empty), the engine's error rises unchanged."""
    try:
        yield
    except (ValueError, TypeError, AssertionError, NotImplementedError) as error:
        if not given or isinstance(error, ConfigError):
            raise
        reason = one_line(error)
        raise ConfigError(
            f"the engine cannot be built with {option}={dict(given)}: {reason.rstrip('.')}."
        ) from error


def _check(target: Target, given: Mapping[str, Any], on_cpu: tuple[str, ...] = ()) -> None:
    if not given:
        return
    known = fields_of(target)
    for name in given:
        key = f"{target.option}.{name}"
        if name in target.instead:
            raise ConfigError(f"{key} is set by {target.instead[name]}: write that instead.")
        if name not in known:
            hint = did_you_mean(name, known, f"{target.package} has no such setting.")
            raise ConfigError(f"{key} is not a field of {' or '.join(target.classes)}: {hint}")
        if name in (*target.relied_on, *on_cpu) or (target.allowed and name not in target.allowed):
            where = "cannot be set on CPU" if name in on_cpu else "cannot be set"
            which = " (docs/gpu.md lists the fields that can be set)" if target.allowed else ""
            raise ConfigError(f"{key} {where}, because the trainer relies on its value: leave it out{which}.")


@functools.cache
def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def _fields(name: str, file: Path) -> set[str]:
    """Returns the fields of a dataclass and of its base classes. A name that `file` imports is followed."""
    for node in _tree(file).body:
        match node:
            case ast.ClassDef(name=found) if found == name:
                inherited = (_fields(ast.unparse(base), file) for base in node.bases)
                lines = (line.target for line in node.body if isinstance(line, ast.AnnAssign))
                return {line.id for line in lines if isinstance(line, ast.Name)}.union(*inherited)
            case ast.ImportFrom(names=names):
                for alias in names:
                    if (alias.asname or alias.name) == name and (source := _source(node, file)):
                        return _fields(alias.name, source)
    return set()


def _source(node: ast.ImportFrom, file: Path) -> Path | None:
    """Returns the file of the module that an import in `file` names, if it belongs to the same package."""
    parts = (node.module or "").split(".")
    if node.level:
        path = file.parents[node.level - 1].joinpath(*parts)
    else:
        roots = [parent.parent for parent in file.parents if parent.name == parts[0]]
        if not roots:
            return None
        path = roots[0].joinpath(*parts)
    places = (path.with_name(f"{path.name}.py"), path / "__init__.py")
    return next((place for place in places if place.is_file()), None)
