"""Builds Megatron's model, gradient buffers and optimizer from an Architecture and a RunConfig.

The only file that knows Megatron's configuration classes and its GPTModel (deprecated from 0.19 on).
"""

from __future__ import annotations

import dataclasses
import importlib.util
from enum import Enum
from typing import Any

import torch
import torch.nn.functional as F

from nemo_prorl.config import ConfigError, Fp8Recipe, Precision, Recompute, RunConfig
from nemo_prorl.distributed import COLLECTIVE_TIMEOUT, Layout
from nemo_prorl.engines.megatron import core
from nemo_prorl.engines.megatron.architecture import Architecture
from nemo_prorl.engines.megatron.check import FP8_MULTIPLE, use_transformer_engine
from nemo_prorl.engines.megatron.core import parallel_state
from nemo_prorl.engines.megatron.norm import CausalAttention, RMSNorm
from nemo_prorl.engines.megatron.weights import mark_shards
from nemo_prorl.engines.passthrough import refusals


class HiddenStateModel(core.GPTModel):
    """A GPTModel whose last stage yields hidden states [T, B, H] instead of logits, which would be the largest tensor
    of a step; vocab_parallel.py takes it from there."""

    def _postprocess(self, hidden_states: torch.Tensor, *_args: Any, **_kwargs: Any) -> torch.Tensor:
        return hidden_states


_groups_of: Any = None
"""The default process group and the layout that Megatron's groups were made for."""


def initialise_groups(layout: Layout, seed: int) -> None:
    """Megatron's process groups, which are global to the process: a policy of another layout replaces them."""
    global _groups_of
    wanted = (torch.distributed.group.WORLD, layout.tensor_parallel, layout.pipeline_parallel)
    if _groups_of == wanted:
        return
    if parallel_state.model_parallel_is_initialized():
        parallel_state.destroy_model_parallel()
    _groups_of = wanted
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=layout.tensor_parallel,
        pipeline_model_parallel_size=layout.pipeline_parallel,
        create_gloo_process_groups=False,
        distributed_timeout_minutes=int(COLLECTIVE_TIMEOUT.total_seconds() // 60),
    )
    # Nothing is random in training (no dropout), but Megatron's layers insist on their generators.
    core.model_parallel_cuda_manual_seed(seed)


def build_model(architecture: Architecture, config: RunConfig) -> HiddenStateModel:
    """This rank's part of the model, with weights still to be filled."""
    check_hardware(config)
    trainer = config.trainer
    transformer_engine = use_transformer_engine(config, torch.cuda.is_available())
    megatron = transformer_config(architecture, config)
    if transformer_engine:
        spec = core.gpt_layer_specs.get_gpt_layer_with_transformer_engine_spec(
            qk_layernorm=architecture.qk_norm
        )
    else:
        stage = parallel_state.get_pipeline_model_parallel_rank()
        spec = _local_spec(architecture, architecture.layers_per_stage(trainer.pipeline_parallel)[stage])
    model = HiddenStateModel(
        config=megatron,
        transformer_layer_spec=spec,
        vocab_size=architecture.padded_vocab(trainer.tensor_parallel, config.model.vocab_divisible_by),
        max_sequence_length=architecture.max_positions,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        position_embedding_type="rope",
        rotary_base=architecture.rope_theta,  # type: ignore[arg-type]
        rope_scaling=architecture.rope_factor > 0,
        rope_scaling_factor=architecture.rope_factor,
        share_embeddings_and_output_weights=architecture.tied,
    )
    if transformer_engine and config.model.fp8 is not Fp8Recipe.off:
        _assert_fp8_modules(model)
    mark_shards(model)
    return model.to(torch.device(torch.cuda.current_device()))


