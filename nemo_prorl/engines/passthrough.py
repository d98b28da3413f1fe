"""Checks the settings of vLLM and Megatron-Core that users pass through: sampler.engine_args and model.megatron.

Names and types are compared with the dataclasses that will take them, as their source files declare them: to import
vLLM or Megatron takes seconds, and a misspelt name should be found sooner. Standard library only. Whether a value makes
sense is for the engines to judge; what they refuse when they are built becomes a ConfigError, too (`refusals`).
"""

from __future__ import annotations

import ast
import difflib
import functools
import importlib.util
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_prorl.config import ConfigError, RunConfig
from nemo_prorl.engines.environment import has_cuda


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """Type of a field of a dataclass: its annotation, and the file that says what the names in it mean."""

    annotation: ast.expr
    file: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Dataclasses to which an option of ours passes settings."""

    option: str
    package: str
    classes: Mapping[str, str]
    """Name of the dataclass -> its file, in the package."""
    instead: Mapping[str, str]
    """Field that an option of ours decides -> that option."""
    relied_on: tuple[str, ...] = ()
    """Fields without an option on whose value the trainer relies."""
    allowed: tuple[str, ...] = ()
    """If not empty: the only fields that can be set, because the trainer relies on every other one."""


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
        # The trainer leaves these at their defaults: every process is one rank of one engine.
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
    # Most fields define the model, the loss or the optimizer, and a wrong one raises no error. These change speed,
    # memory or rounding alone. Some that seem to belong here do not: the refit reads the weights right after the
    # optimizer's step (overlap_param_gather); passes vary in their number of tokens (tp_comm_overlap, CUDA graphs); the
    # head does not call Megatron's output layer (defer_embedding_wgrad_compute); gradient buffers are freed (nccl_ub);
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
    """Raises ConfigError for a key of sampler.engine_args that vLLM does not have or that the trainer sets, and for a
    value of the wrong type."""
    _check(VLLM, config.sampler.engine_args, () if has_cuda() else RELIED_ON_ON_CPU)


def check_megatron(config: RunConfig) -> None:
    """Raises ConfigError likewise for model.megatron, whose keys have to be among those that are allowed."""
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
    """Names the settings that were passed through, if there are any, when an engine refuses something in the body:
    raises ConfigError in place of the engine's own error."""
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
            raise ConfigError(f"{key} is what {target.instead[name]} says: write that instead.")
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1, cutoff=0.7)
            hint = f"did you mean {close[0]}?" if close else f"{target.package} has no such setting."
            raise ConfigError(f"{key} is not a field of {' or '.join(target.classes)}: {hint}")
        if name in (*target.relied_on, *on_cpu) or (target.allowed and name not in target.allowed):
            where = "cannot be set on CPU" if name in on_cpu else "cannot be set"
            which = " (docs/gpu.md lists the fields that can be set)" if target.allowed else ""
            raise ConfigError(f"{key} {where}, because the trainer relies on its value: leave it out{which}.")
        if not any(_is(value, kind) for kind in _kinds(known[name].annotation, known[name].file)):
            raise ConfigError(f"{key}={value} has the wrong type: it takes {_described(known[name])}.")


def _described(declared: Declared) -> str:
    kinds = list(_kinds(declared.annotation, declared.file))
    choices = [str(kind.value) for kind in kinds if isinstance(kind, _Choice)]
    if choices and all(kind is None or isinstance(kind, _Choice) for kind in kinds):
        return f"one of {', '.join(choices)}"
    return ast.unparse(declared.annotation)


@functools.cache
def _folder(package: str) -> Path | None:
    """Finds a package's folder without importing it. (A namespace around it is imported, which is empty.)"""
    spec = importlib.util.find_spec(package)
    return Path(spec.origin).parent if spec is not None and spec.origin else None


@functools.cache
def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def _fields(name: str, file: Path) -> dict[str, Declared]:
    """Collects the fields of a dataclass and of its base classes."""
    node, file = _named(name, file)
    if not isinstance(node, ast.ClassDef):
        return {}
    fields: dict[str, Declared] = {}
    for base in node.bases:
        fields |= _fields(ast.unparse(base), file)
    for line in node.body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            fields[line.target.id] = Declared(annotation=line.annotation, file=file)
    return fields


def _named(name: str, file: Path) -> tuple[ast.AST | None, Path]:
    """Looks up a name of a file: returns its class, or the right side of its assignment, and the file of that."""
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
    """Value of a Literal, or name of a member of an Enum."""

    value: Any


_TYPES: Mapping[str, Any] = {
    "bool": bool,
    "int": int,
    "float": float,
    "str": str,
    "list": list,
    "List": list,
    "set": list,
    "tuple": list,
    "Tuple": list,
    "Sequence": list,
    "dict": dict,
    "Dict": dict,
    "Mapping": dict,
    "Any": Any,
    "object": Any,
}


def _kinds(annotation: ast.AST | None, file: Path) -> Iterator[Any]:
    """Yields what an annotation admits: types, None, choices. Any stands for classes and for names of other packages,
    which are left to the engine. What YAML cannot write, such as functions and torch's types, yields nothing."""
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
                    for value in inside:  # a name stands for another Literal
                        yield from (
                            [_Choice(value.value)] if isinstance(value, ast.Constant) else _kinds(value, file)
                        )
                case "Annotated":
                    yield from _kinds(inside[0], file)
                case "Union" | "Optional":
                    yield from ([None] if outer == "Optional" else [])
                    for part in inside:
                        yield from _kinds(part, file)
                case _ if outer in _TYPES:
                    yield _TYPES[outer]
        case ast.Name(id="Callable" | "type"):
            return
        case ast.Name(id=name) if name in _TYPES:
            yield _TYPES[name]
        case ast.Name(id=name):
            node, file = _named(name, file)
            if isinstance(node, ast.ClassDef):
                yield from _members(node) or [Any]
            else:
                yield from _kinds(node, file) if isinstance(node, ast.expr) else [Any]


def _members(node: ast.ClassDef) -> list[Any]:
    """Names of an Enum's members; empty for another class."""
    if not any(ast.unparse(base).rpartition(".")[2] == "Enum" for base in node.bases):
        return []
    targets = (line.targets[0] for line in node.body if isinstance(line, ast.Assign))
    return [_Choice(target.id) for target in targets if isinstance(target, ast.Name)]


def _is(value: Any, kind: Any) -> bool:
    if kind is Any:
        return True
    if isinstance(kind, _Choice):
        return type(value) is type(kind.value) and bool(value == kind.value)
    if kind is None:
        return value is None
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
