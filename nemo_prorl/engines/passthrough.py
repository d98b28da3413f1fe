"""Checks the settings that users pass through to vLLM and Megatron-Core: sampler.engine_args and model.megatron. Values
are left to the engine, whose error `refusals` makes a ConfigError.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from nemo_prorl.config import ConfigError, ModelConfig, Precision, SamplerConfig, did_you_mean, one_line
from nemo_prorl.engines.environment import has_cuda, prepare

_TABLES = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
VLLM_INSTEAD: Mapping[str, str] = _TABLES["vllm"]["instead"]
"""Field of vLLM's EngineArgs that another of our options sets -> that option."""
VLLM_RELIED_ON: Collection[str] = _TABLES["vllm"]["relied_on"]
"""Fields that no option sets, but on whose value the trainer relies."""
RELIED_ON_ON_CPU: Collection[str] = _TABLES["vllm"]["relied_on_on_cpu"]
"""Fields of EngineArgs that the sampler sets on CPU alone."""
MEGATRON_ALLOWED: Collection[str] = _TABLES["megatron"]["allowed"]
MEGATRON_INSTEAD: Mapping[str, str] = _TABLES["megatron"]["instead"]
"""Field of Megatron's configurations that another of our options sets -> that option."""
TAKES_EFFECT_WITH: Mapping[str, tuple[str, tuple[str, ...]]] = _TABLES["megatron"]["takes_effect_with"]
"""Field of Megatron -> the option of `model`, and its values, without which Megatron ignores the field."""
FLASH_ATTENTION = ("flash-attn", "flash-attn-3", "flash-attn-4")
"""Distributions of which Transformer Engine uses any one."""


def check_engine_args(config: SamplerConfig) -> None:
    """Raises ConfigError for a key of sampler.engine_args that vLLM lacks or that cannot be set. If there is any, this
    imports vLLM, in an environment that is prepared for it."""
    given, option = config.engine_args, "sampler.engine_args"
    if not given:
        return
    _check_instead(given, option, VLLM_INSTEAD)
    prepare()
    try:
        from vllm.engine.arg_utils import EngineArgs
    except ImportError as error:
        raise ConfigError(
            f"{option} is given, but vLLM cannot be imported here: {one_line(error)}."
        ) from error
    known = {field.name for field in dataclasses.fields(EngineArgs)}
    on_cpu = () if has_cuda() else RELIED_ON_ON_CPU
    for name in given:
        if name not in known:
            hint = did_you_mean(name, known, "vllm has no such setting.")
            raise ConfigError(f"{option}.{name} is not a field of EngineArgs: {hint}")
        if name in (*VLLM_RELIED_ON, *on_cpu):
            where = " on CPU" if name in on_cpu else ""
            raise ConfigError(
                f"{option}.{name} cannot be set{where}, because the trainer relies on its value: leave it out."
            )


def check_megatron(config: ModelConfig) -> None:
    """Raises ConfigError for a key of model.megatron that cannot be set or would have no effect, and for an attention
    that cannot run."""
    given, option = config.megatron, "model.megatron"
    _check_instead(given, option, MEGATRON_INSTEAD)
    for name in given:
        if name not in MEGATRON_ALLOWED:
            hint = did_you_mean(name, MEGATRON_ALLOWED, "docs/gpu.md lists the fields that can be.")
            raise ConfigError(
                f"{option}.{name} cannot be set, unlike what changes only speed or rounding: {hint}"
            )
        needed, values = TAKES_EFFECT_WITH.get(name, ("", ()))
        if needed and (found := getattr(config, needed).name) not in values:
            raise ConfigError(
                f"{option}.{name} has no effect with model.{needed}={found}: leave it out, or write "
                f"model.{needed}={' or '.join(values)}."
            )
    if "attention_backend" in given:
        _check_attention(str(given["attention_backend"]), config.precision)


def _check_instead(given: Collection[str], option: str, instead: Mapping[str, str]) -> None:
    for name in given:
        if name in instead:
            raise ConfigError(f"{option}.{name} is set by {instead[name]}: write that instead.")


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
