"""Builds Megatron's model, gradient buffers and optimizer from an Architecture and a RunConfig.

Only this file uses Megatron's configuration classes and its GPTModel (deprecated from 0.19 on). It has two layers that
Megatron's local spec lacks: an RMSNorm that supports sequence parallelism, and a causal attention that never stores its
[T, T] scores. Transformer Engine has its own versions of both.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Mapping
from enum import Enum
from typing import Any

import torch
import torch.nn.functional as F

from nemo_prorl.config import ConfigError, Fp8Recipe, Precision, Recompute, RunConfig
from nemo_prorl.config.layout import is_one_machine
from nemo_prorl.distributed import COLLECTIVE_TIMEOUT, Layout
from nemo_prorl.engines.megatron import core
from nemo_prorl.engines.megatron.check import FP8_MULTIPLE, shards_optimizer, use_transformer_engine
from nemo_prorl.engines.megatron.core import parallel_state
from nemo_prorl.engines.megatron.families import Architecture, Rope
from nemo_prorl.engines.megatron.weights import mark_shards
from nemo_prorl.engines.passthrough import refusals

_RECOMPUTE: dict[Recompute, dict[str, Any]] = {
    Recompute.none: {},
    Recompute.selective: {"recompute_granularity": "selective"},
    Recompute.full: {
        "recompute_granularity": "full",
        "recompute_method": "uniform",
        "recompute_num_layers": 1,
    },
}


class HiddenStateModel(core.GPTModel):
    """A GPTModel whose last stage returns hidden states [T, B, H] instead of logits, which would be the largest tensor
    of a step; vocab_parallel.py computes log-probabilities from them."""

    def _postprocess(self, hidden_states: torch.Tensor, *_args: Any, **_kwargs: Any) -> torch.Tensor:
        return hidden_states


class RMSNorm(torch.nn.Module):
    """RMSNorm over the last dimension. Megatron's own wrapper refuses sequence parallelism, under which each rank sees
    a part of the tokens, so the weight's gradient must be summed over tensor-parallel ranks. `finalize_model_grads`
    does this for weights with the attribute `sequence_parallel`."""

    def __init__(
        self, config: core.TransformerConfig, hidden_size: int, eps: float = 1e-6, **_unused: Any
    ) -> None:
        super().__init__()
        self.eps = eps
        self.weight = torch.nn.Parameter(
            torch.ones(hidden_size, dtype=config.params_dtype, device=torch.cuda.current_device())
        )
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.is_cuda or x.dtype != self.weight.dtype or x.dtype not in (torch.float32, torch.float64):
            return F.rms_norm(x, self.weight.shape, self.weight, self.eps)
        return _RMSNorm.apply(x, self.weight, self.eps)


class _RMSNorm(torch.autograd.Function):
    """RMSNorm for the CPU, with six passes over the activations, forward and backward; torch's own makes a dozen."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        size = x.shape[-1]
        scale = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(size).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, scale)
        return (x * scale).mul_(weight)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        """Returns dx = scale (g w - n mean(g w n)) and dw = sum(g n), with n = x scale."""
        x, weight, scale = ctx.saved_tensors
        normed = x * scale
        product = grad * normed
        grad_weight = product.flatten(0, -2).sum(0)
        mean = torch.matmul(product, weight).unsqueeze(-1).div_(-x.shape[-1])
        return (grad * weight).addcmul_(normed, mean).mul_(scale), grad_weight, None


class CausalAttention(core.MegatronModule):
    """Replacement for Megatron's DotProductAttention, for sequences padded on the right: under a causal mask no real
    token sees the padding, so no further mask is needed. Memory grows with T instead of its square, and results do not
    depend on the amount of padding."""

    def __init__(self, config: core.TransformerConfig, layer_number: int, **_unused: Any) -> None:
        super().__init__(config=config)

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_unused: Any, **_also_unused: Any
    ) -> torch.Tensor:
        """Returns [T, B, heads * D] from query [T, B, heads, D] and key and value [T, B, kv_heads, D]."""
        repeats = query.shape[2] // key.shape[2]
        if repeats > 1:
            key, value = (x.repeat_interleave(repeats, dim=2) for x in (key, value))
        query, key, value = (x.permute(1, 2, 0, 3) for x in (query, key, value))
        context = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return context.permute(2, 0, 1, 3).flatten(2)


