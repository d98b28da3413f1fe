"""Estimates what this trainer holds on a GPU in each phase of a step, in bytes. Each function is one formula.

Policy and sampler share each GPU. The reference stays on the host and is copied to the GPU for its pass. With
sampler.release_memory each of the two makes room for the other: gradients are freed and optimizer states move to the
host after the last update of a step, and vLLM releases nearly all of its memory during updates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from nemo_prorl.cluster.scale.workload import Case
from nemo_prorl.config import (
    ConfigError,
    Fp8Recipe,
    LayerSpec,
    LoraTargets,
    Optimizer,
    Precision,
    Recompute,
    RunConfig,
)
from nemo_prorl.engines.megatron.check import shards_optimizer
from nemo_prorl.engines.megatron.families import Architecture, Split

GIB = 2**30

PLANNED_SHARE = 0.9
"""Share of the GPU's memory that a plan may fill (the rest is a margin for errors of the estimate)."""
CONTEXT_BYTES = 3 * GIB
"""CUDA's context and the workspaces of cuBLAS and cuDNN (experience with other trainers; not measured here)."""
COMMUNICATOR_BYTES = 0.4 * GIB
"""Buffers of one NCCL communicator (experience: 0.2 to 0.5 GiB with NVLink; not measured here)."""
FRAGMENTATION, GROWING_FRAGMENTATION = 1.25, 1.05
"""Memory that torch reserves, as a multiple of what is in use, because packed passes vary in their number of tokens
(experience: 1.10 to 1.25, the more the longer a run lasts; not measured here). The second applies with
expandable_segments, which the trainer sets if the sampler has one GPU."""
CUDA_GRAPH_BYTES = 20.0 * 2**20
"""vLLM's two captured graphs of one number of sequences: for decoding steps and for others (experience: 24 to 28 MiB
for 8B; vLLM prints the sum of all when it starts)."""
PREFILL_TOKENS, PREFILL_TOKENS_SMALL = 16384, 8192
"""vLLM's max_num_batched_tokens for an offline engine on GPUs of 70 GiB and more, except A100, and on others
(vllm/engine/arg_utils.py, 0.32)."""
LOGIT_BYTES = 4
"""Bytes of one logit of the sampler, whose head yields fp32 for models of any precision (engines/vllm/sampler.py).
vLLM holds the logits twice: at a temperature other than 1 it divides a copy of them. The run that measures vLLM's share
leaves the copy out, so it comes on top (vllm/v1/worker/gpu/model_runner.py, _dummy_sampler_run; gpu/sample/sampler.py,
0.32)."""


class NoRoom(ConfigError):
    """vLLM's share of the GPU is too small. The message lacks its end, which says what to change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Memory of the fullest GPU, by phase and part, in bytes. vLLM's is one part; `vllm_parts` breaks it down."""

    phases: Mapping[str, Mapping[str, float]]
    vllm_parts: Mapping[str, float]
    host: Mapping[str, float]
    """Host memory per GPU, by part."""
    num_fitting: int
    """Sequences of mean length that fit into the KV cache of one engine."""
    num_places: int
    """Sequences that an engine decodes at a time: `num_fitting`, but at most sampler.max_sequences."""
    fixed: float
    """Memory of CUDA and NCCL, in every phase."""
    fragmentation: float

    def total(self, phase: str) -> float:
        """Returns the bytes that are reserved in a phase, including what is not in the parts."""
        vllm = self.phases[phase].get("vLLM", 0.0)  # not fragmented: it reserves exactly what it was given
        return self.fixed + vllm + self.fragmentation * (sum(self.phases[phase].values()) - vllm)

    @property
    def fullest_phase(self) -> str:
        return max(self.phases, key=self.total)


def estimate_memory(case: Case) -> Memory:
    """Returns the memory of the fullest GPU. Raises NoRoom if vLLM's share cannot hold its weights and one sequence."""
    sampler = case.config.sampler
    vllm = _vllm_parts(case)
    fitting = _num_fitting(case, vllm["KV cache"])
    whole = [
        Memory(
            phases=_phases(case, stage, vllm),
            vllm_parts=vllm,
            host=_host(case, stage),
            num_fitting=fitting,
            num_places=min(sampler.max_sequences, fitting),
            fixed=CONTEXT_BYTES + COMMUNICATOR_BYTES * num_communicators(case),
            fragmentation=FRAGMENTATION if sampler.tensor_parallel > 1 else GROWING_FRAGMENTATION,
        )
        for stage in range(case.config.trainer.pipeline_parallel)
    ]
    return max(whole, key=lambda memory: memory.total(memory.fullest_phase))


