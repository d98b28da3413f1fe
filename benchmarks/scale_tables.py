"""Prints two tables of docs/scale.md: the recipe from 1.5B on 8 GPUs to 70B on 1,024, and estimates of `plan` next to
published numbers.

    python -m benchmarks.scale_tables
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from nemo_prorl.cluster.plan.fit import Cluster
from nemo_prorl.cluster.scale.hardware import GIB, GPUS, Gpu
from nemo_prorl.cluster.scale.layouts import Plan, fitting_layouts
from nemo_prorl.cluster.scale.memory import estimate_memory
from nemo_prorl.cluster.scale.shapes import shape_of
from nemo_prorl.cluster.scale.step_time import Rollouts, StepTime, estimate_step, refit_s, update_s
from nemo_prorl.cluster.scale.tail import Scheduling
from nemo_prorl.cluster.scale.workload import Case
from nemo_prorl.config import (
    DynamicSamplingConfig,
    ModelConfig,
    Recompute,
    RunConfig,
    SamplerConfig,
    TrainerConfig,
)

H20 = Gpu(
    name="h20",
    memory_gib=95.1,
    flops=148e12,
    memory_bytes_s=4.0e12,
    nvlink_bytes_s=450e9,
    network_bytes_s=50e9,
    pcie_bytes_s=64e9,
)
"""Used for one published row only. NVIDIA publishes no data sheet for it; these figures are from resellers."""

CASES = (
    # model, nodes of 8 H100, longest response
    ("r1-distill-qwen-1.5b", 1, 8192),
    ("r1-distill-qwen-1.5b", 4, 8192),
    ("r1-distill-qwen-1.5b", 4, 16384),
    ("qwen2.5-7b", 1, 8192),
    ("qwen2.5-7b", 4, 16384),
    ("qwen2.5-14b", 8, 16384),
    ("qwen2.5-32b", 16, 16384),
    ("llama3-70b", 32, 16384),
    ("llama3-70b", 128, 16384),
)


def recipe(max_response_tokens: int) -> RunConfig:
    """Returns the paper's step as in conf/train.yaml: 256 prompts x 16 rollouts, 4 updates; the sampler releases its
    memory during updates."""
    return RunConfig(
        trainer=TrainerConfig(micro_batch_tokens=20480),
        sampler=SamplerConfig(
            max_response_tokens=max_response_tokens, release_memory=True, memory_fraction=0.7
        ),
    )


def scale_plans() -> Iterator[tuple[str, Cluster, int, Plan | None]]:
    """Yields (model, cluster, longest response, fastest plan that fits) for every case."""
    for name, num_nodes, max_response_tokens in CASES:
        cluster = Cluster(num_nodes=num_nodes, gpus_per_node=8)
        plans = fitting_layouts(_case(name, recipe(max_response_tokens), cluster))
        yield name, cluster, max_response_tokens, plans[0] if plans else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """An estimate and a published number.

    Example: Comparison(what="refit of Qwen3-4B", published="0.21 to 0.34 s", number=0.27, estimate=0.25)
    """

    what: str
    published: str
    number: float
    """The published number by which the estimate is divided: the middle of a range, or a bound."""
    estimate: float


def comparisons() -> list[Comparison]:
    """Compares estimates with the figures that other systems publish for their own software."""
    rows = [
        Comparison(
            what=f"verl, 7B, H20: {part}, {gpus} GPUs",
            published=f"{seconds} s",
            number=seconds,
            estimate=_verl(gpus)[part],
        )
        for gpus, parts in VERL.items()
        for part, seconds in parts.items()
    ]
    four = "qwen3-4b"
    node = Cluster(num_nodes=1, gpus_per_node=8)
    for context, tokens_s in ((16384, 26_026), (65536, 28_966)):
        config = RunConfig(
            model=ModelConfig(recompute=Recompute.full),
            trainer=TrainerConfig(micro_batch_tokens=context),
            sampler=SamplerConfig(max_prompt_tokens=1, max_response_tokens=context - 1),
        )
        whole = Rollouts(tokens=context, response_tokens=context, attended_tokens=context / 2)
        seconds = update_s(_case(four, config, node), whole, 64)
        rows.append(
            Comparison(
                what=f"prime-rl, Qwen3-4B, 8 H100: trainer at {context // 1024}k context",
                published=f"{tokens_s:,} tokens/s",
                number=tokens_s,
                estimate=64 * context / seconds,
            )
        )
    rows.append(
        Comparison(
            what="NeMo RL, Qwen3-4B, H100: refit",
            published="0.21 to 0.34 s",
            number=0.275,
            estimate=refit_s(_case(four, RunConfig(), node)),
        )
    )
    rows.append(
        Comparison(
            what="NeMo RL, Qwen2.5-Math-1.5B, 8 H100, 512 tokens: step",
            published="below 25 s",
            number=25,
            estimate=_nemo_rl_gate().seconds,
        )
    )
    return rows


VERL = {
    32: {"sampling": 357.41, "old log-probabilities": 107.71, "updates": 313.81},
    64: {"sampling": 150.72, "old log-probabilities": 70.26, "updates": 133.41},
    128: {"sampling": 177.85, "old log-probabilities": 53.92, "updates": 113.81},
}
"""Qwen2.5-Math-7B, colocated and synchronous, 512 prompts x 16 rollouts of up to 28k tokens, on H20 (verl's
documentation, fully asynchronous policy trainer, at commit 2147009; newer versions of the page swap the updates on 32
GPUs between colocated and asynchronous, which contradicts their own seconds of whole steps: docs/scale.md)."""
VERL_RESPONSE_TOKENS = 1_240
"""Mean response length, which is not published. It is the one fitted number: with it the log-probability pass on 32
GPUs takes as long as verl's."""


