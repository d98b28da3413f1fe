"""Estimates the time of a step by a roofline: what operations, bytes and the sampler's loop take at least, each at the
share of its peak that published systems reach.

It is a floor: grading, the refit, validation, checkpoints, restarts and further rounds of dynamic sampling come on top.
Constants marked "fitted" are from experiments/estimates/fit.py, which fits them to published step times.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from nemo_prorl.cluster.scale.known import Gpu
from nemo_prorl.cluster.scale.memory import (
    Memory,
    element_bytes,
    kv_bytes_a_token,
    trained_on_rank,
)
from nemo_prorl.cluster.scale.workload import Case
from nemo_prorl.config import Recompute
from nemo_prorl.data.batch import PASSES_A_CHUNK
from nemo_prorl.engines.megatron.architecture import Architecture
from nemo_prorl.engines.megatron.check import shards_optimizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Derates:
    """Shares of the peak rates that programs reach (fitted)."""

    sampling: float = 0.55
    """Share of the sampling bound."""
    matrices: float = 0.45
    """Share of peak FLOPs in the matrix products of a pass of very many tokens through a very wide model."""
    half_width: float = 850.0
    """Hidden size at which a pass of very many tokens reaches half of that."""

    def of_pass(self, num_tokens: float, width: int, gpu: Gpu) -> float:
        """Returns the share in the matrix products of a pass of so many tokens through a model of this hidden size. A
        pass of few tokens takes as long as its weights are read."""
        ridge = gpu.flops / gpu.memory_bytes_s
        return self.matrices * width / (width + self.half_width) * num_tokens / (num_tokens + ridge)


FITTED = Derates()
RANGE = (0.64, 2.27)
"""Published seconds of whole steps over their estimates, the least and the most of the rows that were fitted."""
SMALL_MODEL = 3e9
"""Parameters below which published runs took much longer than the range (docs/sizing.md)."""
SMALL_MODEL_FACTOR = (3.4, 6.0)
"""Published over estimated seconds of DeepScaleR as two users ran it, and of ProRL in all; none of them was fitted."""

ATTENTION_SHARE = 0.5
"""Share of peak FLOPs in attention: FlashAttention-3 reaches 0.5 to 0.75 on an H100 (arXiv 2407.08608), and no fit to
the rows can tell it from the other constants."""
LOOP_STEP_S = 2e-3
"""CPU time of vLLM's loop per decoding step, for any number of sequences (not measured)."""
LOOP_SEQUENCE_S = 13.5e-6
"""CPU time of the same loop per sequence and step: 46 to 49 us measured with vLLM 0.32 on a slow core, scaled to a core
of 3.5 GHz. Loop and GPU work at the same time, so a step takes as long as the slower of the two."""
EAGER_LAYER_S = 60e-6
"""Additional time per layer without CUDA graphs: a dozen launches of 5 us."""
ALL_REDUCE_S = 15e-6
"""Latency of one small all-reduce over NVLink."""
LINK_SHARE = 0.7
"""Share of a link's bandwidth in collectives of large tensors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Estimated time of one step in the middle of a stage, when the policy differs from its reference."""

    parts: Mapping[str, float]
    """Name -> seconds, in the order of the step."""

    @property
    def seconds(self) -> float:
        return sum(self.parts.values())

    @property
    def low_s(self) -> float:
        return RANGE[0] * self.seconds

    @property
    def high_s(self) -> float:
        return RANGE[1] * self.seconds

    @property
    def bottleneck(self) -> str:
        return max(self.parts, key=lambda part: self.parts[part])


