"""Formats a plan: tables of 80 columns, and sentences that are folded where they are printed. Every function returns
lines, except `large`."""

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
    between_checkpoints_s,
    estimate,
)
from nemo_prorl.cluster.plan.fit import Cluster
from nemo_prorl.config import ControllerAction, ControllerConfig, ControllerMode, RunConfig, StartFrom
from nemo_prorl.engines.megatron.architecture import Architecture

COSTS = ("stage", "response", "n", "steps", "tokens", "GPU h", "days", "may end early on")
WIDTH = 80


def chain_text(chain: Chain, cluster: Cluster, model: Architecture | None) -> list[str]:
    """Every stage: its cost, and its differences from its parent."""
    lines = [*_heading(chain, cluster), *_cost_table(chain, chain, cluster, model)]
    lines += ["", f"{chain[0].stage.name}: {_beginning(chain[0])}"]
    for parent, config in pairwise(chain):
        lines += [f"{config.stage.name}: {_beginning(config)}", *_changes(parent, config)]
    return [*lines, "", *_explanation(model), *_crash(chain, cluster, model)]


def stage_text(chain: Chain, cluster: Cluster, model: Architecture | None) -> list[str]:
    """The last stage of the chain: its cost, what it inherits, what it changes, and what it keeps."""
    config, parent = chain[-1], chain[-2] if len(chain) > 1 else None
    lines = [*_heading(chain, cluster), *_cost_table(chain[-1:], chain, cluster, model), ""]
    own = set(differences(RunConfig(), config))
    if parent is None:
        lines += [f"{config.stage.name}: {_beginning(config)}", "", "Other than the default"]
    else:
        name = parent.stage.name
        lines += [f"Inherited from {name}", *table(_inheritance(config), "ll")]
        lines += ["", f"Other than in {name}", *_changes(parent, config)]
        lines += ["", f"As in {name}, and other than the default"]
        own -= differences(parent, config).keys()
    lines += table([(key, value) for key, value in flattened(config).items() if key in own], "ll")
    return [*lines, "", *_explanation(model), *_crash(chain[-1:], cluster, model)]


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


def _heading(chain: Chain, cluster: Cluster) -> list[str]:
    names = " -> ".join(config.stage.name for config in chain)
    return [names, f"on {cluster}, in {chain[-1].exp_manager.explicit_log_dir}", ""]


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
    return table(rows, "lrrrrrrl")


def _beginning(config: RunConfig) -> str:
    stage = config.stage
    if not stage.parent:
        return f"begins with {config.model.path or 'model.path'}."
    parts = ("reference", "optimizer", "data")
    reset = " and ".join(name for name in parts if getattr(stage, f"reset_{name}"))
    kept = " and ".join(name for name in parts if not getattr(stage, f"reset_{name}"))
    said = f"{stage.parent}'s {stage.start_from.name} weights"
    return said + (f", {reset} reset" if reset else "") + (f", {kept} going on" if kept else "") + "."


def _inheritance(config: RunConfig) -> list[tuple[str, str]]:
    stage, parent = config.stage, config.stage.parent
    is_best = stage.start_from is StartFrom.best
    best = f"{parent}'s best checkpoint by {config.exp_manager.checkpoint_callback_params.monitor}"
    of_parent = "that checkpoint's" if is_best else f"{parent}'s"
    return [
        ("weights", best if is_best else f"{parent}'s last"),
        ("reference", "the same weights: KL begins at 0" if stage.reset_reference else of_parent),
        ("optimizer", "none, its moments are cleared" if stage.reset_optimizer else f"{of_parent} moments"),
        ("learning rate", "its schedule goes on"),
        (
            "data",
            "none, every file begins again"
            if stage.reset_data
            else f"goes on where {parent} stopped; new files begin at their first row",
        ),
    ]


def _changes(parent: RunConfig, config: RunConfig) -> list[str]:
    rows = [(key, old, "->", new) for key, (old, new) in differences(parent, config).items()]
    return table(rows, "lrll") or ["  nothing else"]


def _explanation(model: Architecture | None) -> list[str]:
    size = "" if model is None else f", scaled to {large(model.num_parameters)} parameters"
    said = (
        f"GPU h: on H100, at {TOKENS_PER_GPU_S:.0f} response tokens per GPU and second over everything, the speed at "
        f"which the paper's eight runs take its {PAPER_GPU_HOURS:,} hours{size}. It is one published number and a "
        "proportion: experiments/estimates.md says what the papers leave open."
    )
    tokens = f"tokens: of responses trained on, whose mean is {RESPONSE_SHARE:.0%} of the longest possible."
    return [tokens, said, "steps: at most. A stage ends earlier when its controller decides so."]


def _crash(chain: Chain, cluster: Cluster, model: Architecture | None) -> list[str]:
    costs = [(config, estimate(config, model)) for config in chain]
    steps = [(config, 3600 * cost.gpu_hours / cost.num_steps / cluster.num_gpus) for config, cost in costs]
    return crash_text(steps, cluster)


def crash_text(steps: Sequence[tuple[RunConfig, float]], cluster: Cluster) -> list[str]:
    """Returns lines on the cost of a crash in the stage where it is highest. `steps`: (stage, seconds per step)."""
    costs = [(between_checkpoints_s(config, step_s), config) for config, step_s in steps]
    seconds, config = max(costs, key=lambda cost: cost[0])
    params, hours = config.exp_manager.checkpoint_callback_params, seconds * cluster.num_gpus / 3600
    rules = [
        f"{value:g} {unit}"
        for value, unit in ((params.every_n_train_steps, "steps"), (params.every_minutes, "minutes"))
        if value
    ]
    rule = f"a checkpoint every {' or '.join(rules)}" if rules else "no checkpoint before the stage's end"
    return [
        f"A crash loses {rounded(hours / 2)} GPU h on average and {rounded(hours)} at most ({seconds / 60:,.0f} min; "
        f"{rule}), and the time of the next start."
    ]


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


def large(number: float) -> str:
    """Formats a number with three digits and a unit. Example: 2.90 B"""
    for unit, size in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:#.3g}".rstrip(".") + f" {unit}"
    return f"{number:.0f}"


def table(rows: Sequence[Sequence[str]], alignment: str) -> list[str]:
    """An indented table with two blanks between columns; `alignment` has one letter, l or r, per column.

    The last column is wrapped at WIDTH, and starts on a new line if one of its words is too long.
    """
    if not rows:
        return []
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    start = 2 + sum(widths[:-1]) + 2 * len(widths[:-1])
    lines = []
    for row in rows:
        cells = [
            cell.rjust(size) if side == "r" else cell.ljust(size)
            for cell, size, side in zip(row, widths, alignment, strict=True)
        ]
        has_room = all(len(word) <= WIDTH - start for word in row[-1].split())
        indent = start if has_room else 6
        folded = wrap(row[-1], WIDTH - indent, break_long_words=False, break_on_hyphens=False)
        beside = [folded[0].rjust(widths[-1] if alignment[-1] == "r" else 0)] if has_room and folded else []
        lines.append(("  " + "  ".join([*cells[:-1], *beside])).rstrip())
        lines += [" " * indent + part for part in folded[len(beside) :]]
    return lines
