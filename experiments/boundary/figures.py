"""The benchmark's pictures, from its results."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np

from experiments.boundary import measure
from experiments.boundary.arms import ARMS
from experiments.boundary.results import METRICS, Run, Training
from nemo_prorl.demo.levels import SHOWN, by_level
from nemo_prorl.demo.solved import Counts
from nemo_prorl.demo.tasks import TASKS

mpl.use("Agg")

LOOKS = {
    **{name: (arm.title, arm.colour) for name, arm in ARMS.items()},
    "control": ("fine-tuned on its own correct samples", "#3f6fa3"),
}
"""Arm -> (title, colour)."""
Runs = Mapping[str, Mapping[int, Run]]
"""Arm -> seed -> run."""
GREY = "#8a8a8a"
UNITS = {"sum": "terms", "legs": "kinds of animals", "sort": "numbers", "reverse": "letters (never in RL)"}


def draw_boundary(start: Counts, runs: Runs, k: int, path: Path) -> None:
    """Draws pass@1 and pass@k by size, a column a task: the base and the end of every arm, the mean over seeds in a
    band from the lowest to the highest. Bars below mark the sizes of the warm start's wholes and of RL."""
    figure, rows = plt.subplots(
        2, len(SHOWN), figsize=(4 * len(SHOWN), 6.6), sharey="row", sharex="col", layout="constrained"
    )
    for at, axes in zip((1, k), rows, strict=True):
        for axis, task in zip(axes, SHOWN, strict=True):
            _line(axis, [start], task, at, GREY, "base policy")
            for name, of in runs.items():
                title, colour = LOOKS[name]
                _line(axis, [run.end for run in of.values()], task, at, colour, title)
            axis.set(ylim=(-0.03, 1.04))
            _plain(axis)
        axes[0].set_ylabel(f"pass@{at}, held out")
    for above, below, task in zip(*rows, SHOWN, strict=True):
        above.set_title(task)
        below.set(xlabel=UNITS[task], xticks=TASKS[task].measured, ylim=(-0.2, 1.04), yticks=[0, 0.2, 0.4, 0.6, 0.8, 1])
        _mark(below, TASKS[task].wholes, -0.08, "shown whole", 0.9)
        _mark(below, TASKS[task].trained, -0.15, "in RL", 0.5)
    figure.legend(*rows[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=6, frameon=False)
    _save(figure, path)


def _mark(axis: Any, sizes: Sequence[int], height: float, text: str, alpha: float) -> None:
    if sizes:
        ends = [min(sizes) - 0.3, max(sizes) + 0.3]
        axis.plot(ends, [height] * 2, color="#444444", linewidth=3, alpha=alpha, solid_capstyle="butt")
        axis.text(max(sizes) + 0.4, height, text, fontsize=9, va="center")


def _line(axis: Any, of: Sequence[Counts], task: str, k: int, colour: str, title: str) -> None:
    by_size = defaultdict[int, list[float]](list)
    for counts in of:
        for (name, size), problems in by_level(counts).items():
            if name == task:
                by_size[size].append(measure.at(problems, k))
    sizes = sorted(by_size)
    axis.plot(
        sizes,
        [statistics.fmean(by_size[size]) for size in sizes],
        "o-",
        color=colour,
        label=title,
        markersize=4,
    )
    low, high = ([of(by_size[size]) for size in sizes] for of in (min, max))
    axis.fill_between(sizes, low, high, color=colour, alpha=0.15, linewidth=0)


CHOSEN = (("sum", 3), ("sum", 5), ("sum", 7), ("legs", 3), ("sort", 5))
"""Levels whose pass@k is drawn over k."""


def draw_curves(start: Counts, checkpoints: Sequence[Counts], path: Path) -> None:
    """Draws pass@k over k for the chosen levels at the start and at the given checkpoints of a run, with 95 % intervals
    over problems."""
    figure, axes = plt.subplots(
        1, len(CHOSEN), figsize=(3.6 * len(CHOSEN), 3.6), sharey=True, layout="constrained"
    )
    colours = plt.cm.autumn_r(np.linspace(0.3, 1, len(checkpoints)))
    for axis, level in zip(axes, CHOSEN, strict=True):
        for number, (counts, colour) in enumerate(zip([start, *checkpoints], [GREY, *colours], strict=True)):
            problems = by_level(counts)[level]
            most = min(n for each in (start, *checkpoints) for n, _ in by_level(each)[level].values())
            ks = [2**power for power in range(most.bit_length())]
            values = [measure.at(problems, k) for k in ks]
            intervals = [measure.interval([problems], k) for k in ks]
            axis.plot(
                ks,
                values,
                "o-",
                color=colour,
                markersize=3,
                label=f"end of stage {number}" if number else "base",
            )
            axis.fill_between(ks, *zip(*intervals, strict=True), color=colour, alpha=0.12, linewidth=0)
        axis.set(title="{} {}".format(*level), xlabel="k", ylim=(-0.03, 1.03))
        axis.set_xscale("log", base=2)
        axis.set_xticks(ks[::2], labels=map(str, ks[::2]))
        _plain(axis)
    axes[0].set_ylabel("pass@k, held out")
    axes[0].legend(fontsize=8, frameon=False)
    _save(figure, path)


def draw_rates(start: Counts, runs: Runs, path: Path) -> None:
    """Draws the distribution of problems' pass rates over the levels of RL, before and after (ProRL, figure 7)."""
    shown = [("base policy", GREY, [start])]
    shown += [(*LOOKS[name], [run.end for run in of.values()]) for name, of in runs.items()]
    figure, axes = plt.subplots(
        1, len(shown), figsize=(3.4 * len(shown), 3.2), sharey=True, layout="constrained"
    )
    for axis, (title, colour, of) in zip(axes, shown, strict=True):
        rates = [
            right / total
            for counts in of
            for (task, size), problems in by_level(counts).items()
            if size in TASKS[task].trained
            for total, right in problems.values()
        ]
        axis.hist(rates, bins=np.linspace(0, 1, 11), weights=[1 / len(rates)] * len(rates), color=colour)
        axis.set_xlabel("pass rate of a problem")
        axis.set_title(title, fontsize=9)
        _plain(axis)
    axes[0].set_ylabel("share of problems")
    _save(figure, path)


def draw_training(runs: Runs, path: Path) -> None:
    """Draws the training runs: the pass rate of each level's prompts in one run, then metrics of all; a dotted line
    where a run was reset."""
    trained = {arm: [one.training for one in of.values() if one.training] for arm, of in runs.items()}
    trained = {arm: of for arm, of in trained.items() if of}
    shown = next(iter(trained))
    figure, axes = plt.subplots(1, 1 + len(METRICS), figsize=(18, 4), layout="constrained")
    rates = trained[shown][0].level_rates
    for (level, line), colour in zip(
        rates.items(), plt.cm.viridis(np.linspace(0, 1, len(rates))), strict=True
    ):
        axes[0].plot(*zip(*line, strict=True), color=colour, linewidth=1.3, label=level.replace("/", " "))
    title = f"pass rate of the training prompts, {LOOKS[shown][0]}, seed {next(iter(runs[shown]))}"
    axes[0].set_title(title, fontsize=9)
    for arm, of in trained.items():
        for number, training in enumerate(of):
            _draw_run(axes[1:], training, LOOKS[arm][1], None if number else LOOKS[arm][0])
    for axis in axes:
        axis.set_xlabel("step")
        _plain(axis)
    axes[0].legend(fontsize=7, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    axes[-1].legend(fontsize=8, frameon=False, loc="upper right")
    _save(figure, path)


def _draw_run(axes: Iterable[Any], training: Training, colour: str, label: str | None) -> None:
    for axis, (metric, title) in zip(axes, METRICS.items(), strict=True):
        values = training.curves[metric]
        axis.plot(range(1, len(values) + 1), values, color=colour, linewidth=0.9, alpha=0.8, label=label)
        axis.set_title(title, fontsize=9)
        for step in training.resets:
            axis.axvline(step, color=colour, linestyle=":", linewidth=0.9, alpha=0.7)


def _plain(axis: Any) -> None:
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)


def _save(figure: Any, path: Path) -> None:
    figure.savefig(path, dpi=110)
    plt.close(figure)