def parameters_on_rank(model: Architecture, config: RunConfig, stage: int) -> int:
    """Returns the parameters of one rank of a pipeline stage. Column- and row-parallel layers and the vocabulary are
    split over the tensor-parallel ranks, norms are not (Shoeybi et al., arXiv 1909.08053, section 3); with several
    stages, first and last both have a tied embedding."""
    tensor, pipeline = config.trainer.tensor_parallel, config.trainer.pipeline_parallel
    hidden = model.hidden_size
    layer = sum(part.size // (1 if part.split is Split.whole else tensor) for part in model.layer)
    vocabulary = model.padded_vocab(tensor, config.model.vocab_divisible_by) // tensor * hidden
    first, last = stage == 0, stage == pipeline - 1
    num_embeddings = first + last if not model.tied or pipeline > 1 else 1
    return model.layers_per_stage(pipeline)[stage] * layer + num_embeddings * vocabulary + last * hidden


def matrices(model: Architecture, config: RunConfig) -> list[tuple[int, int]]:
    """Returns (rows, columns) of each matrix of a layer that low-rank training gives factors, as one rank holds it:
    engines/megatron/low_rank.py."""
    tensor, targets = config.trainer.tensor_parallel, config.lora.targets
    found = []
    for part in model.layer:
        target = LoraTargets.mlp if part.megatron.startswith("mlp.") else LoraTargets.attention
        shapes = list(part.hf.values())
        if len(shapes[0]) == 2 and targets in (LoraTargets.all, target):
            rows, columns = sum(shape[0] for shape in shapes), shapes[0][1]
            by_columns = part.split is Split.columns
            found.append((rows, columns // tensor) if by_columns else (rows // tensor, columns))
    return found


def trained_on_rank(model: Architecture, config: RunConfig, stage: int) -> int:
    """Returns the parameters of one rank that have gradients and moments: all, or the factors of low-rank training."""
    if not config.lora.rank:
        return parameters_on_rank(model, config, stage)
    factors = config.lora.rank * sum(rows + columns for rows, columns in matrices(model, config))
    return model.layers_per_stage(config.trainer.pipeline_parallel)[stage] * factors


def factor_bytes(model: Architecture, config: RunConfig, stage: int) -> int:
    """Returns the bytes of one rank's factors, which are in fp32."""
    return 4 * trained_on_rank(model, config, stage) if config.lora.rank else 0


def matrix_gradient_bytes(model: Architecture, config: RunConfig) -> int:
    """Returns the bytes of the largest gradient of a matrix while low-rank training projects it: in the weights'
    precision and in fp32."""
    if not config.lora.rank:
        return 0
    return (element_bytes(config) + 4) * max(rows * columns for rows, columns in matrices(model, config))


def element_bytes(config: RunConfig) -> int:
    """Returns the bytes of one weight or activation."""
    return 2 if config.model.precision is Precision.bf16 else 4


def fp8_weights(model: Architecture, config: RunConfig, stage: int, num_copies: int) -> dict[str, float]:
    """Returns the bytes of the FP8 copies that Transformer Engine makes of the layers' matrices, by name; nothing
    without FP8. num_copies: 1 in a forward pass, 2 with a backward pass (Transformer Engine 2.15, module/linear.py)."""
    if config.model.fp8 is Fp8Recipe.off:
        return {}
    layer = sum(part.size for part in model.layer if part.split is not Split.whole)
    num_layers = model.layers_per_stage(config.trainer.pipeline_parallel)[stage]
    return {"FP8 weights": float(num_copies * num_layers * layer) / config.trainer.tensor_parallel}


def gradient_bytes(num_parameters: int) -> int:
    """Returns the bytes of fp32 gradients (grad_reduce_in_fp32), which are complete on each rank: the distributed
    optimizer shards states, not gradients (Rajbhandari et al., arXiv 1910.02054, section 5.1, stage 1)."""
    return 4 * num_parameters


def optimizer_bytes(num_parameters: int, config: RunConfig, data_parallel: int) -> float:
    """Returns the bytes of Adam's two fp32 moments and of an fp32 copy of 16-bit weights, divided by the replicas if
    sharded (arXiv 1910.02054, sections 3.1 and 5.1: K = 12); SGD has the copy alone, whole. num_parameters: those that
    are trained; low-rank factors are in fp32 themselves."""
    is_adam = config.trainer.optimizer is Optimizer.adam
    each = 8 * is_adam + 4 * (config.model.precision is Precision.bf16 and not config.lora.rank)
    return each * num_parameters / (data_parallel if shards_optimizer(config.trainer) else 1)


def checkpoint_bytes(model: Architecture, config: RunConfig) -> float:
    """Returns the size on disk: weights, optimizer states and the reference's weights; with several pipeline stages a
    tied embedding counts twice."""
    trainer = config.trainer
    stages = range(trainer.pipeline_parallel)
    num_parameters = sum(parameters_on_rank(model, config, stage) for stage in stages)
    num_trained = sum(trained_on_rank(model, config, stage) for stage in stages)
    factors = sum(factor_bytes(model, config, stage) for stage in stages)
    of_rank = 2 * element_bytes(config) * num_parameters + optimizer_bytes(num_trained, config, 1) + factors
    return trainer.tensor_parallel * of_rank


def layer_activation_bytes(model: Architecture, config: RunConfig) -> float:
    """Returns the bytes per token that one layer keeps for its backward pass. The method is Korthikanti et al.'s (arXiv
    2205.05198, section 4), recounted for this layer: no dropout, SwiGLU, grouped queries, flash attention.

    4 h: inputs of both norms and of both blocks. 2 q: queries and context. 2 k: keys and values, which the local spec
    repeats to q. 3 f: the up-projection's two halves and the output of SwiGLU, which is fused on CUDA. 4 d: cosine and
    sine of the rotary embedding, for queries and keys (once per position; a pass may hold one row). In fp32: each
    head's softmax normaliser and each norm's scale. tests/cluster/scale/test_memory_of_engines.py compares this with
    the tensors that torch saves.
    """
    tensor = config.trainer.tensor_parallel
    recompute, each = config.model.recompute, element_bytes(config)
    if recompute is Recompute.full:
        return each * model.hidden_size / _sequence_split(config)
    queries, key_values = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    repeated = config.model.layer_spec is LayerSpec.local and recompute is Recompute.none
    inside = 2 * queries + 2 * (queries if repeated else key_values) + 3 * model.ffn_size
    around = 4 * model.hidden_size / _sequence_split(config)
    fp32 = (model.num_heads / tensor if recompute is Recompute.none else 0) + 2 / _sequence_split(config)
    return each * (around + inside / tensor + 4 * model.head_dim) + 4 * fp32


def layer_working_bytes(model: Architecture, config: RunConfig) -> float:
    """Returns the additional bytes per token while a layer runs, at the feed-forward block's peak: both halves of the
    up-projection and their product."""
    tensor = config.trainer.tensor_parallel
    return element_bytes(config) * (3 * model.ffn_size / tensor + 2 * model.hidden_size)


def head_bytes(model: Architecture, config: RunConfig, num_tokens: int, *, backward: bool) -> float:
    """Returns the bytes for log-probabilities and entropy over this rank's shard of the vocabulary, as computed by
    engines/megatron/vocab_parallel.py. Forward: logits and exponentials of a chunk, in fp32. Backward: the chunk's
    gradient in fp32 and in 16 bits; then, unless they are frozen, a gradient of the output weights in their precision,
    whose sum is Megatron's buffer in 16 bits and apart in fp32; and the response tokens' hidden states and their
    gradient."""
    each = element_bytes(config)
    tensor = config.trainer.tensor_parallel
    vocabulary = model.padded_vocab(tensor, config.model.vocab_divisible_by) / tensor
    chunk = min(config.model.logprob_chunk_tokens, num_tokens) * vocabulary
    hidden = num_tokens * model.hidden_size * each
    if not backward:
        return chunk * 8 + hidden
    of_weights = 0.0 if config.lora.rank else vocabulary * model.hidden_size * each
    if each == 4:
        return chunk * 4 + of_weights + 2 * hidden
    return max(chunk * (4 + each), of_weights) + 2 * hidden


def kv_bytes_a_token(model: Architecture, config: RunConfig) -> float:
    """Returns the bytes per token of all layers' keys and values on one GPU of an engine (Kwon et al., arXiv
    2309.06180, section 3). An engine with more GPUs than key-value heads holds copies of them."""
    heads = max(1.0, model.num_kv_heads / config.sampler.tensor_parallel)
    return 2 * model.num_layers * heads * model.head_dim * element_bytes(config)


def _num_fitting(case: Case, kv_cache_bytes: float) -> int:
    """Returns how many sequences of mean length fit into the KV cache."""
    return int(kv_cache_bytes / kv_bytes_a_token(case.model, case.config) / case.rollout_tokens)


def num_graph_sizes(max_sequences: int) -> int:
    """Returns for how many numbers of sequences vLLM captures graphs: 51 up to 512, and every 16th of more
    (vllm/config/vllm.py, 0.32)."""
    return 51 + max(0, -(-(max_sequences - 512) // 16))


def num_communicators(case: Case) -> int:
    """Returns the number of NCCL communicators of a rank, one for each group of several ranks: all ranks, the replicas,
    the tensor-parallel ranks, the pipeline, and both ends of a pipeline with a tied embedding; and two of vLLM for an
    engine of several GPUs (torch's group and its own, PyNccl)."""
    trainer, sampler = case.config.trainer, case.config.sampler
    groups = [case.cluster.num_gpus, case.data_parallel, trainer.tensor_parallel, trainer.pipeline_parallel]
    groups += [trainer.pipeline_parallel] * case.model.tied + [sampler.tensor_parallel] * 2
    return sum(size > 1 for size in groups)


def _sequence_split(config: RunConfig) -> int:
    """Returns the ranks over which sequence parallelism splits activations between the tensor-parallel regions (arXiv
    2205.05198, section 4.2)."""
    return config.trainer.tensor_parallel if config.trainer.sequence_parallel else 1


def _phases(case: Case, stage: int, vllm_parts: Mapping[str, float]) -> dict[str, dict[str, float]]:
    model, config, trainer = case.model, case.config, case.config.trainer
    num_parameters, num_trained = (
        count(model, config, stage) for count in (parameters_on_rank, trained_on_rank)
    )
    num_tokens = max(trainer.micro_batch_tokens, config.sampler.context_tokens)  # of the largest forward pass
    weights = {"weights": float(element_bytes(config) * num_parameters)}
    if config.lora.rank:
        weights["factors"] = float(factor_bytes(model, config, stage))
    passes, updates = ({**weights, **fp8_weights(model, config, stage, copies)} for copies in (1, 2))
    vllm = {"vLLM": sum(vllm_parts.values())}
    asleep = waking = vllm
    trained = {
        "gradients": float(gradient_bytes(num_trained) + matrix_gradient_bytes(model, config)),
        "optimizer": optimizer_bytes(num_trained, config, case.data_parallel),
    }
    staying = trained
    if config.sampler.release_memory:
        staying = {}
        asleep = {"vLLM": vllm_parts["CUDA graphs"]}
        # The KV cache is allocated when the weights are in place, from memory that the refit has given back
        # (VllmSampler.load_weights). A refit that is repeated because of wrong tensors has it; that is not planned for.
        waking = {"vLLM": vllm["vLLM"] - vllm_parts["KV cache"]}
    last = stage == trainer.pipeline_parallel - 1
    num_layers = model.layers_per_stage(trainer.pipeline_parallel)[stage]
    # 1F1B: a stage holds as many micro-batches as there are stages from it to the end (arXiv 2104.04473, section 2.2).
    in_flight = trainer.pipeline_parallel - stage
    kept = num_tokens * num_layers * layer_activation_bytes(model, config) * in_flight
    working = num_tokens * layer_working_bytes(model, config)
    if config.model.recompute is Recompute.full:  # the recomputed layer keeps all its activations
        without = replace(config, model=replace(config.model, recompute=Recompute.none))
        kept += num_tokens * layer_activation_bytes(model, without)
    tempered = float(config.sampler.max_sequences * model.vocab_size * LOGIT_BYTES)
    beside = tempered if config.sampler.ahead else 0.0
    # Low-rank training writes the reference over the weights, which it can compute again.
    has_both = config.measures_kl and not config.lora.rank
    reference = {"reference": weights["weights"]} if has_both else {}
    forward_head = beside + head_bytes(model, config, num_tokens, backward=False) * last
    backward_head = beside + head_bytes(model, config, num_tokens, backward=True) * last
    return {
        "sampling": {**weights, **staying, "logits": tempered, **vllm},
        "passes": {**passes, **reference, **staying, "activations": working, "logits": forward_head, **vllm},
        "updates": {**updates, **trained, "activations": kept + working, "logits": backward_head, **asleep},
        "refit": {**weights, **staying, "refit": refit_bytes(model, config), **waking},
    }


def refit_bytes(model: Architecture, config: RunConfig) -> float:
    """Returns the peak memory of a refit: the embedding, which is the largest tensor, complete on each rank of a
    replica; its pieces, if tensor-parallel ranks have split it; and a layer that vLLM has not yet completed."""
    trainer, each = config.trainer, element_bytes(config)
    vocabulary = model.padded_vocab(trainer.tensor_parallel, config.model.vocab_divisible_by)
    copies = 2 if trainer.tensor_parallel > 1 else 1 if trainer.pipeline_parallel > 1 else 0
    embeddings = (1 if model.tied else 2) * model.vocab_size * model.hidden_size
    layer = (model.num_parameters - embeddings) / model.num_layers
    return each * (copies * vocabulary * model.hidden_size + layer / config.sampler.tensor_parallel)


def _host(case: Case, stage: int) -> dict[str, float]:
    """The reference always; memory for the optimizer states, if they have to leave the GPU; copies of what a rank
    writes of weights and states, whose memory is kept from one save to the next. A sleeping sampler holds nothing: the
    refit brings its weights."""
    config, replicas = case.config, case.data_parallel
    weights = float(element_bytes(config) * parameters_on_rank(case.model, config, stage))
    num_trained, factors = trained_on_rank(case.model, config, stage), factor_bytes(case.model, config, stage)
    parts = {"reference": weights}
    if config.sampler.release_memory:
        parts["optimizer"] = optimizer_bytes(num_trained, config, replicas)
    if config.exp_manager.create_checkpoint_callback:
        parts["checkpoint"] = (weights + factors + optimizer_bytes(num_trained, config, 1)) / replicas
    return parts


def _vllm_parts(case: Case) -> dict[str, float]:
    """Returns how vLLM divides sampler.memory_fraction: the KV cache gets what weights and peak working memory leave,
    which vLLM measures in a profiling run (vllm/v1/worker/gpu_worker.py, determine_available_memory)."""
    model, sampler, each = case.model, case.config.sampler, element_bytes(case.config)
    given = sampler.memory_fraction * case.gpu.memory_gib * GIB
    weights = each * model.num_parameters / sampler.tensor_parallel
    is_large = case.gpu.memory_gib >= 70 and case.gpu.name != "a100"
    tokens = PREFILL_TOKENS if is_large else PREFILL_TOKENS_SMALL
    hidden = tokens * each * (3 * model.ffn_size / sampler.tensor_parallel + 4 * model.hidden_size)
    working = max(hidden, sampler.max_sequences * model.vocab_size * LOGIT_BYTES)
    graphs = 0.0 if sampler.enforce_eager else CUDA_GRAPH_BYTES * num_graph_sizes(sampler.max_sequences)
    cache = given - weights - working - graphs
    longest = sampler.context_tokens * kv_bytes_a_token(model, case.config)
    if cache < longest or _num_fitting(case, cache) < 1:
        raise NoRoom(
            f"sampler.memory_fraction={sampler.memory_fraction:g} of a GPU, {given / GIB:.1f} GiB, has no room for the "
            f"sampler's weights ({weights / GIB:.1f} GiB), working memory ({working / GIB:.1f} GiB) and "
            "the cache of one response"
        )
    return {"weights": weights, "working memory": working, "CUDA graphs": graphs, "KV cache": cache}
