"""Shows what a chain of stages changes, its cost and the missing files; refuses a chain that cannot work."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

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
from nemo_prorl.config import ConfigError, RunConfig
from nemo_prorl.config.sections.checks import require
from nemo_prorl.engines.limits import with_learning_rate, with_limits_of
from nemo_prorl.engines.megatron.architecture import Architecture
from nemo_prorl.run_folder.formats import large

PAPER_CLUSTER, ONE_GPU = (4, 8), (1, 1)
"""Nodes and GPUs per node of ProRL (2507.12507 section 4.1), and of a configuration that is not the papers'."""
ASSUMED_PROMPT_TOKENS = 1024
"""The longest prompt where sampler.max_prompt_tokens=0 and the prompts cannot be read here."""

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
    default = "(default: {}, as in ProRL; 1 with another --config-name than train)"
    parser.option("--nodes", "N", f"number of nodes {default.format(4)}", type=int)
    parser.option("--gpus-per-node", "N", f"GPUs per node {default.format(8)}", type=int)
    _add_estimates(parser)
    given = parse_overrides(parser, arguments)
    chain, of_one_stage = asked_chain(given.config_name, given.overrides, CONF_DIR)
    model = shape_of(given.shape) if given.shape else model_of(chain[0])
    shape, gpu = model or shape_of(PAPER_MODEL), gpu_of(given.gpu)
    if given.gpu_gib is not None:
        require(given.gpu_gib > 0, "--gpu-gib", f"{given.gpu_gib:g}", "greater than 0")
        gpu = replace(gpu, memory_gib=given.gpu_gib)
    found = [_with_limits(with_learning_rate(shape, config)[0], shape) for config in chain]
    chain, notes = tuple(config for config, _ in found), dict.fromkeys(said for _, said in found if said)
    nodes, per_node = PAPER_CLUSTER if given.config_name == "train" else ONE_GPU
    cluster = Cluster(
        num_nodes=nodes if given.nodes is None else given.nodes,
        gpus_per_node=per_node if given.gpus_per_node is None else given.gpus_per_node,
    )
    asked = {"response_share": given.response_share, "informative_share": given.informative_share}
    shares = {name: share for name, share in asked.items() if share is not None}
    cases = [
        Case(model=shape, config=config, cluster=cluster, gpu=gpu, **shares)
        for config in (chain[-1:] if of_one_stage else chain)
    ]
    if given.memory or given.time or given.gpu_gib:
        show([*notes, *_estimates(given, cases, model)])
        return 0
    for config in chain:
        check_stage(config, cluster, model)
    check_handovers(chain)
    lines = chain_text(chain, cluster, model, of_one_stage=of_one_stage)
    show([*notes, *lines, *_hours(cases, model), *remaining_text(missing_files(chain), model)])
    return 0


def _with_limits(config: RunConfig, model: Architecture) -> tuple[RunConfig, str]:
    """Returns the configuration with the limits of prompts and responses that `train` would find, and a sentence on
    them. Raises ConfigError as `train` does."""
    files = [*config.data.train, *config.data.validation]
    if files and all(Path(file).exists() for file in files):
        from nemo_prorl.engines.tokenizer import has_tokenizer

        if has_tokenizer(Path(config.model.path)):
            return with_limits_of(model, config, _prompt_lengths(config))
    found, said = with_limits_of(model, config, [ASSUMED_PROMPT_TOKENS])
    assumed = " The prompts are assumed: their files or the model's tokenizer are not here."
    return found, said and said + assumed


def _prompt_lengths(config: RunConfig) -> Iterable[int]:
    """Yields the tokens of the prompts that `train` looks at for its limits."""
    from nemo_prorl.data.inputs import prompt_lengths, with_prompt_files
    from nemo_prorl.engines.tokenizer import load_tokenizer

    with TemporaryDirectory() as folder:
        converted, _ = with_prompt_files(config, into=Path(folder))
        for file in prompt_lengths(converted, load_tokenizer(config)):
            yield from file.lengths


def _add_estimates(parser: Parser) -> None:
    parser.flag("--memory", "estimates the memory of a GPU in each phase")
    parser.flag("--time", "estimates the seconds of a step, a floor, and lists the layouts that fit")
    parser.add_argument(
        "--gpu", default="h100", help="type of GPU: h100, h200 or a100 (default: h100, as in ProRL)"
    )
    parser.option(
        "--gpu-gib", "GIB", "its memory, if it is another type, such as 24; implies --memory", type=float
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
    speed = f"of {given.gpu_gib:g} GiB, as fast as " if given.gpu_gib else ""
    where = f"{first.cluster}, {speed}{first.gpu.name.upper()}"
    lines = [f"{large(first.model.num_parameters)} parameters on {where}"]
    if given.memory or given.gpu_gib:
        lines += ["", *text.memory_text(plans, first.gpu)]
    if given.time:
        lines += ["", *text.time_text(plans, first.cluster, first.model), *_hours(cases, model)]
        if len(plans) == 1:
            lines += text.layouts_text(fitting_layouts(first))
    return lines
