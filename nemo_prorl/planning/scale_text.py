"""Formats a plan's memory, time and long tail for a terminal of 100 columns. Every function returns lines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from textwrap import wrap

from nemo_prorl.planning.estimate import PAPER_GPU_HOURS
from nemo_prorl.planning.fit import Cluster
from nemo_prorl.planning.hardware import GIB, Gpu
from nemo_prorl.planning.layouts import Plan, overrides
from nemo_prorl.planning.memory import GRAPH_SEQUENCES, PLANNED_SHARE
from nemo_prorl.planning.scale import Comparison
from nemo_prorl.planning.step_time import StepTime
from nemo_prorl.planning.tail import Sampling, Scheduling
from nemo_prorl.planning.text import WIDTH, crash_text, table

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
    before = None
    for plan in plans:
        if plan.memory == before:
            continue
        before = plan.memory
        for phase, parts in plan.memory.phases.items():
            sizes = [f"{parts[part] / GIB:.1f}" if part in parts else "-" for part in MEMORY_PARTS]
            rows.append((plan.config.stage.name, phase, *sizes, f"{plan.memory.total(phase) / GIB:.1f}"))
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
        *table(rows, "ll" + "r" * (len(MEMORY_PARTS) + 1)),
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
        columns = [f"{sum(time.parts[part] for part in parts):.1f}" for _, parts in TIME_COLUMNS]
        rows.append(
            (
                plan.config.stage.name,
                *columns,
                f"{time.seconds:.1f}",
                f"{steps:,}",
                f"{of_stage:,.0f}",
                time.bottleneck,
            )
        )
    lines = ["Seconds of a step", *table(rows, "l" + "r" * (len(head) + 3) + "l"), ""]
    if len(plans) > 1:
        lines += [
            f"The steps take {hours:,.0f} GPU hours. The paper's chain took {PAPER_GPU_HOURS:,}, which include what is",
            "not estimated here: validation, checkpoints, restarts (docs/scale.md).",
        ]
        return [*lines, *crash_text([(plan.config, plan.time.seconds) for plan in plans], cluster)]
    (plan,) = plans
    tail = plan.time.sampling
    return [
        *lines,
        *table([(name, f"{seconds:.1f} s") for name, seconds in plan.time.parts.items()], "lr"),
        "",
        f"Engines wait for the last one {tail.waiting_share:.0%} of the sampling time, and are less than half full "
        f"{tail.half_empty_share:.0%} of it.",
        f"Pipeline stages wait for each other {plan.time.bubble_share:.0%} of the updates' time.",
        *(wrap(_ahead_text(plan.time), WIDTH) if plan.config.sampler.ahead else []),
        *crash_text([(plan.config, plan.time.seconds)], cluster),
    ]


def _ahead_text(time: StepTime) -> str:
    """What the estimate means with sampler.ahead."""
    return (
        f"With sampler.ahead the {time.seconds:.1f} s are a bound, not an expectation: they hold if sampling and "
        "training do not slow each other down, and they share a GPU and a Python interpreter. If no sampling hid, "
        f"the step would take {time.seconds + time.hidden_s:.1f} s."
    )


def layouts_text(plans: Sequence[Plan]) -> list[str]:
    """One row for each of the fastest layouts that fit."""
    if not plans:
        return ["", "No layout fits."]
    rows = [("step", "GiB", "tensor", "pipeline", "sampler", "recompute")]
    for plan in plans[:MAX_LAYOUTS]:
        trainer = plan.config.trainer
        rows.append(
            (
                f"{plan.time.seconds:.1f} s",
                f"{plan.memory.total(plan.memory.fullest_phase) / GIB:.1f}",
                str(trainer.tensor_parallel),
                str(trainer.pipeline_parallel),
                str(plan.config.sampler.tensor_parallel),
                plan.config.model.recompute.name,
            )
        )
    return [
        "",
        f"Layouts that fit: {len(plans)}, fastest first (sampler: its tensor parallelism)",
        *table(rows, "rrrrrl"),
        *wrap(f"The fastest: {overrides(plans[0].config)}", WIDTH, subsequent_indent="    "),
    ]


def without_repeats(
    results: Sequence[tuple[str, dict[Scheduling, Sampling]]],
) -> list[tuple[str, dict[Scheduling, Sampling]]]:
    """Returns the stages whose sampling differs from that of the stage before."""
    return [result for index, result in enumerate(results) if not index or result[1] != results[index - 1][1]]


def tail_text(results: Sequence[tuple[str, dict[Scheduling, Sampling]]]) -> list[str]:
    """One row for each stage and each way of distributing rollouts over engines."""
    rows: list[tuple[str, ...]] = [
        ("stage", "rollouts by", "sampling", "to prompts", "waiting", "half empty")
    ]
    for name, samplings in without_repeats(results):
        first = samplings[Scheduling.prompts].seconds
        for scheduling, sampling in samplings.items():
            rows.append(
                (
                    name,
                    scheduling.value,
                    f"{sampling.seconds:.1f} s",
                    f"{sampling.seconds / first:.2f}",
                    f"{sampling.waiting_share:.0%}",
                    f"{sampling.half_empty_share:.0%}",
                )
            )
    return [
        "How rollouts are distributed over engines, and what the longest ones cost",
        *table(rows, "llrrrr"),
        "",
        "A stage without a row is like the one before it. The trainer distributes single rollouts.",
    ]


def scale_text(rows: Iterable[tuple[str, Cluster, int, Plan | None]]) -> list[str]:
    """A Markdown table with a row for each model and cluster."""
    lines = [
        "| model | H100 | response "
        "| layout: TP x PP, sampler TP, recompute | GiB | step, s | sampling | tokens/s/GPU |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, cluster, max_response_tokens, plan in rows:
        head = f"| {name} | {cluster.num_gpus:,} | {max_response_tokens:,} |"
        if plan is None:
            lines.append(f"{head} none fits | | | | |")
            continue
        trainer, time = plan.config.trainer, plan.time
        layout = (
            f"{trainer.tensor_parallel} x {trainer.pipeline_parallel}, {plan.config.sampler.tensor_parallel}"
        )
        lines.append(
            f"{head} {layout}, {plan.config.model.recompute.name} "
            f"| {plan.memory.total(plan.memory.fullest_phase) / GIB:.0f} | {time.seconds:.0f} "
            f"| {time.parts['sampling'] / time.seconds:.0%} "
            f"| {time.response_tokens / time.seconds / cluster.num_gpus:,.0f} |"
        )
    return lines


def comparisons_text(rows: Iterable[Comparison]) -> list[str]:
    """A Markdown table of estimates beside published numbers."""
    lines = ["| published | | estimate | ratio |", "|---|---|---|---|"]
    for row in rows:
        estimate = f"{row.estimate:,.0f}" if row.estimate > 1000 else f"{row.estimate:.3g}"
        lines.append(f"| {row.what} | {row.published} | {estimate} | {row.estimate / row.number:.2f} |")
    return lines
