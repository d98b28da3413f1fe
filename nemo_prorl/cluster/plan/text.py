"""Formats a plan: tables of 80 columns, and sentences that are folded where they are printed. Functions return
lines where nothing else is said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import reduce
from itertools import pairwise
from operator import add
from textwrap import wrap

from nemo_prorl.cluster.plan.chain import Chain, differences, flattened
from nemo_prorl.cluster.plan.estimate import (
    PAPER_GPU_HOURS,
    RESPONSE_SHARE,
    TOKENS_PER_GPU_S,
    Cost,
    estimate,
)
from nemo_prorl.cluster.plan.fit import Cluster
from nemo_prorl.config import ControllerAction, ControllerConfig, ControllerMode, RunConfig
from nemo_prorl.engines.megatron.architecture import Architecture
from nemo_prorl.run_folder import formats
from nemo_prorl.run_folder.formats import large

COSTS = ("stage", "response", "n", "steps", "tokens", "GPU h", "days", "may end early on")
WIDTH = 80


def chain_text(
    chain: Chain, cluster: Cluster, model: Architecture | None, *, of_one_stage: bool = False
) -> list[str]:
    """Every stage: its cost, and its differences from its parent. of_one_stage: only the last one, and what it keeps of
    its parent."""
    shown = chain[-1:] if of_one_stage else chain
    parents = {config.stage.name: parent for parent, config in pairwise(chain)}
    names = " -> ".join(config.stage.name for config in chain)
    lines = [names, f"on {cluster}, in {chain[-1].exp_manager.explicit_log_dir}", ""]
    lines += [*_cost_table(shown, chain, cluster, model), ""]
    for config in shown:
        lines.append(f"{config.stage.name}: {_beginning(config)}")
        if parent := parents.get(config.stage.name):
            rows = [(key, old, "->", new) for key, (old, new) in differences(parent, config).items()]
            lines += table(rows, "<><<") or ["  nothing else"]
    if of_one_stage:
        config, parent = chain[-1], parents.get(chain[-1].stage.name)
        changed = differences(parent, config) if parent else {}
        own = differences(RunConfig(), config).keys() - changed.keys()
        lines += ["", f"{f'As in {parent.stage.name}, and other' if parent else 'Other'} than the default"]
        lines += table([(key, value) for key, value in flattened(config).items() if key in own], "<<")
    return [*lines, "", *_explanation(model)]


def remaining_text(missing: Mapping[str, str], model: Architecture | None) -> list[str]:
    """Returns lines on what could not be checked and on the files that have to be made before the first `train`."""
    lines = []
    if model is None:
        lines += [
            "",
            "Not checked, because the model is not here: whether its layers, heads and context fit.",
        ]
    if missing:
        lines += ["", "Still to do: files that are not here, and what makes them"]
    for maker in dict.fromkeys(missing.values()):
        lines += [f"  {path}" for path, its_maker in missing.items() if its_maker == maker]
        # A command goes on in further lines as a shell reads it.
        parts = wrap(maker, WIDTH - 12, break_long_words=False, break_on_hyphens=False)
        lines.append("      " + " \\\n          ".join(parts))
    return lines


def _cost_table(shown: Chain, chain: Chain, cluster: Cluster, model: Architecture | None) -> list[str]:
    """One row per stage, and the sum of the whole chain."""

    def numbers(cost: Cost) -> tuple[str, ...]:
        days = cost.gpu_hours / cluster.num_gpus / 24
        return (f"{cost.num_steps:,}", large(cost.response_tokens), rounded(cost.gpu_hours), f"{days:.1f}")

    rows: list[tuple[str, ...]] = [COSTS]
    for config in shown:
        sampling = (f"{config.sampler.max_response_tokens:,}", str(config.sampler.num_rollouts))
        signals = [
            signal.name
            for signal in fields(ControllerConfig)
            if config.controller.mode is ControllerMode.automatic
            and getattr(config.controller, signal.name) is ControllerAction.end_stage
        ]
        ending = ", ".join(signals) or "-"
        rows.append((config.stage.name, *sampling, *numbers(estimate(config, model)), ending))
    if len(chain) > 1:
        total = reduce(add, (estimate(config, model) for config in chain))
        rows.append(("total" if shown == chain else "so far", "", "", *numbers(total), ""))
    return table(rows, "<>>>>>><")


def _beginning(config: RunConfig) -> str:
    stage = config.stage
    if not stage.parent:
        return f"begins with {config.model.path or 'model.path'}."
    parts = ("reference", "optimizer", "data")
    reset = " and ".join(name for name in parts if getattr(stage, f"reset_{name}"))
    kept = " and ".join(name for name in parts if not getattr(stage, f"reset_{name}"))
    said = f"{stage.parent}'s {stage.start_from.name} weights"
    return said + (f", {reset} reset" if reset else "") + (f", {kept} going on" if kept else "") + "."


def _explanation(model: Architecture | None) -> list[str]:
    size = "" if model is None else f", scaled to {large(model.num_parameters)} parameters"
    said = (
        f"GPU h: on H100, at {TOKENS_PER_GPU_S:.0f} response tokens per GPU and second over everything, the speed at "
        f"which the paper's eight runs take its {PAPER_GPU_HOURS:,} hours{size}. It is one published number and a "
        "proportion: experiments/estimates.md says what the papers leave open."
    )
    tokens = f"tokens: of responses trained on, whose mean is {RESPONSE_SHARE:.0%} of the longest possible."
    return [tokens, said, "steps: at most. A stage ends earlier when its controller decides so."]


def hours_text(of_papers: float, of_steps: tuple[float, float]) -> list[str]:
    """Returns a sentence on the GPU hours at the speed of the papers' total and those of the steps alone, and one on
    which of them to ask for."""
    asked = rounded(of_papers)
    said = (
        f"GPU hours: {asked} on H100 at the speed of the papers' chain, whose {PAPER_GPU_HOURS:,} include "
        f"validation, checkpoints and restarts; {range_text(of_steps)} for the steps alone, a floor by the formulas of "
        "plan --time, which were measured on one GPU only."
    )
    if of_papers >= 1:
        said += f" Ask for {asked} in an allocation request, because only that speed has been reached."
    return [said]


def range_text(numbers: tuple[float, float]) -> str:
    """Formats a range. Example: 1,930-3,570"""
    return "-".join(dict.fromkeys(map(rounded, numbers)))


def rounded(number: float) -> str:
    """Formats hours or seconds. Examples: 2,286 and 4.2 and <0.1"""
    return f"{number:,.0f}" if number >= 10 else f"{number:.1f}" if number >= 0.05 else "<0.1"


def table(rows: Sequence[Sequence[str]], alignment: str) -> list[str]:
    """An indented table with two blanks between columns; `alignment` has < or > for each column.

    The last column is wrapped at WIDTH, and starts on a new line if one of its words is too long.
    """
    if not rows:
        return []
    beginnings = formats.table([row[:-1] for row in rows], alignment[:-1])
    start = 4 + max(map(len, beginnings))
    last = max(len(row[-1]) for row in rows)
    lines = []
    for row, beginning in zip(rows, beginnings, strict=True):
        has_room = all(len(word) <= WIDTH - start for word in row[-1].split())
        indent = start if has_room else 6
        folded = wrap(row[-1], WIDTH - indent, break_long_words=False, break_on_hyphens=False)
        beside = [folded[0].rjust(last if alignment[-1] == ">" else 0)] if has_room and folded else []
        lines.append("".join([f"  {beginning}".ljust(start), *beside]).rstrip())
        lines += [" " * indent + part for part in folded[len(beside) :]]
    return lines
