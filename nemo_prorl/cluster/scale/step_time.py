"""Estimates how long a step takes, part by part, in seconds. Each function is one formula.

A step samples its prompts, grades them during the log-probability passes, updates, and refits the sampler. What happens
between steps (validation, checkpoints, restarts) is not included.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from math import ceil
from statistics import fmean
from typing import Any

from nemo_prorl.cluster.scale.hardware import (
    ARITHMETIC_SHARE,
    BANDWIDTH_SHARE,
    DECODE_ARITHMETIC_SHARE,
    LINK_SHARE,
    PREFILL_SHARE,
)
from nemo_prorl.cluster.scale.lengths import Lengths
from nemo_prorl.cluster.scale.memory import (
    Memory,
    element_bytes,
    kv_bytes_a_token,
    optimizer_bytes,
    parameters_on_rank,
)
from nemo_prorl.cluster.scale.tail import DecodeCost, Sampling, Scheduling, simulate
from nemo_prorl.cluster.scale.workload import Case
from nemo_prorl.config import Recompute
from nemo_prorl.data.batch import PASSES_A_CHUNK
from nemo_prorl.engines.megatron.architecture import Architecture

LOOP_STEP_S = 2e-3
"""CPU time of vLLM's loop in the trainer's process per decoding step, for any number of sequences: building the batch
and launching its CUDA graph (our choice; not measured)."""
LOOP_SEQUENCE_S = 13.5e-6
"""CPU time of the same loop per sequence and step: scheduling it and receiving its token. vLLM 0.32 with a model that
does nothing took 46 to 49 us on a core that runs plain Python three to four times slower than a 3.5 GHz Xeon
(measured), which makes 12 to 15 us on the Xeon (estimated). vLLM schedules asynchronously on GPUs, so a step takes as
long as the GPU or the loop, whichever is slower."""
EAGER_LAYER_S = 60e-6
"""Additional time per layer without CUDA graphs: a dozen launches of 5 us (our choice)."""
SAMPLED_BYTES_A_LOGIT = 32
"""Memory traffic per logit of a sequence in a decoding step: written and read in fp32, copied, divided by the
temperature, and read for the draw, the log-probability and the rank (vllm/v1/worker/gpu/sample/, 0.32)."""
ALL_REDUCE_S = 15e-6
"""Latency of one small all-reduce over NVLink (our choice)."""
PAGEABLE_BYTES_S = 6e9
"""Bandwidth to and from host memory that is not pinned (our choice)."""
TENSOR_S = 0.5e-3
"""Overhead of gathering, checking and placing one tensor of a refit, in addition to its bytes (our choice)."""
NUM_DRAWS = 3
"""Number of draws of response lengths over which the tail is averaged."""
REFERENCE_VISITS = 2
"""Copies of the reference to the GPU per step: for the groups that are graded when sampling ends, and for the rest."""
GRADING_TAIL_S = 5.0
"""Time from the last rollout to its score: ProRL's limit for the tests of a program (2507.12507, appendix)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Estimated time of one step in the middle of a stage, when the policy differs from its reference."""

    parts: Mapping[str, float]
    """Name -> seconds, in the order of the step."""
    sampling: Sampling
    bubble_share: float
    """Share of the updates' time in which pipeline stages wait for each other."""
    response_tokens: float
    """Response tokens trained on."""
    hidden_s: float = 0.0
    """Seconds of sampling that are not in `parts`, because `sampler.ahead` could at best hide them behind the rest."""

    @property
    def seconds(self) -> float:
        return sum(self.parts.values())

    @property
    def bottleneck(self) -> str:
        return max(self.parts, key=lambda part: self.parts[part])


