"""Checks the settings that users pass through to vLLM and Megatron-Core: sampler.engine_args and model.megatron. Values
are left to the engine, whose error `refusals` makes a ConfigError.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from nemo_prorl.config import ConfigError, ModelConfig, Precision, SamplerConfig, did_you_mean, one_line
from nemo_prorl.engines.environment import has_cuda, prepare

VLLM_INSTEAD = {
    "model": "model.path",
    "dtype": "model.precision",
    "max_model_len": "sampler.max_prompt_tokens and sampler.max_response_tokens",
    "max_num_seqs": "sampler.max_sequences",
    "tensor_parallel_size": "sampler.tensor_parallel",
    "enforce_eager": "sampler.enforce_eager",
    "gpu_memory_utilization": "sampler.memory_fraction",
    "kv_cache_memory_bytes": "sampler.memory_fraction, or sampler.kv_cache_mib on CPU",
    "enable_sleep_mode": "sampler.release_memory",
}
"""Field of vLLM's EngineArgs that another of our options sets -> that option."""
VLLM_RELIED_ON = (
    "distributed_executor_backend", "load_format", "hf_overrides", "logprobs_mode", "generation_config",
    "skip_tokenizer_init", "disable_log_stats", "use_tqdm_on_load", "seed", "weight_transfer_config",
    # The trainer needs the defaults of these, since every process is one rank of one engine.
    "pipeline_parallel_size", "data_parallel_size", "worker_cls", "tokenizer",
)  # fmt: skip
"""Fields that no option sets, but on whose value the trainer relies."""
RELIED_ON_ON_CPU = ("block_size", "enable_chunked_prefill", "max_num_batched_tokens")
"""Fields of EngineArgs that the sampler sets on CPU alone."""

# Most fields define the model, the loss or the optimizer, and a wrong value raises no error. These change only speed,
# memory or rounding. Some that seem harmless are left out: the refit reads the weights right after the optimizer's step
# (overlap_param_gather); passes vary in their number of tokens (tp_comm_overlap, CUDA graphs); Megatron's output layer
# is not called (defer_embedding_wgrad_compute); gradient buffers are freed (nccl_ub); optimizer states are moved and
# saved as fp32 tensors (optimizer_cpu_offload, use_precision_aware_optimizer); Transformer Engine 2.15 has no FP8
# without FP8 gradients of weights (fp8_wgrad).
MEGATRON_ALLOWED = (
    "recompute_modules", "cpu_offloading", "cpu_offloading_num_layers", "attention_backend",
    "bias_dropout_fusion", "clone_scatter_output_in_embedding", "deterministic_mode",
    "disable_bf16_reduced_precision_matmul", "overlap_grad_reduce", "bucket_size",
    "pad_buckets_for_high_nccl_busbw", "batch_p2p_comm", "batch_p2p_sync", "barrier_with_L1_time", "fp8_margin",
    "fp8_amax_history_len", "fp8_amax_compute_algo", "first_last_layers_bf16", "num_layers_at_start_in_bf16",
    "num_layers_at_end_in_bf16",
)  # fmt: skip

_OF_THE_MODEL = (
    "num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", "kv_channels",
    "normalization", "layernorm_epsilon", "qk_layernorm", "add_qkv_bias", "add_bias_linear", "gated_linear_unit",
    "activation_func",
)  # fmt: skip
MEGATRON_INSTEAD = {
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
}
"""Field of Megatron's configurations that another of our options sets -> that option."""


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