def transformer_config(architecture: Architecture, config: RunConfig) -> core.TransformerConfig:
    """Everything that Megatron's layers read."""
    trainer, model = config.trainer, config.model
    dtype = torch.bfloat16 if model.precision is Precision.bf16 else torch.float32
    return _made(
        core.TransformerConfig,
        config,
        num_layers=architecture.num_layers,
        hidden_size=architecture.hidden_size,
        ffn_hidden_size=architecture.ffn_size,
        num_attention_heads=architecture.num_heads,
        num_query_groups=architecture.num_kv_heads,
        kv_channels=architecture.head_dim,
        normalization="RMSNorm",
        layernorm_epsilon=architecture.norm_epsilon,
        qk_layernorm=architecture.qk_norm,
        add_qkv_bias=architecture.qkv_bias,
        add_bias_linear=False,
        gated_linear_unit=True,
        activation_func=F.silu,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        tensor_model_parallel_size=trainer.tensor_parallel,
        pipeline_model_parallel_size=trainer.pipeline_parallel,
        pipeline_model_parallel_layout=_stages(architecture, trainer.pipeline_parallel),
        sequence_parallel=trainer.sequence_parallel,
        # Micro-batches are bucketed by length, so pipeline stages tell each other the shape of each.
        variable_seq_lengths=trainer.pipeline_parallel > 1,
        moe_token_dispatcher_type="alltoall",  # unused, but the default is refused with variable lengths
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=dtype is torch.bfloat16,
        perform_initialization=False,
        use_cpu_initialization=not torch.cuda.is_available(),
        gradient_accumulation_fusion=importlib.util.find_spec("fused_weight_gradient_mlp_cuda") is not None,
        # SwiGLU as one compiled function that keeps its input alone. Uncompiled, on CPU, it would only be slower.
        bias_activation_fusion=torch.cuda.is_available(),
        # Megatron's own rotation of packed sequences waits for the GPU in every layer to learn their lengths.
        apply_rope_fusion=use_transformer_engine(config, torch.cuda.is_available()),
        # Together these two make gradients plain sums over micro-batches and replicas: Megatron then neither averages
        # over either nor divides by a token count. The loss function has divided by the totals of the update.
        calculate_per_token_loss=True,
        finalize_model_grads_func=_sum_gradients,
        **_recompute(model.recompute),
        **_fp8(model.fp8),
    )


def _made(kind: type, config: RunConfig, **settings: Any) -> Any:
    """Builds one of Megatron's configuration objects: our settings, and those fields of model.megatron that it has.
    Raises ConfigError if Megatron refuses the latter."""
    given = config.model.megatron
    fields = {field.name: field for field in dataclasses.fields(kind)}
    for name in given.keys() & fields.keys():
        value, default = given[name], fields[name].default
        settings[name] = type(default)[value] if isinstance(default, Enum) else value
    with refusals("model.megatron", given):
        return kind(**settings)


def _stages(architecture: Architecture, pipeline_parallel: int) -> list[list[str]] | None:
    """What each pipeline stage holds, in Megatron's words."""
    if pipeline_parallel == 1:
        return None
    stages = [["decoder"] * count for count in architecture.layers_per_stage(pipeline_parallel)]
    return [["embedding", *stages[0]], *stages[1:-1], [*stages[-1], "loss"]]


def build_training(
    model: HiddenStateModel, config: RunConfig, layout: Layout
) -> tuple[core.DistributedDataParallel, core.MegatronOptimizer]:
    """Gradient buffers (fp32) and the optimizer. The weights must have been filled before: 16-bit ones are copied."""
    trainer = config.trainer
    sharded = trainer.distributed_optimizer and layout.data_parallel > 1
    reduction = _made(
        core.DistributedDataParallelConfig,
        config,
        grad_reduce_in_fp32=True,
        use_distributed_optimizer=sharded,
    )
    wrapped = core.DistributedDataParallel(model.config, reduction, model)
    if reduction.overlap_grad_reduce:
        # Megatron starts to reduce a bucket when its gradients are complete: only the last micro-batch completes them.
        model.config.no_sync_func = wrapped.no_sync
    settings = _made(
        core.OptimizerConfig,
        config,
        optimizer="adam",
        lr=trainer.learning_rate,
        weight_decay=trainer.weight_decay,
        adam_beta1=trainer.adam_beta1,
        adam_beta2=trainer.adam_beta2,
        adam_eps=trainer.adam_epsilon,
        clip_grad=trainer.clip_grad,
        bf16=config.model.precision is Precision.bf16,
        params_dtype=model.config.params_dtype,
        use_distributed_optimizer=sharded,
    )
    return wrapped, core.get_megatron_optimizer(settings, [wrapped], use_gloo_process_groups=False)


