"""Shows what a chain of stages changes, its cost and the missing files; refuses a chain that cannot work."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from nemo_prorl.cluster.plan.chain import asked_chain, missing_files
from nemo_prorl.cluster.plan.estimate import estimate
from nemo_prorl.cluster.plan.fit import Cluster, check_handovers, check_stage, model_of
from nemo_prorl.cluster.plan.text import chain_text, hours_text, remaining_text
from nemo_prorl.cluster.scale import text
from nemo_prorl.cluster.scale.known import PAPER_MODEL, gpu_of, shape_of
from nemo_prorl.cluster.scale.layouts import fitting_layouts, plan_of
from nemo_prorl.cluster.scale.workload import Case
from nemo_prorl.commands.ending import show
from nemo_prorl.commands.parsing import CONF_DIR, Parser, parse_overrides
from nemo_prorl.config import ConfigError, SamplerConfig
from nemo_prorl.engines.megatron.architecture import Architecture
from nemo_prorl.run_folder.formats import large

DESCRIPTION = """\
stage=NAME  shows only this stage of conf/stage/, at the end of the chain that leads to it (default: the papers' \
eight runs, run1 to run8, or what another --config-name says)
KEY=VALUE   any option of `train --help`; it applies to every stage

--memory and --time are estimates; docs/sizing.md says how good they are, and nemo_prorl/cluster/scale/ has their \
formulas."""


def main(arguments: Sequence[str]) -> int:
    """Prints the plan of a chain or of one stage and returns exit code 0. Raises ConfigError for a chain that cannot
    work."""
    parser = Parser("plan", __doc__, DESCRIPTION)
    parser.option("--nodes", "N", "number of nodes (default: 4, as in ProRL)", type=int, default=4)
    parser.option("--gpus-per-node", "N", "GPUs per node (default: 8, as in ProRL)", type=int, default=8)
    _add_estimates(parser)
    given = parse_overrides(parser, arguments)
    chain, of_one_stage = asked_chain(given.config_name, given.overrides, CONF_DIR)
    for config in chain:
        _check_limits(config.sampler)
    cluster = Cluster(num_nodes=given.nodes, gpus_per_node=given.gpus_per_node)
    model = shape_of(given.shape) if given.shape else model_of(chain[0])
    asked = {"response_share": given.response_share, "informative_share": given.informative_share}
    shares = {name: share for name, share in asked.items() if share is not None}
    shape, gpu = model or shape_of(PAPER_MODEL), gpu_of(given.gpu)
    cases = [
        Case(model=shape, config=config, cluster=cluster, gpu=gpu, **shares)
        for config in (chain[-1:] if of_one_stage else chain)
    ]
    if given.memory or given.time:
        show(_estimates(given, cases, model))
        return 0
    for config in chain:
        check_stage(config, cluster, model)
    check_handovers(chain)
    lines = chain_text(chain, cluster, model, of_one_stage=of_one_stage)
    show([*lines, *_hours(cases, model), *remaining_text(missing_files(chain), model)])
    return 0


def _check_limits(config: SamplerConfig) -> None:
    """Raises ConfigError for a limit of the sampler that `train` and `evaluate` find, from data and model."""
    for name in ("max_prompt_tokens", "max_response_tokens"):
        if not getattr(config, name):
            raise ConfigError(
                f"sampler.{name}=0 stands for a number that train finds from data and model: write the number, which "
                "`train --check` prints, or --config-name RUN/resolved.yaml."
            )


def _add_estimates(parser: Parser) -> None:
    parser.flag("--memory", "estimates the memory of a GPU in each phase")
    parser.flag("--time", "estimates the seconds of a step, a floor, and lists the layouts that fit")
    parser.add_argument(
        "--gpu", default="h100", help="type of GPU: h100, h200 or a100 (default: h100, as in ProRL)"
    )
    parser.option(
        "--shape",
        "NAME",
        "plans for a well-known model that is not here, such as qwen2.5-7b (default: the model in model.path, "
        "or ProRL's if that is not here)",
        default="",
    )
    parser.add_argument(
        "--response-share", type=float, help="mean response length divided by the longest (default: 0.5)"
    )
    parser.add_argument(
        "--informative-share", type=float, help="informative share of sampled prompts (default: 0.6)"
    )


def _hours(cases: Sequence[Case], model: Architecture | None) -> list[str]:
    """Returns sentences on the GPU hours of these stages by both estimates."""
    of_papers = sum(estimate(case.config, model).gpu_hours for case in cases)
    try:
        plans = [plan_of(case) for case in cases]
    except ConfigError as error:  # --memory and --time refuse it; but their formulas may be too cautious
        return [f"The time of a step is not estimated (plan --time): {error}"]
    return hours_text(of_papers, text.step_hours(plans, cases[0].cluster))


def _estimates(given: argparse.Namespace, cases: Sequence[Case], model: Architecture | None) -> list[str]:
    """Returns the lines of --memory and --time. Raises ConfigError for a stage that does not fit."""
    plans = [plan_of(case) for case in cases]
    first = cases[0]
    lines = [f"{large(first.model.num_parameters)} parameters on {first.cluster}, {first.gpu.name.upper()}"]
    if given.memory:
        lines += ["", *text.memory_text(plans, first.gpu)]
    if given.time:
        lines += ["", *text.time_text(plans, first.cluster, first.model), *_hours(cases, model)]
        if len(plans) == 1:
            lines += text.layouts_text(fitting_layouts(first))
    return lines
