"""Checks the settings that users pass through to vLLM and Megatron-Core: sampler.engine_args and model.megatron.

Names and types are compared with the engines' dataclasses, which are read from source: importing vLLM or Megatron takes
seconds, and a misspelt name should be found sooner. Standard library only. Values are not checked; `refusals` turns the
error of an engine that refuses one into a ConfigError.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_prorl.config import ConfigError, RunConfig, did_you_mean
from nemo_prorl.engines.environment import has_cuda

Declared = tuple[ast.expr, Path]
"""The annotation of a dataclass field, and the source file in which the annotation's names are looked up."""


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
"""Fields of EngineArgs that `vllm_sampler` sets on CPU alone."""

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
        **dict.fromkeys(
            (
                "num_layers",
                "hidden_size",
                "ffn_hidden_size",
                "num_attention_heads",
                "num_query_groups",
                "kv_channels",
                "normalization",
                "layernorm_epsilon",
                "qk_layernorm",
                "add_qkv_bias",
                "add_bias_linear",
                "gated_linear_unit",
                "activation_func",
            ),
            "model.path",
        ),
    },
    # Most fields define the model, the loss or the optimizer, and a wrong value raises no error. These change only
    # speed, memory or rounding. Some that seem harmless are left out: the refit reads the weights right after the
    # optimizer's step (overlap_param_gather); passes vary in their number of tokens (tp_comm_overlap, CUDA graphs);
    # Megatron's output layer is not called (defer_embedding_wgrad_compute); gradient buffers are freed (nccl_ub);
    # optimizer states are moved and saved as fp32 tensors (optimizer_cpu_offload, use_precision_aware_optimizer).
    allowed=(
        "recompute_modules",
        "cpu_offloading",
        "cpu_offloading_num_layers",
        "attention_backend",
        "bias_dropout_fusion",
        "clone_scatter_output_in_embedding",
        "deterministic_mode",
        "disable_bf16_reduced_precision_matmul",
        "overlap_grad_reduce",
        "bucket_size",
        "pad_buckets_for_high_nccl_busbw",
        "batch_p2p_comm",
        "batch_p2p_sync",
        "barrier_with_L1_time",
        "fp8_wgrad",
        "fp8_margin",
        "fp8_amax_history_len",
        "fp8_amax_compute_algo",
        "first_last_layers_bf16",
        "num_layers_at_start_in_bf16",
        "num_layers_at_end_in_bf16",
    ),
)


def check_engine_args(config: RunConfig) -> None:
    """Raises ConfigError for a key of sampler.engine_args that vLLM lacks or that cannot be set, and for a value of the
    wrong type."""
    _check(VLLM, config.sampler.engine_args, () if has_cuda() else RELIED_ON_ON_CPU)


def check_megatron(config: RunConfig) -> None:
    """Raises ConfigError for a key of model.megatron that cannot be set, and for a value of the wrong type."""
    _check(MEGATRON, config.model.megatron)


def fields_of(target: Target) -> dict[str, Declared]:
    """Returns every field of the target's dataclasses. Raises ConfigError if the package is not installed."""
    folder = _folder(target.package)
    if folder is None:
        raise ConfigError(
            f"{target.option} is given, but the package {target.package} is not installed here."
        )
    found: dict[str, Declared] = {}
    for name, file in target.classes.items():
        found |= _fields(name, folder / file)
    return found


@contextmanager
def refusals(option: str, given: Mapping[str, Any]) -> Iterator[None]:
    """Replaces an engine's error in the `with` block by a ConfigError that names the settings passed through. If there
    are none (`given` is empty), the engine's error rises unchanged."""
    try:
        yield
    except (ValueError, TypeError, AssertionError, NotImplementedError) as error:
        if not given or isinstance(error, ConfigError):
            raise
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ConfigError(
            f"the engine cannot be built with {option}={dict(given)}: {reason.rstrip('.')}."
        ) from error


def _check(target: Target, given: Mapping[str, Any], on_cpu: tuple[str, ...] = ()) -> None:
    if not given:
        return
    known = fields_of(target)
    for name, value in given.items():
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
        kinds = list(_kinds(*known[name]))
        if not any(_is(value, kind) for kind in kinds):
            choices = [str(kind.value) for kind in kinds if isinstance(kind, _Choice)]
            only_choices = choices and all(kind is None or isinstance(kind, _Choice) for kind in kinds)
            takes = f"one of {', '.join(choices)}" if only_choices else ast.unparse(known[name][0])
            raise ConfigError(f"{key}={value} has the wrong type: it takes {takes}.")


