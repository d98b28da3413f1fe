"""Prints the table of layouts in docs/sizing.md: the papers' step from 1.5B on 8 GPUs to 70B on 1,024.

python -m experiments.estimates.layouts
"""

from __future__ import annotations

from collections.abc import Iterator

from nemo_prorl.cluster.plan.fit import Cluster
from nemo_prorl.cluster.scale.known import GPUS, shape_of
from nemo_prorl.cluster.scale.layouts import fitting_layouts
from nemo_prorl.cluster.scale.memory import GIB
from nemo_prorl.cluster.scale.workload import Case
from nemo_prorl.commands.parsing import CONF_DIR
from nemo_prorl.config.compose import compose

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


def layouts() -> Iterator[str]:
    """Yields the lines of a Markdown table of the fastest layout of each case."""
    yield "| model | H100 | response | TP x PP, sampler TP, recompute | GiB | step, s | sampling | tokens/s/GPU |"
    yield "|---|---|---|---|---|---|---|---|"
    for name, num_nodes, longest in CASES:
        config = compose("train", [f"sampler.max_response_tokens={longest}"], conf_dir=CONF_DIR)
        cluster = Cluster(num_nodes=num_nodes, gpus_per_node=8)
        case = Case(model=shape_of(name), config=config, cluster=cluster, gpu=GPUS["h100"])
        plan, tokens = fitting_layouts(case)[0], case.trained_rollouts * case.response_tokens
        trainer, time = plan.config.trainer, plan.time
        layout = (
            f"{trainer.tensor_parallel} x {trainer.pipeline_parallel}, {plan.config.sampler.tensor_parallel}"
        )
        yield (
            f"| {name} | {cluster.num_gpus:,} | {longest:,} | {layout}, {plan.config.model.recompute.name} "
            f"| {plan.memory.total(plan.memory.fullest_phase) / GIB:.0f} | {time.seconds:.0f} "
            f"| {time.parts['sampling'] / time.seconds:.0%} "
            f"| {tokens / time.seconds / cluster.num_gpus:,.0f} |"
        )


if __name__ == "__main__":
    print(*layouts(), sep="\n")