def _verl(num_gpus: int) -> dict[str, float]:
    longest = 28 * 1024
    config = RunConfig(
        trainer=TrainerConfig(prompts_per_step=512, updates_per_step=16, micro_batch_tokens=32768),
        sampler=SamplerConfig(
            max_prompt_tokens=2048, max_response_tokens=longest, memory_fraction=0.8, release_memory=True
        ),
        dynamic_sampling=DynamicSamplingConfig(enabled=False),
    )
    share = VERL_RESPONSE_TOKENS / longest
    cluster = Cluster(num_nodes=num_gpus // 8, gpus_per_node=8)
    return dict(_step(_case("qwen2.5-7b", config, cluster, gpu=H20, response_share=share)).parts)


def _nemo_rl_gate() -> StepTime:
    """Estimates the configuration of NeMo RL's nightly test: 32 prompts x 16 rollouts, one update, 512 tokens of prompt
    and response together."""
    config = RunConfig(
        trainer=TrainerConfig(prompts_per_step=32, updates_per_step=1, micro_batch_tokens=2048),
        sampler=SamplerConfig(max_prompt_tokens=128, max_response_tokens=384),
        dynamic_sampling=DynamicSamplingConfig(enabled=False),
    )
    return _step(_case("qwen2.5-1.5b", config, Cluster(num_nodes=1, gpus_per_node=8)))


def _case(
    name: str,
    config: RunConfig,
    cluster: Cluster,
    *,
    gpu: Gpu = GPUS["h100"],
    **shares: float,
) -> Case:
    return Case(model=shape_of(name), config=config, cluster=cluster, gpu=gpu, **shares)


def _step(case: Case) -> StepTime:
    return estimate_step(case, estimate_memory(case), Scheduling.prompts)


def scale_text(rows: Iterable[tuple[str, Cluster, int, Plan | None]]) -> list[str]:
    """Returns the lines of a Markdown table with a row for each model and cluster."""
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
    """Returns the lines of a Markdown table of estimates and published numbers."""
    lines = ["| published | | estimate | ratio |", "|---|---|---|---|"]
    for row in rows:
        estimate = f"{row.estimate:,.0f}" if row.estimate > 1000 else f"{row.estimate:.3g}"
        lines.append(f"| {row.what} | {row.published} | {estimate} | {row.estimate / row.number:.2f} |")
    return lines


if __name__ == "__main__":
    print(*scale_text(scale_plans()), "", *comparisons_text(comparisons()), sep="\n")