@functools.cache
def _folder(package: str) -> Path | None:
    """Returns a package's folder without importing it, or None. (An enclosing namespace package is imported, which is
    empty.)"""
    spec = importlib.util.find_spec(package)
    return Path(spec.origin).parent if spec is not None and spec.origin else None


@functools.cache
def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def _fields(name: str, file: Path) -> dict[str, Declared]:
    """Returns the fields of a dataclass and of its base classes."""
    node, file = _named(name, file)
    if not isinstance(node, ast.ClassDef):
        return {}
    fields: dict[str, Declared] = {}
    for base in node.bases:
        fields |= _fields(ast.unparse(base), file)
    for line in node.body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            fields[line.target.id] = line.annotation, file
    return fields


def _named(name: str, file: Path) -> tuple[ast.AST | None, Path]:
    """Returns what a name in a file stands for, following imports: the class or the assigned expression, or None, and
    the file that defines it."""
    for node in _tree(file).body:
        match node:
            case ast.ClassDef(name=found) if found == name:
                return node, file
            case ast.Assign(targets=[ast.Name(id=found)], value=value) if found == name:
                return value, file
            case ast.AnnAssign(target=ast.Name(id=found), value=ast.expr() as value) if found == name:
                return value, file
            case ast.ImportFrom(names=names):
                for alias in names:
                    if (alias.asname or alias.name) == name and (source := _source(node, file)):
                        return _named(alias.name, source)
    return None, file


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


@dataclass(frozen=True, slots=True)
class _Choice:
    """A value of a Literal, or the name of an Enum's member."""

    value: Any


_TYPES: Mapping[str, Any] = {
    **{"bool": bool, "int": int, "float": float, "str": str},
    **dict.fromkeys(("list", "List", "set", "tuple", "Tuple", "Sequence"), list),
    **dict.fromkeys(("dict", "Dict", "Mapping"), dict),
    **dict.fromkeys(("Any", "object"), Any),
}
"""What YAML has for a type of that name."""


def _kinds(annotation: ast.AST | None, file: Path) -> Iterator[Any]:
    """Yields what an annotation accepts: types, None, choices. Classes and names of other packages yield Any, because
    only the engine can check them. What YAML cannot express, such as functions and torch's types, yields nothing."""
    match annotation:
        case ast.Constant(value=str(text)):  # in quotes
            yield from _kinds(ast.parse(text, mode="eval").body, file)
        case ast.Constant(value=None):
            yield None
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            yield from _kinds(left, file)
            yield from _kinds(right, file)
        case ast.Subscript(value=ast.Name(id=outer), slice=inner):
            inside = inner.elts if isinstance(inner, ast.Tuple) else [inner]
            match outer:
                case "Literal":
                    for part in inside:  # a name stands for another Literal
                        yield from (
                            [_Choice(part.value)] if isinstance(part, ast.Constant) else _kinds(part, file)
                        )
                case "Annotated":
                    yield from _kinds(inside[0], file)
                case "Union" | "Optional":
                    for part in [*inside, *([ast.Constant(None)] if outer == "Optional" else [])]:
                        yield from _kinds(part, file)
                case _ if outer in _TYPES:
                    yield _TYPES[outer]
        case ast.Name(id=name) if name in _TYPES:
            yield _TYPES[name]
        case ast.Name(id=name) if name not in ("Callable", "type"):
            node, file = _named(name, file)
            match node:
                case ast.ClassDef(bases=bases) if {"Enum", "enum.Enum"} & {*map(ast.unparse, bases)}:
                    targets = (line.targets[0] for line in node.body if isinstance(line, ast.Assign))
                    yield from [_Choice(target.id) for target in targets if isinstance(target, ast.Name)]
                case ast.expr():
                    yield from _kinds(node, file)
                case _:
                    yield Any


def _is(value: Any, kind: Any) -> bool:
    """Returns whether a value from YAML is of a kind that `_kinds` has yielded. A bool is no number."""
    if kind is Any:
        return True
    if isinstance(kind, _Choice):
        return type(value) is type(kind.value) and bool(value == kind.value)
    if kind is None:
        return value is None
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