_groups_of: Any = None
"""The default process group and the layout for which Megatron's groups were created."""


def initialise_groups(layout: Layout, seed: int) -> None:
    """Creates Megatron's process groups, which are global to the process. Replaces those of another layout.
    Collective over all ranks."""
    global _groups_of
    wanted = (torch.distributed.group.WORLD, layout.tensor_parallel, layout.pipeline_parallel)
    if _groups_of == wanted:
        return
    if parallel_state.model_parallel_is_initialized():
        parallel_state.destroy_model_parallel()
        # Transformer Engine would go on to reduce the FP8 scales of earlier policies over their groups, and some ranks
        # would wait for others that do not.
        if "transformer_engine.pytorch" in sys.modules:
            from transformer_engine.pytorch.fp8 import FP8GlobalStateManager

            FP8GlobalStateManager.reset()
    _groups_of = wanted
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=layout.tensor_parallel,
        pipeline_model_parallel_size=layout.pipeline_parallel,
        create_gloo_process_groups=False,
        distributed_timeout_minutes=int(COLLECTIVE_TIMEOUT.total_seconds() // 60),
    )
    # Training uses no random numbers (no dropout), but Megatron's layers require their generators to exist.
    core.model_parallel_cuda_manual_seed(seed)


def build_model(architecture: Architecture, config: RunConfig) -> HiddenStateModel:
    """Returns this rank's part of the model, with uninitialised weights. Raises ConfigError if the GPU lacks the FP8
    recipe, or Megatron refuses settings of model.megatron."""
    check_hardware(config.model.fp8)
    trainer = config.trainer
    transformer_engine = use_transformer_engine(config.model.layer_spec, torch.cuda.is_available())
    megatron = transformer_config(architecture, config)
    if architecture.rope.kind == "yarn":
        _set_yarn(megatron, architecture.rope)
    if megatron.deterministic_mode:
        os.environ["NVTE_ALLOW_NONDETERMINISTIC_ALGO"] = "0"  # Megatron insists that both are set
    if transformer_engine:
        spec = core.gpt_layer_specs.get_gpt_layer_with_transformer_engine_spec(
            qk_layernorm=architecture.family.qk_norm
        )
    else:
        layer = core.gpt_layer_specs.get_gpt_layer_local_spec(
            normalization="RMSNorm", qk_layernorm=architecture.family.qk_norm
        )
        parts: Any = layer.submodules
        parts.input_layernorm = parts.pre_mlp_layernorm = RMSNorm
        attention = parts.self_attention.submodules
        attention.core_attention = CausalAttention
        if architecture.family.qk_norm:
            attention.q_layernorm = attention.k_layernorm = RMSNorm
        stage = parallel_state.get_pipeline_model_parallel_rank()
        num_layers = architecture.layers_per_stage(trainer.pipeline_parallel)[stage]
        spec = core.TransformerBlockSubmodules(layer_specs=[layer] * num_layers, layer_norm=RMSNorm)
    with refusals("model.megatron", config.model.megatron):
        if megatron.fp8:
            core.fp8_utils.get_fp8_recipe(megatron)  # Megatron itself would make it in the first pass
        model = HiddenStateModel(
            config=megatron,
            transformer_layer_spec=spec,
            vocab_size=architecture.padded_vocab(trainer.tensor_parallel, config.model.vocab_divisible_by),
            max_sequence_length=architecture.max_positions,
            pre_process=parallel_state.is_pipeline_first_stage(),
            post_process=parallel_state.is_pipeline_last_stage(),
            position_embedding_type="yarn" if architecture.rope.kind == "yarn" else "rope",
            rotary_base=architecture.rope.theta,  # type: ignore[arg-type]
            rope_scaling=architecture.rope.kind == "llama3",
            rope_scaling_factor=architecture.rope.factor,
            share_embeddings_and_output_weights=architecture.tied,
        )
    mark_shards(model, architecture)
    return model.to(torch.device(torch.cuda.current_device()))


