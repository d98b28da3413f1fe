"""Formats a plan's memory and time: tables of 80 columns, and sentences that are folded where they are
printed. Functions return lines."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from nemo_prorl.cluster.plan.fit import Cluster
from nemo_prorl.cluster.plan.text import range_text, table
from nemo_prorl.cluster.scale.known import Gpu
from nemo_prorl.cluster.scale.layouts import StagePlan, overrides
from nemo_prorl.cluster.scale.memory import GIB, PLANNED_SHARE
from nemo_prorl.cluster.scale.roofline import RANGE, SMALL_MODEL, SMALL_MODEL_FACTOR
from nemo_prorl.engines.megatron.architecture import Architecture

MEMORY_PARTS = (
    "weights", "factors", "reference", "gradients", "optimizer", "activations", "logits", "refit", "vLLM",
)  # fmt: skip
MAX_LAYOUTS = 8


def memory_text(plans: Sequence[StagePlan], gpu: Gpu) -> list[str]:
    """Returns a table of a GPU's memory, phase by phase, for every stage that differs from the one before."""
    tables: list[str] = []
    for memory, (plan, *_) in groupby(plans, key=lambda plan: plan.memory):
        rows = [(plan.config.stage.name, *memory.phases)]
        for part in MEMORY_PARTS:
            if not any(part in parts for parts in memory.phases.values()):
                continue
            sizes = (f"{parts[part] / GIB:.1f}" if part in parts else "-" for parts in memory.phases.values())
            rows.append((part, *sizes))
        rows.append(("total", *(f"{memory.total(phase) / GIB:.1f}" for phase in memory.phases)))
        tables += [*table(rows, "<" + ">" * len(memory.phases)), ""]
    last, rollouts = plans[-1].memory, plans[-1].rollouts_per_engine
    most = min(plans[-1].config.sampler.max_sequences, rollouts)
    places = (
        f"An engine gets {rollouts:,} responses per step, and its KV cache has room for {last.num_fitting:,} of mean "
        "length at a time."
    )
    if most > last.num_fitting:
        places += (
            f" vLLM would start {most:,}, preempt some when the cache is full, and recompute them: write "
            f"sampler.max_sequences={last.num_fitting}."
        )
    vllm = ", ".join(f"{name} {size / GIB:.1f}" for name, size in last.vllm_parts.items())
    host = ", ".join(f"{name} {size / GIB:.1f}" for name, size in last.host.items())
    said = [
        f"The total includes {last.fixed / GIB:.1f} GiB for CUDA and NCCL, and {last.fragmentation - 1:.0%} of what is "
        f"not vLLM's for fragmentation. A plan may fill {PLANNED_SHARE:.0%} of the GPU.",
        f"vLLM's part: {vllm}.",
        places,
        f"Host memory per GPU: {host}.",
        *(["A stage without a table is like the one before it."] if len(plans) > 1 else []),
    ]
    if all(plan.releases_in_vain for plan in plans):
        said.append(
            "Sampler and policy fit beside each other: write sampler.release_memory=false, and no step moves optimizer "
            "states to the host and back."
        )
    return [f"GiB of the fullest GPU, of {gpu.memory_gib:g}", *tables, *said]


def time_text(plans: Sequence[StagePlan], cluster: Cluster, model: Architecture) -> list[str]:
    """Returns a table of the parts of a step, stage by stage, and what the numbers stand for."""
    head = ("stage", *plans[0].time.parts, "step", "steps", "GPU h", "bottleneck")
    rows: list[tuple[str, ...]] = [head]
    for plan in plans:
        time = plan.time
        rows.append(
            (
                plan.config.stage.name,
                *(f"{seconds:.1f}" for seconds in time.parts.values()),
                f"{time.low_s:.0f}-{time.high_s:.0f}",
                f"{plan.config.trainer.num_steps:,}",
                range_text(step_hours([plan], cluster)),
                time.bottleneck,
            )
        )
    low, high = RANGE
    said = [
        f"step: published steps took {low:g} to {high:g} times the sum of these parts. Grading, "
        "refit, validation, checkpoints, restarts and further rounds of dynamic sampling come on top."
    ]
    if model.num_parameters < SMALL_MODEL:
        less, more = SMALL_MODEL_FACTOR
        said.append(
            f"Published runs of models as small as this one took {less:g} to {more:g} times the sum "
            "(docs/sizing.md): the range may be too low."
        )
    if any(plan.config.sampler.ahead for plan in plans):
        said.append("What sampler.ahead hides of the sampling is not subtracted.")
    return ["Seconds of a step", *table(rows, "<" + ">" * (len(head) - 2) + "<"), "", *said]


def step_hours(plans: Sequence[StagePlan], cluster: Cluster) -> tuple[float, float]:
    """Returns the range of the GPU hours of all steps of these stages."""
    low = sum(plan.config.trainer.num_steps * plan.time.low_s for plan in plans)
    high = sum(plan.config.trainer.num_steps * plan.time.high_s for plan in plans)
    return low * cluster.num_gpus / 3600, high * cluster.num_gpus / 3600


def layouts_text(plans: Sequence[StagePlan]) -> list[str]:
    """Returns a table of the fastest layouts that fit."""
    if not plans:
        return ["", "No layout fits."]
    rows: list[tuple[str, ...]] = [("step", "GiB", "tensor", "pipeline", "sampler", "recompute")]
    for plan in plans[:MAX_LAYOUTS]:
        config, fullest = plan.config, plan.memory.total(plan.memory.fullest_phase)
        numbers = (f"{plan.time.low_s:.0f}-{plan.time.high_s:.0f} s", f"{fullest / GIB:.1f}")
        trainer, sampler = config.trainer, config.sampler
        split = (trainer.tensor_parallel, trainer.pipeline_parallel, sampler.tensor_parallel)
        rows.append((*numbers, *map(str, split), config.model.recompute.name))
    return [
        "",
        f"Layouts that fit: {len(plans)}, fastest first (sampler: its tensor parallelism)",
        *table(rows, ">>>>><"),
        f"The fastest: {overrides(plans[0].config)}",
    ]