def estimate_step(case: Case, memory: Memory, scheduling: Scheduling = Scheduling.rollouts) -> StepTime:
    """Returns the time of a step. `memory` decides how many sequences an engine decodes at a time."""
    config, trainer = case.config, case.config.trainer
    num_rollouts, uses_reference = config.sampler.num_rollouts, config.measures_kl
    rollouts = Rollouts.of(case)
    sampling = _sampling_of(case, memory, scheduling)
    each_pass = forward_s(case, rollouts, case.prepared_prompts * num_rollouts)
    weight_bytes = element_bytes(config) * parameters_on_rank(case.model, config, 0)
    reference = REFERENCE_VISITS * weight_bytes / (case.gpu.pcie_bytes_s * LINK_SHARE)
    trained = trainer.prompts_per_step * num_rollouts
    parts = {
        "sampling": sampling.seconds,
        "old log-probabilities": each_pass,
        "reference log-probabilities": (each_pass + reference) * uses_reference,
        "grading, exposed": max(0.0, GRADING_TAIL_S - (1 + uses_reference) * each_pass),
        "updates": update_s(case, rollouts, trained),
        "gradient exchange": trainer.updates_per_step * gradient_sync_s(case),
        "optimizer": _optimizer_s(case),
        "refit": refit_s(case),
    }
    hidden_s = 0.0
    if config.sampler.ahead:  # a bound: as if decoding and training did not slow each other down
        hidden_s = min(parts["sampling"], sum(parts.values()) - parts["sampling"] - parts["refit"])
        parts["sampling"] -= hidden_s
    bubble = _update_bubble(case, rollouts)
    return StepTime(
        parts=parts,
        sampling=sampling,
        bubble_share=bubble / (1 + bubble),
        response_tokens=trained * rollouts.response_tokens,
        hidden_s=hidden_s,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollouts:
    """The average rollout, as the trainer's passes see it."""

    tokens: float
    """Tokens of prompt and response."""
    response_tokens: float
    attended_tokens: float
    """Mean number of tokens that a token attends to: half of E[T^2] / E[T] for a causal mask."""

    @classmethod
    def of(cls, case: Case) -> Rollouts:
        lengths, prompt = case.lengths, case.prompt_tokens
        tokens = prompt + lengths.mean
        square = prompt**2 + 2 * prompt * lengths.mean + lengths.mean_square
        return cls(tokens=tokens, response_tokens=lengths.mean, attended_tokens=square / tokens / 2)


def _sampling_of(case: Case, memory: Memory, scheduling: Scheduling, seed: int = 0) -> Sampling:
    """Simulates the sampling of a step's rollouts."""
    return _sampled(
        case.lengths,
        (case.sampled_prompts, case.config.sampler.num_rollouts),
        seed,
        prompt_tokens=case.prompt_tokens,
        num_engines=case.num_engines,
        num_places=memory.num_places,
        cost=decode_cost(case),
        scheduling=scheduling,
    )


@lru_cache(maxsize=256)
def _sampled(lengths: Lengths, size: tuple[int, int], seed: int, **engines: Any) -> Sampling:
    """Simulates sampling; cached, because it is the same for many layouts of the trainer."""
    return simulate(lengths.draw(*size, seed), **engines)


def tail_of(case: Case, memory: Memory) -> dict[Scheduling, Sampling]:
    """Simulates every way of distributing rollouts over engines; means over NUM_DRAWS draws of lengths."""

    means = {}
    for scheduling in Scheduling:
        draws = [asdict(_sampling_of(case, memory, scheduling, seed)) for seed in range(NUM_DRAWS)]
        means[scheduling] = Sampling(**{name: fmean(draw[name] for draw in draws) for name in draws[0]})
    return means


def decode_cost(case: Case) -> DecodeCost:
    """Returns the cost of decoding. One step reads the weights once and every context's keys and values (Pope et al.,
    arXiv 2211.05102, section 2.1), and computes 2 operations per parameter and sequence. Reading and computing are
    added, an upper bound because they overlap. Drawing the token is not split over GPUs. Tensor parallelism adds two
    all-reduces per layer (arXiv 1909.08053, section 3). The engine's loop on the CPU runs in parallel."""
    model, sampler, gpu = case.model, case.config.sampler, case.gpu
    embedding = 0 if model.tied else model.vocab_size * model.hidden_size
    read = (model.num_parameters - embedding) / sampler.tensor_parallel
    bytes_s = gpu.memory_bytes_s * BANDWIDTH_SHARE
    reduces = 2 * model.num_layers * ALL_REDUCE_S if sampler.tensor_parallel > 1 else 0.0
    multiply = 2 * read / (gpu.flops * DECODE_ARITHMETIC_SHARE)
    return DecodeCost(
        prefill_s=case.prompt_tokens * 2 * read / (gpu.flops * PREFILL_SHARE),
        step_s=reduces + element_bytes(case.config) * read / bytes_s,
        sequence_s=multiply + SAMPLED_BYTES_A_LOGIT * model.vocab_size / bytes_s,
        context_token_s=kv_bytes_a_token(model, case.config) / bytes_s,
        loop_step_s=LOOP_STEP_S + EAGER_LAYER_S * model.num_layers * sampler.enforce_eager,
        loop_sequence_s=LOOP_SEQUENCE_S,
    )


def forward_flops(model: Architecture, rollouts: Rollouts) -> float:
    """Returns the operations of one rollout's forward pass: 2 per parameter and token; for attention 4 q per token and
    attended token in every layer (Kaplan et al., arXiv 2001.08361, table 1); the output layer for response tokens
    only."""
    matrices, attention, head = _flops_parts(model, rollouts)
    return matrices + attention + head


def update_flops(model: Architecture, rollouts: Rollouts, recompute: Recompute) -> float:
    """Returns the operations of one rollout's forward and backward pass. Backward costs twice the forward pass (arXiv
    2001.08361, section 2.1), for attention 2.5 times (FlashAttention-2, arXiv 2307.08691, section 3.1). The output
    layer's logits are computed again (engines/megatron/vocab_parallel.py), and so are layers with full recomputation,
    attention with selective."""
    matrices, attention, head = _flops_parts(model, rollouts)
    full, any_at_all = recompute is Recompute.full, recompute is not Recompute.none
    return (3 + full) * matrices + (3.5 + any_at_all) * attention + 4 * head


def forward_s(case: Case, rollouts: Rollouts, num_rollouts: int) -> float:
    """Returns the time of one log-probability pass over `num_rollouts`, chunk by chunk (as the collector)."""
    config = case.config
    compute = num_rollouts * forward_flops(case.model, rollouts) / _flops(case)
    passes = num_rollouts * rollouts.tokens / config.trainer.micro_batch_tokens
    of_group = config.sampler.num_rollouts * rollouts.tokens / config.trainer.micro_batch_tokens
    in_chunk = min(max(of_group, PASSES_A_CHUNK), passes / case.data_parallel)
    bubble = _bubble(config.trainer.pipeline_parallel, ceil(in_chunk))
    return compute * (1 + bubble) + 2 * _tensor_parallel_s(case, num_rollouts * rollouts.tokens)


def update_s(case: Case, rollouts: Rollouts, num_rollouts: int) -> float:
    """Returns the time of the forward and backward passes of all updates of a step."""
    recompute = case.config.model.recompute
    compute = num_rollouts * update_flops(case.model, rollouts, recompute) / _flops(case)
    num_reduces = 6 if recompute is Recompute.full else 4
    reduces = _tensor_parallel_s(case, num_rollouts * rollouts.tokens)
    return compute * (1 + _update_bubble(case, rollouts)) + num_reduces * reduces


def gradient_sync_s(case: Case) -> float:
    """Returns the time of one update's gradient exchange, after its last backward pass. A ring moves (d - 1) / d of the
    bytes once for a reduce-scatter or an all-gather, twice for an all-reduce (Patarasuk and Yuan, 2009). With a sharded
    optimizer fp32 gradients are reduce-scattered and 16-bit weights gathered; otherwise gradients are all-reduced."""
    config, replicas = case.config, case.data_parallel
    num_parameters = parameters_on_rank(case.model, config, 0)
    sharded = config.trainer.distributed_optimizer
    moved = (4 + element_bytes(config) if sharded else 2 * 4) * num_parameters * (replicas - 1) / replicas
    return moved / (_link(case, case.cluster.num_gpus) * LINK_SHARE)


def _optimizer_s(case: Case) -> float:
    """Returns AdamW's time per step: each update reads gradient, weight and moments and writes weight and moments;
    between steps the states go to the host and back."""
    config, trainer = case.config, case.config.trainer
    num_parameters = parameters_on_rank(case.model, config, 0)
    states = optimizer_bytes(num_parameters, config, case.data_parallel)
    mine = num_parameters / (case.data_parallel if trainer.distributed_optimizer else 1)
    step = (2 * states + 4 * mine) / (case.gpu.memory_bytes_s * BANDWIDTH_SHARE)
    return trainer.updates_per_step * step + 2 * states / PAGEABLE_BYTES_S


def refit_s(case: Case) -> float:
    """Every rank gets every tensor whole from its replica, checks it and writes its share into the engine."""
    model, trainer = case.model, case.config.trainer
    ranks = trainer.tensor_parallel * trainer.pipeline_parallel
    whole = element_bytes(case.config) * model.num_parameters
    gather = whole * (ranks - 1) / ranks / (_link(case, ranks) * LINK_SHARE)
    place = 3 * whole / (case.gpu.memory_bytes_s * BANDWIDTH_SHARE)
    num_tensors = model.num_layers * (9 + 3 * model.qkv_bias + 2 * model.qk_norm) + 3
    return gather + place + num_tensors * TENSOR_S


def _bubble(pipeline_parallel: int, num_micro_batches: int) -> float:
    """Returns the ratio of waiting to working time: (p - 1) / m (Narayanan et al., arXiv 2104.04473, section 2.2.1)."""
    return (pipeline_parallel - 1) / num_micro_batches


def _update_bubble(case: Case, rollouts: Rollouts) -> float:
    """Returns the bubble of one update: each replica has its share of the rollouts, in micro-batches."""
    trainer = case.config.trainer
    num_rollouts = trainer.prompts_per_step / trainer.updates_per_step * case.config.sampler.num_rollouts
    of_replica = num_rollouts * rollouts.tokens / case.data_parallel
    return _bubble(trainer.pipeline_parallel, ceil(of_replica / trainer.micro_batch_tokens))


def _flops_parts(model: Architecture, rollouts: Rollouts) -> tuple[float, float, float]:
    """Returns the operations of one rollout's forward pass: (matrices of the layers, attention, output layer)."""
    queries = model.num_heads * model.head_dim
    of_layers = model.num_parameters - model.vocab_size * model.hidden_size * (1 if model.tied else 2)
    return (
        2 * of_layers * rollouts.tokens,
        4 * model.num_layers * queries * rollouts.attended_tokens * rollouts.tokens,
        2 * model.vocab_size * model.hidden_size * rollouts.response_tokens,
    )


def _tensor_parallel_s(case: Case, num_tokens: float) -> float:
    """Returns the time of one all-reduce of the hidden states in every layer. Forward and backward passes have two each
    (arXiv 1909.08053, section 3). Sequence parallelism replaces each by two collectives of the same total."""
    model, trainer = case.model, case.config.trainer
    tensor, of_replica = trainer.tensor_parallel, num_tokens / case.data_parallel
    layers = model.num_layers / trainer.pipeline_parallel
    moved = 2 * (tensor - 1) / tensor * of_replica * model.hidden_size * element_bytes(case.config) * layers
    return moved / (case.gpu.nvlink_bytes_s * LINK_SHARE)


def _flops(case: Case) -> float:
    """Returns the operations per second that all GPUs together reach."""
    return case.cluster.num_gpus * case.gpu.flops * ARITHMETIC_SHARE


def _link(case: Case, num_ranks: int) -> float:
    """Returns the bandwidth between `num_ranks` consecutive ranks, in bytes per second."""
    return case.gpu.nvlink_bytes_s if num_ranks <= case.cluster.gpus_per_node else case.gpu.network_bytes_s