def estimate_step(case: Case, memory: Memory, derates: Derates = FITTED) -> StepTime:
    """Returns the time of a step. `memory` decides how many sequences an engine decodes at a time."""
    return StepTime(
        parts={
            "sampling": sampling_s(case, memory.num_places, derates),
            "passes": logprobs_s(case, derates),
            "updates": updates_s(case, derates),
        }
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeCost:
    """Costs in seconds. A decoding step takes max(step_s + sequence_s x sequences + context_token_s x tokens in their
    contexts, loop_step_s + loop_sequence_s x sequences)."""

    prefill_s: float
    """Prefill of a prompt."""
    step_s: float
    sequence_s: float
    context_token_s: float
    loop_step_s: float
    loop_sequence_s: float


def decode_cost(case: Case) -> DecodeCost:
    """Returns the cost of decoding at peak rates. A step reads the weights once and every context's keys and values
    (arXiv 2211.05102, section 2.1), and computes 2 operations per parameter and sequence. Tensor parallelism adds two
    all-reduces per layer."""
    model, sampler, gpu = case.model, case.config.sampler, case.gpu
    embedding = 0 if model.tied else model.vocab_size * model.hidden_size
    read = (model.num_parameters - embedding) / sampler.tensor_parallel
    reduces = 2 * model.num_layers * ALL_REDUCE_S if sampler.tensor_parallel > 1 else 0.0
    return DecodeCost(
        prefill_s=case.prompt_tokens * 2 * read / gpu.flops,
        step_s=reduces + element_bytes(case.config) * read / gpu.memory_bytes_s,
        sequence_s=2 * read / gpu.flops,
        context_token_s=kv_bytes_a_token(model, case.config) / gpu.memory_bytes_s,
        loop_step_s=LOOP_STEP_S + EAGER_LAYER_S * model.num_layers * sampler.enforce_eager,
        loop_sequence_s=LOOP_SEQUENCE_S,
    )


def sampling_s(case: Case, num_places: int, derates: Derates = FITTED) -> float:
    """Returns the time of sampling. The last sequence of an engine starts when the others leave it a place, and is as
    long as responses may be."""
    cost = decode_cost(case)
    num_rollouts = case.sampled_rollouts / case.num_engines
    tokens = num_rollouts * case.response_tokens
    steps = case.config.sampler.max_response_tokens + case.response_tokens * max(
        0.0, num_rollouts / num_places - 1
    )
    gpu = steps * cost.step_s + tokens * (cost.sequence_s + case.response_context * cost.context_token_s)
    loop = steps * cost.loop_step_s + tokens * cost.loop_sequence_s
    # The rollouts of a prompt are spread over engines, each of which prefills it.
    prefill = min(num_rollouts, case.sampled_prompts) * cost.prefill_s
    return (max(gpu, loop) + prefill) / derates.sampling


def logprobs_s(case: Case, derates: Derates = FITTED) -> float:
    """Returns the time of the log-probability passes: the policy's, and the reference's. The policy's is that over all
    rollouts, as in the published rows, although a first update computes its own."""
    config, num_rollouts = case.config, case.prepared_rollouts
    num_tokens = num_rollouts * case.rollout_tokens
    micro_batches = num_tokens / config.trainer.micro_batch_tokens / case.data_parallel
    bubble = _bubble(case, min(PASSES_A_CHUNK, micro_batches))
    policy = num_rollouts * _passes_s(case, mean_rollout(case).forward, num_tokens, derates) * (1 + bubble)
    policy += 2 * _all_reduce_s(case, num_tokens)
    return policy * (1 + config.measures_kl)


def updates_s(case: Case, derates: Derates = FITTED) -> float:
    """Returns the time of all updates of a step: passes and exchange of gradients. AdamW's own time is less than a
    hundredth."""
    config, trainer, num_rollouts = case.config, case.config.trainer, case.trained_rollouts
    num_tokens = num_rollouts * case.rollout_tokens / trainer.updates_per_step
    bubble = _bubble(case, num_tokens / trainer.micro_batch_tokens / case.data_parallel)
    operations = mean_rollout(case).update(config.model.recompute)
    passes = num_rollouts * _passes_s(case, operations, num_tokens, derates) * (1 + bubble)
    num_reduces = 6 if config.model.recompute is Recompute.full else 4
    passes += num_reduces * _all_reduce_s(case, num_rollouts * case.rollout_tokens)
    return passes + trainer.updates_per_step * gradient_exchange_s(case)


def gradient_exchange_s(case: Case) -> float:
    """Returns the time of one update's gradient exchange. A ring moves (d - 1) / d of the bytes once for a
    reduce-scatter of fp32 gradients or an all-gather of weights, twice for an all-reduce (Patarasuk and Yuan, 2009).
    What the last backward pass hides of it between machines is not taken off, because no one has measured it."""
    config, replicas = case.config, case.data_parallel
    each = 4 + element_bytes(config) if shards_optimizer(config.trainer) else 2 * 4
    moved = each * trained_on_rank(case.model, config, 0) * (replicas - 1) / replicas
    return moved / (_link(case, case.cluster.num_gpus) * LINK_SHARE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operations:
    """Floating-point operations of a forward pass: the layers' matrices, the output layer, attention."""

    layers: float
    head: float
    attention: float

    @property
    def forward(self) -> tuple[float, float]:
        """Returns (matrix products, attention)."""
        return self.layers + self.head, self.attention

    def update(self, recompute: Recompute) -> tuple[float, float]:
        """Returns (matrix products, attention) of forward and backward pass: three times the forward's, and what is
        computed again. The output layer is always computed again, attention in a fused kernel too (2.5 backward, arXiv
        2205.14135), and its forward with selective recomputation."""
        full, any_at_all = recompute is Recompute.full, recompute is not Recompute.none
        return (3 + full) * self.layers + 4 * self.head, (3.5 + any_at_all) * self.attention


def operations(
    model: Architecture, *, num_tokens: float, response_tokens: float, attended: float
) -> Operations:
    """Returns the operations of a pass over so many tokens, of which the output layer needs the response tokens only
    (arXiv 2001.08361, table 1). attended: the sum over all tokens of how many tokens each attends to."""
    of_layers = model.num_parameters - model.vocab_size * model.hidden_size * (1 if model.tied else 2)
    return Operations(
        layers=2 * of_layers * num_tokens,
        head=2 * model.vocab_size * model.hidden_size * response_tokens,
        attention=4 * model.num_layers * model.num_heads * model.head_dim * attended,
    )


def mean_rollout(case: Case) -> Operations:
    """Returns the operations of a mean rollout."""
    tokens = case.rollout_tokens
    return operations(
        case.model,
        num_tokens=tokens,
        response_tokens=case.response_tokens,
        attended=case.rollout_context * tokens,
    )


def _passes_s(case: Case, flops: tuple[float, float], num_tokens: float, derates: Derates) -> float:
    """Returns the time of these operations on all GPUs together, in passes over `num_tokens` on all replicas."""
    a_pass = min(case.config.trainer.micro_batch_tokens, num_tokens / case.data_parallel)
    matrices, attention = flops
    peak_s = (
        matrices / derates.of_pass(a_pass, case.model.hidden_size, case.gpu) + attention / ATTENTION_SHARE
    )
    return peak_s / (case.cluster.num_gpus * case.gpu.flops)


def _bubble(case: Case, num_micro_batches: float) -> float:
    """Returns the ratio of waiting to working time of a pipeline: (p - 1) / m (arXiv 2104.04473, section 2.2.1)."""
    return (case.config.trainer.pipeline_parallel - 1) / ceil(num_micro_batches)


def _all_reduce_s(case: Case, num_tokens: float) -> float:
    """Returns the time of one all-reduce of the hidden states in every layer; forward and backward passes have two each
    (arXiv 1909.08053, section 3)."""
    model, trainer = case.model, case.config.trainer
    tensor, layers = trainer.tensor_parallel, model.num_layers / trainer.pipeline_parallel
    of_replica = num_tokens / case.data_parallel
    moved = 2 * (tensor - 1) / tensor * of_replica * model.hidden_size * element_bytes(case.config) * layers
    return moved / (case.gpu.nvlink_bytes_s * LINK_SHARE)


def _link(case: Case, num_ranks: int) -> float:
    """Returns the bandwidth between `num_ranks` consecutive ranks, in bytes per second."""
    return case.gpu.nvlink_bytes_s if num_ranks <= case.cluster.gpus_per_node else case.gpu.network_bytes_s
