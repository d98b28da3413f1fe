"""Formats a plan's memory, time and long tail for a terminal: text of 80 columns, tables of 100. Functions return
lines."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from textwrap import wrap

from nemo_prorl.cluster.plan.estimate import PAPER_GPU_HOURS
from nemo_prorl.cluster.plan.fit import Cluster
from nemo_prorl.cluster.plan.text import WIDTH, crash_text, table
from nemo_prorl.cluster.scale.hardware import GIB, Gpu
from nemo_prorl.cluster.scale.layouts import Plan, overrides
from nemo_prorl.cluster.scale.memory import GRAPH_SEQUENCES, PLANNED_SHARE
from nemo_prorl.cluster.scale.tail import Sampling, Scheduling

TABLE_WIDTH = 100

MEMORY_PARTS = ("weights", "reference", "gradients", "optimizer", "activations", "logits", "refit", "vLLM")
TIME_COLUMNS = (
    ("sampling", ("sampling",)),
    ("passes", ("old log-probabilities", "reference log-probabilities")),
    ("grading", ("grading, exposed",)),
    ("updates", ("updates",)),
    ("rest", ("gradient exchange", "optimizer", "refit")),
)
"""Columns of the table of stages, each with the parts of a step that it adds up."""
MAX_LAYOUTS = 8


def memory_text(plans: Sequence[Plan], gpu: Gpu) -> list[str]:
    """One row per phase, for every stage that differs from the one before."""
    rows: list[tuple[str, ...]] = [("stage", "phase", *MEMORY_PARTS, "total")]
    for memory, (plan, *_) in groupby(plans, key=lambda plan: plan.memory):
        for phase, parts in memory.phases.items():
            sizes = [f"{parts[part] / GIB:.1f}" if part in parts else "-" for part in MEMORY_PARTS]
            rows.append((plan.config.stage.name, phase, *sizes, f"{memory.total(phase) / GIB:.1f}"))
    last = plans[-1].memory
    vllm = ", ".join(f"{name} {size / GIB:.1f}" for name, size in last.vllm_parts.items())
    host = ", ".join(f"{name} {size / GIB:.1f}" for name, size in last.host.items())
    said = [
        f"The total includes {last.fixed / GIB:.1f} GiB for CUDA and NCCL, and {last.fragmentation - 1:.0%} of what is "
        f"not vLLM's for fragmentation. A plan may fill {PLANNED_SHARE:.0%} of the GPU.",
        f"vLLM's part: {vllm}.",
        _places_text(plans[-1]),
        f"Host memory per GPU: {host}.",
        *(["A stage without a row is like the one before it."] if len(plans) > 1 else []),
    ]
    return [
        f"GiB of the fullest GPU, of {gpu.memory_gib:g}",
        *table(rows, "ll" + "r" * (len(MEMORY_PARTS) + 1), TABLE_WIDTH),
        "",
        *(line for text in said for line in wrap(text, WIDTH)),
    ]


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
    """One row per stage; for several stages their sum beside the paper's, for a single one the parts of its step."""
    head = [name for name, _ in TIME_COLUMNS]
    rows: list[tuple[str, ...]] = [("stage", *head, "step", "steps", "GPU h", "bottleneck")]
    hours = 0.0
    for plan in plans:
        time, steps = plan.time, plan.config.trainer.num_steps
        of_stage = steps * time.seconds * cluster.num_gpus / 3600
        hours += of_stage
        seconds = [*(sum(time.parts[part] for part in parts) for _, parts in TIME_COLUMNS), time.seconds]
        numbers = [*(f"{each:.1f}" for each in seconds), f"{steps:,}", f"{of_stage:,.0f}"]
        rows.append((plan.config.stage.name, *numbers, time.bottleneck))
    lines = ["Seconds of a step", *table(rows, "l" + "r" * (len(head) + 3) + "l", TABLE_WIDTH), ""]
    if len(plans) > 1:
        lines += [
            f"The steps take {hours:,.0f} GPU hours. The paper's chain took {PAPER_GPU_HOURS:,}, which include what is",
            "not estimated here: validation, checkpoints, restarts (docs/scale.md).",
        ]
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
        *wrap(
            f"Engines wait for the last one {tail.waiting_share:.0%} of the sampling time, and are less than half full "
            f"{tail.half_empty_share:.0%} of it.",
            WIDTH,
        ),
        f"Pipeline stages wait for each other {time.bubble_share:.0%} of the updates' time.",
        *(wrap(ahead, WIDTH) if plan.config.sampler.ahead else []),
        *crash_text([(plan.config, plan.time.seconds)], cluster),
    ]


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
        *wrap(f"The fastest: {overrides(plans[0].config)}", WIDTH, subsequent_indent="    "),
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