def accumulates_in_place(module: torch.nn.Module) -> bool:
    """Returns whether layers add gradients of weights to the fp32 buffers inside their matrix products."""
    return any(getattr(layer, "fuse_wgrad_accumulation", False) for layer in module.modules())


def _set_yarn(megatron: core.TransformerConfig, rope: Rope) -> None:
    """Sets what GPTModel and the attention read of YaRN, which are no fields of Megatron's configuration. Without
    mscale the scale of queries and keys is the paper's, 0.1 ln(factor) + 1 (arXiv 2309.00071, equation 22)."""
    values = {
        "rotary_scaling_factor": rope.factor,
        "original_max_position_embeddings": rope.original_positions,
        "beta_fast": rope.beta_fast,
        "beta_slow": rope.beta_slow,
        "mscale": None,
        "mscale_all_dim": None,
        "correction_range_round_to_int": rope.truncate,
    }
    for name, value in values.items():
        setattr(megatron, f"yarn_{name}", value)


def transformer_config(architecture: Architecture, config: RunConfig) -> core.TransformerConfig:
    """Returns the configuration of Megatron's layers."""
    trainer, model = config.trainer, config.model
    dtype = torch.bfloat16 if model.precision is Precision.bf16 else torch.float32
    stages = None  # what each pipeline stage has, in Megatron's format
    if trainer.pipeline_parallel > 1:
        counts = architecture.layers_per_stage(trainer.pipeline_parallel)
        first, *middle, last = (["decoder"] * count for count in counts)
        stages = [["embedding", *first], *middle, [*last, "loss"]]
    return _build(
        core.TransformerConfig,
        config.model.megatron,
        num_layers=architecture.num_layers,
        hidden_size=architecture.hidden_size,
        ffn_hidden_size=architecture.ffn_size,
        num_attention_heads=architecture.num_heads,
        num_query_groups=architecture.num_kv_heads,
        kv_channels=architecture.head_dim,
        normalization="RMSNorm",
        layernorm_epsilon=architecture.norm_epsilon,
        qk_layernorm=architecture.family.qk_norm,
        add_qkv_bias=architecture.family.qkv_bias,
        add_bias_linear=False,
        gated_linear_unit=True,
        activation_func=F.silu,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        tensor_model_parallel_size=trainer.tensor_parallel,
        pipeline_model_parallel_size=trainer.pipeline_parallel,
        pipeline_model_parallel_layout=stages,
        sequence_parallel=trainer.sequence_parallel,
        # Micro-batches differ in length, so pipeline stages send the shape of each along.
        variable_seq_lengths=trainer.pipeline_parallel > 1,
        moe_token_dispatcher_type="alltoall",  # unused, but Megatron refuses its default with variable lengths
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=dtype is torch.bfloat16,
        perform_initialization=False,
        use_cpu_initialization=not torch.cuda.is_available(),
        # SwiGLU as one compiled function, which saves only its input for the backward pass. On CPU, where it is not
        # compiled, it would only be slower.
        bias_activation_fusion=torch.cuda.is_available(),
        # Without fusion, Megatron's rope waits for the GPU in every layer to read the lengths of packed sequences.
        # With it, YaRN's scale of queries and keys would be lost in packed sequences (rope_utils.py in 0.16.1).
        apply_rope_fusion=use_transformer_engine(config.model.layer_spec, torch.cuda.is_available())
        and architecture.rope.kind != "yarn",
        # Together these two make gradients plain sums over micro-batches and replicas: Megatron neither averages over
        # them nor divides by a token count. The loss function has already divided by the totals of the update.
        calculate_per_token_loss=True,
        finalize_model_grads_func=_sum_gradients,
        **_RECOMPUTE[model.recompute],
        **_fp8(model.fp8),
    )