def token_multiple(config: RunConfig) -> int:
    """What the tokens of a pass must be a multiple of: FP8's blocks, on each sequence-parallel rank."""
    ranks = config.trainer.tensor_parallel if config.trainer.sequence_parallel else 1
    return FP8_MULTIPLE.get(config.model.fp8, 1) * ranks


def check_hardware(config: RunConfig) -> None:
    """Raises ConfigError for an FP8 recipe that this GPU lacks; Megatron would not notice."""
    recipe = config.model.fp8
    if recipe is Fp8Recipe.off or not torch.cuda.is_available():
        return
    capability = torch.cuda.get_device_capability()
    needed = (9, 0) if recipe is Fp8Recipe.blockwise else (8, 9)
    # Block scaling is a Hopper recipe: Blackwell's is MXFP8, which is not offered.
    if capability < needed or (recipe is Fp8Recipe.blockwise and capability >= (10, 0)):
        raise ConfigError(
            f"model.fp8={recipe.name} needs a GPU of compute capability {needed[0]}.{needed[1]}, this one has "
            f"{capability[0]}.{capability[1]}: write another recipe or model.fp8=off."
        )
    cuda = tuple(int(part) for part in (torch.version.cuda or "0.0").split("."))
    if recipe is Fp8Recipe.blockwise and cuda < (12, 9):
        raise ConfigError(f"model.fp8=blockwise needs CUDA 12.9, torch was built for {torch.version.cuda}.")


def _local_spec(architecture: Architecture, num_layers: int) -> core.TransformerBlockSubmodules:
    layer = core.gpt_layer_specs.get_gpt_layer_local_spec(
        normalization="RMSNorm", qk_layernorm=architecture.qk_norm
    )
    parts: Any = layer.submodules
    parts.input_layernorm = parts.pre_mlp_layernorm = RMSNorm
    attention = parts.self_attention.submodules
    attention.core_attention = CausalAttention
    if architecture.qk_norm:
        attention.q_layernorm = attention.k_layernorm = RMSNorm
    return core.TransformerBlockSubmodules(layer_specs=[layer] * num_layers, layer_norm=RMSNorm)


def _recompute(recompute: Recompute) -> dict[str, Any]:
    if recompute is Recompute.full:
        return {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    return {"recompute_granularity": "selective"} if recompute is Recompute.selective else {}


def _fp8(recipe: Fp8Recipe) -> dict[str, Any]:
    """Weights stay in 16 bits (fp8_param off): with FP8 weights, block scaling and tensor parallelism the refitted
    sampler produced NaN elsewhere (NeMo RL issue 1164)."""
    if recipe is Fp8Recipe.off:
        return {}
    return {
        "fp8": "e4m3" if recipe is Fp8Recipe.blockwise else "hybrid",
        "fp8_recipe": recipe.name,
        # Delayed scaling shares its largest values after every pass. Replicas have different numbers of passes: among
        # all ranks, which is the default, one would wait for the others for ever.
        "tp_only_amax_red": True,
    }


def _assert_fp8_modules(model: HiddenStateModel) -> None:
    modules = {type(module).__module__.split(".")[0] for module in model.decoder.modules()}
    names = {type(module).__name__ for module in model.decoder.modules()}
    if "transformer_engine" not in modules and not any(name.startswith("TE") for name in names):
        raise ConfigError(
            "model.fp8 is set, but Megatron built layers without Transformer Engine: FP8 would not run."
        )


def _sum_gradients(model: list[Any], _num_tokens: Any = None, **groups: Any) -> None:
    core.finalize_model_grads(model, None, **groups)
