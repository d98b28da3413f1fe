"""Shows what a chain of stages changes, what it costs and which files are missing; refuses a chain that cannot work."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from nemo_prorl.commands.output import show
from nemo_prorl.commands.parsing import CONF_DIR, Parser, parse_overrides

if TYPE_CHECKING:
    from nemo_prorl.planning.chain import Chain
    from nemo_prorl.planning.fit import Cluster

DESCRIPTION = """\
stage=NAME  shows only this stage of conf/stage/, at the end of the chain that leads to it
            (default: the papers' eight runs, run1 to run8, or what another --config-name says)
KEY=VALUE   any option of `train --help`; it applies to every stage

--memory, --time and --tail are estimates; nemo_prorl/planning/ and docs/scale.md have their formulas and sources."""


def main(arguments: Sequence[str]) -> int:
    """Exit code."""
    from nemo_prorl.planning.chain import asked_chain
    from nemo_prorl.planning.fit import Cluster, check_chain, model_of
    from nemo_prorl.planning.remaining import missing_files
    from nemo_prorl.planning.text import chain_text, remaining_text, stage_text

    parser = Parser("plan", __doc__, DESCRIPTION)
    parser.add_argument("--nodes", type=int, default=4, help="number of nodes (default: 4, as in ProRL)")
    parser.add_argument(
        "--gpus-per-node", type=int, default=8, help="GPUs of a node (default: 8, as in ProRL)"
    )
    _add_estimates(parser)
    given = parse_overrides(parser, arguments)
    chain, of_one_stage = asked_chain(given.config_name, given.overrides, CONF_DIR)
    cluster = Cluster(num_nodes=given.nodes, gpus_per_node=given.gpus_per_node)
    if given.scale:
        show(_scale())
        return 0
    if given.memory or given.time or given.tail:
        show(_estimates(given, chain[-1:] if of_one_stage else chain, cluster))
        return 0
    model = model_of(chain[0])
    check_chain(chain, cluster, model)
    lines = (stage_text if of_one_stage else chain_text)(chain, cluster, model)
    show([*lines, *remaining_text(missing_files(chain), model)])
    return 0


def _add_estimates(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--memory", action="store_true", help="estimate what a GPU holds, phase by phase")
    parser.add_argument(
        "--time", action="store_true", help="estimate the seconds of a step; list the layouts that fit"
    )
    parser.add_argument(
        "--tail", action="store_true", help="simulate how long engines wait for the longest responses"
    )
    parser.add_argument(
        "--scale", action="store_true", help="print only the tables of docs/scale.md, for any stage"
    )
    parser.add_argument(
        "--gpu", default="h100", help="type of GPU: h100, h200 or a100 (default: h100, as in ProRL)"
    )
    parser.add_argument(
        "--model",
        default="",
        metavar="NAME",
        help="a known model or a folder (default: model.path, or ProRL's model)",
    )
    parser.add_argument(
        "--response-share", type=float, default=None, help="mean over longest response length (default: 0.5)"
    )
    parser.add_argument(
        "--informative-share",
        type=float,
        default=None,
        help="informative share of sampled prompts (default: 0.6)",
    )


def _estimates(given: argparse.Namespace, chain: Chain, cluster: Cluster) -> list[str]:
    """Returns what --memory, --time and --tail show. Raises ConfigError for a stage that does not fit."""
    from nemo_prorl.planning import scale_text as text
    from nemo_prorl.planning.fit import model_of
    from nemo_prorl.planning.hardware import gpu_of
    from nemo_prorl.planning.layouts import fitting_layouts, plan_of
    from nemo_prorl.planning.shapes import PAPER_MODEL, shape_of
    from nemo_prorl.planning.step_time import tail_of
    from nemo_prorl.planning.workload import Workload

    gpu = gpu_of(given.gpu)
    model = shape_of(given.model) if given.model else model_of(chain[0]) or shape_of(PAPER_MODEL)
    shares = {"response_share": given.response_share, "informative_share": given.informative_share}
    workload = Workload(**{name: share for name, share in shares.items() if share is not None})
    plans = [plan_of(model, config, cluster, gpu, workload) for config in chain]
    lines = [f"{model.num_parameters / 1e9:.2f} B parameters on {cluster}, {gpu.name.upper()}"]
    if given.memory:
        lines += ["", *text.memory_text(plans, gpu)]
    if given.time:
        lines += ["", *text.time_text(plans, cluster)]
        if len(plans) == 1:
            lines += text.layouts_text(fitting_layouts(model, chain[0], cluster, gpu, workload))
    if given.tail:
        results = [
            (plan.config.stage.name, tail_of(model, plan.config, cluster, gpu, workload, plan.memory))
            for plan in plans
        ]
        lines += ["", *text.tail_text(results)]
    return lines


def _scale() -> list[str]:
    from nemo_prorl.planning.scale import comparisons, scale_plans
    from nemo_prorl.planning.scale_text import comparisons_text, scale_text

    return [*scale_text(scale_plans()), "", *comparisons_text(comparisons())]
