"""Formats a plan's memory, time and long tail: tables of 80 columns, and sentences that are folded where they are
printed. Functions return lines."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from nemo_prorl.cluster.plan.fit import Cluster
from nemo_prorl.cluster.plan.text import crash_text, table
from nemo_prorl.cluster.scale.hardware import GIB, Gpu
from nemo_prorl.cluster.scale.layouts import Plan, overrides
from nemo_prorl.cluster.scale.memory import GRAPH_SEQUENCES, PLANNED_SHARE
from nemo_prorl.cluster.scale.tail import Sampling, Scheduling

MEMORY_PARTS = ("weights", "reference", "gradients", "optimizer", "activations", "logits", "refit", "vLLM")
TIME_COLUMNS = (
    ("sampling", ("sampling",)),
    ("passes", ("old log-probabilities", "reference log-probabilities")),
    ("updates", ("updates",)),
    ("rest", ("grading, exposed", "gradient exchange", "optimizer", "refit")),
)
"""Columns of the table of stages, each with the parts of a step that it adds up."""
MAX_LAYOUTS = 8


def memory_text(plans: Sequence[Plan], gpu: Gpu) -> list[str]:
    """A table with one column per phase, for every stage that differs from the one before."""
    tables: list[str] = []
    for memory, (plan, *_) in groupby(plans, key=lambda plan: plan.memory):
        rows = [(plan.config.stage.name, *memory.phases)]
        for part in MEMORY_PARTS:
            sizes = (f"{parts[part] / GIB:.1f}" if part in parts else "-" for parts in memory.phases.values())
            rows.append((part, *sizes))
        rows.append(("total", *(f"{memory.total(phase) / GIB:.1f}" for phase in memory.phases)))
        tables += [*table(rows, "l" + "r" * len(memory.phases)), ""]
    last = plans[-1].memory
    vllm = ", ".join(f"{name} {size / GIB:.1f}" for name, size in last.vllm_parts.items())
    host = ", ".join(f"{name} {size / GIB:.1f}" for name, size in last.host.items())
    said = [
        f"The total includes {last.fixed / GIB:.1f} GiB for CUDA and NCCL, and {last.fragmentation - 1:.0%} of what is "
        f"not vLLM's for fragmentation. A plan may fill {PLANNED_SHARE:.0%} of the GPU.",
        f"vLLM's part: {vllm}.",
        _places_text(plans[-1]),
        f"Host memory per GPU: {host}.",
        *(["A stage without a table is like the one before it."] if len(plans) > 1 else []),
    ]
    return [f"GiB of the fullest GPU, of {gpu.memory_gib:g}", *tables, *said]


def _places_text(plan: Plan) -> str:
    """Says how many responses an engine decodes at a time, and what to write if it would get more than fit."""
    memory, most = plan.memory, min(plan.config.sampler.max_sequences, plan.rollouts_per_engine)
    text = (
        f"An engine gets {plan.rollouts_per_engine:,} responses per step, and its KV cache has room for "
        f"{memory.num_fitting:,} of mean length at a time."
    )
    if most > memory.num_fitting:
        text += (
            f" vLLM would start {most:,}, preempt some when the cache is full, and recompute them: write "
            f"sampler.max_sequences={memory.num_fitting}."
        )
    if min(most, memory.num_fitting) > GRAPH_SEQUENCES:
        text += f" More than {GRAPH_SEQUENCES} at a time run without CUDA graphs, which the estimate ignores."
    return text


def time_text(plans: Sequence[Plan], cluster: Cluster) -> list[str]:
    """One row per stage; for a single one also the parts of its step."""
    head = [name for name, _ in TIME_COLUMNS]
    rows: list[tuple[str, ...]] = [("stage", *head, "step", "steps", "GPU h", "bottleneck")]
    for plan in plans:
        time = plan.time
        seconds = [*(sum(time.parts[part] for part in parts) for _, parts in TIME_COLUMNS), time.seconds]
        hours = step_hours([plan], cluster)
        numbers = [
            *(f"{each:.1f}" for each in seconds),
            f"{plan.config.trainer.num_steps:,}",
            f"{hours:,.0f}",
        ]
        rows.append((plan.config.stage.name, *numbers, time.bottleneck))
    lines = ["Seconds of a step", *table(rows, "l" + "r" * (len(head) + 3) + "l"), ""]
    if len(plans) > 1:
        return [*lines, *crash_text([(plan.config, plan.time.seconds) for plan in plans], cluster)]
    (plan,) = plans
    time, tail = plan.time, plan.time.sampling
    ahead = (
        f"With sampler.ahead the {time.seconds:.1f} s are a bound, not an expectation: they hold if sampling and "
        "training do not slow each other down, and they share a GPU and a Python interpreter. If no sampling hid, "
        f"the step would take {time.seconds + time.hidden_s:.1f} s."
    )
    return [
        *lines,
        *table([(name, f"{each:.1f} s") for name, each in time.parts.items()], "lr"),
        "",
        f"Engines wait for the last one {tail.waiting_share:.0%} of the sampling time, and are less than half full "
        f"{tail.half_empty_share:.0%} of it.",
        f"Pipeline stages wait for each other {time.bubble_share:.0%} of the updates' time.",
        *([ahead] if plan.config.sampler.ahead else []),
        *crash_text([(plan.config, plan.time.seconds)], cluster),
    ]


def step_hours(plans: Sequence[Plan], cluster: Cluster) -> float:
    """Returns the GPU hours of all steps of these stages."""
    return sum(plan.config.trainer.num_steps * plan.time.seconds for plan in plans) * cluster.num_gpus / 3600


def layouts_text(plans: Sequence[Plan]) -> list[str]:
    """One row for each of the fastest layouts that fit."""
    if not plans:
        return ["", "No layout fits."]
    rows: list[tuple[str, ...]] = [("step", "GiB", "tensor", "pipeline", "sampler", "recompute")]
    for plan in plans[:MAX_LAYOUTS]:
        config, fullest = plan.config, plan.memory.total(plan.memory.fullest_phase)
        numbers = (f"{plan.time.seconds:.1f} s", f"{fullest / GIB:.1f}")
        trainer, sampler = config.trainer, config.sampler
        split = (trainer.tensor_parallel, trainer.pipeline_parallel, sampler.tensor_parallel)
        rows.append((*numbers, *map(str, split), config.model.recompute.name))
    return [
        "",
        f"Layouts that fit: {len(plans)}, fastest first (sampler: its tensor parallelism)",
        *table(rows, "rrrrrl"),
        f"The fastest: {overrides(plans[0].config)}",
    ]


def tail_text(results: Sequence[tuple[str, dict[Scheduling, Sampling]]]) -> list[str]:
    """One row for each way of distributing rollouts over engines, for every stage that differs from the one before."""
    head = ("stage", "rollouts by", "sampling", "to prompts", "waiting", "half empty")
    rows: list[tuple[str, ...]] = [head]
    for samplings, ((name, _), *_) in groupby(results, key=lambda result: result[1]):
        first = samplings[Scheduling.prompts].seconds
        for scheduling, sampling in samplings.items():
            seconds = (f"{sampling.seconds:.1f} s", f"{sampling.seconds / first:.2f}")
            shares = (f"{sampling.waiting_share:.0%}", f"{sampling.half_empty_share:.0%}")
            rows.append((name, scheduling.value, *seconds, *shares))
    return [
        "How rollouts are distributed over engines, and what the longest ones cost",
        *table(rows, "llrrrr"),
        "",
        "A stage without a row is like the one before it. The trainer distributes single rollouts.",
    ]