def _build(kind: type, given: Mapping[str, Any], **settings: Any) -> Any:
    """Returns one of Megatron's configuration objects, made of `settings` and of its fields in `given`, model.megatron.
    Raises ConfigError for a value of another type, and if Megatron refuses one."""
    fields = {field.name: field for field in dataclasses.fields(kind)}
    for name in given.keys() & fields.keys():
        key, value, default = f"model.megatron.{name}", given[name], fields[name].default
        if isinstance(default, Enum):
            members = type(default).__members__
            if value not in members:
                raise ConfigError(f"{key}={value} is not known: write one of {', '.join(members)}.")
            value = members[value]
        elif isinstance(default, bool | int | str) and type(value) is not type(default):
            # Megatron would take it in silence: "no" for true.
            raise ConfigError(f"{key}={value} has the wrong type: it takes {type(default).__name__}.")
        settings[name] = value
    with refusals("model.megatron", given):
        return kind(**settings)


def build_training(
    model: HiddenStateModel, config: RunConfig, layout: Layout
) -> tuple[core.DistributedDataParallel, core.MegatronOptimizer]:
    """Returns the model wrapped with fp32 gradient buffers, and the optimizer. The weights must be loaded before,
    because the optimizer makes fp32 copies of 16-bit ones."""
    trainer = config.trainer
    sharded = shards_optimizer(trainer) and layout.data_parallel > 1
    reduction = _build(
        core.DistributedDataParallelConfig,
        config.model.megatron,
        grad_reduce_in_fp32=True,
        overlap_grad_reduce=overlaps_exchange(config, layout),
        use_distributed_optimizer=sharded,
    )
    wrapped = core.DistributedDataParallel(model.config, reduction, model)
    # Transformer Engine's layers add gradients of weights to the fp32 buffers, which the model has now, inside their
    # matrix products; in low-rank training the layers have no buffers. They are switched on one by one, because with
    # Megatron's gradient_accumulation_fusion its output layer, which is never called, insists on Apex.
    layer: Any
    for layer in model.modules():
        if hasattr(layer, "fuse_wgrad_accumulation"):
            layer.fuse_wgrad_accumulation = True
    if reduction.overlap_grad_reduce:
        # Gradients are complete only after the last micro-batch; before it, Megatron must not start to reduce them.
        model.config.no_sync_func = wrapped.no_sync
    settings = _build(
        core.OptimizerConfig,
        config.model.megatron,
        optimizer=trainer.optimizer.name,
        sgd_momentum=0.0,
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


def overlaps_exchange(config: RunConfig, layout: Layout) -> bool:
    """Returns whether gradients are exchanged during the backward pass unless model.megatron says: if the replicas of a
    stage, which are consecutive ranks, span machines. Low-rank factors have theirs only after it."""
    return not is_one_machine(layout.tensor_parallel * layout.data_parallel) and not config.lora.rank


def token_multiple(config: RunConfig) -> int:
    """Returns the number of which the tokens of a pass must be a multiple: FP8's block size times the number of
    sequence-parallel ranks."""
    ranks = config.trainer.tensor_parallel if config.trainer.sequence_parallel else 1
    return FP8_MULTIPLE.get(config.model.fp8, 1) * ranks


def check_hardware(recipe: Fp8Recipe) -> None:
    """Raises ConfigError for an FP8 recipe that this GPU does not support; Megatron does not check this."""
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


def _fp8(recipe: Fp8Recipe) -> dict[str, Any]:
    """Returns Megatron's FP8 settings. Weights stay in 16 bits (fp8_param off): with FP8 weights, block scaling and
    tensor parallelism, NeMo RL's sampler produced NaN after a refit (its issue 1164)."""
    if recipe is Fp8Recipe.off:
        return {}
    return {
        "fp8": "e4m3" if recipe is Fp8Recipe.blockwise else "hybrid",
        "fp8_recipe": recipe.name,
        # Delayed scaling reduces the largest absolute values after every pass, by default over all ranks. Replicas have
        # different numbers of passes, so one would wait for the others forever.
        "tp_only_amax_red": True,
    }


def _sum_gradients(model: list[Any], _num_tokens: Any = None, **groups: Any) -> None:
    core.finalize_model_grads(model, None, **groups)
