"""Comparisons as pictures: pass@k curves, distributions of pass@1, and the gain against the start."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np

from nemo_prorl.evaluation.comparison import NUM_BINS, Comparison

mpl.use("Agg")

COLUMNS = 3
COLOURS = ("#7a7a7a", "#e0a030", "#3a7ca5", "#b0413e", "#5b8c5a", "#6c4f9c")
VERDICT_COLOURS = {"diminish": "#b0413e", "plateau": "#e0a030", "sustained": "#5b8c5a", "gain": "#5b8c5a"}


def draw(comparisons: Sequence[Comparison], names: Sequence[str], folder: Path) -> list[Path]:
    """Writes three PNGs."""
    folder.mkdir(parents=True, exist_ok=True)
    curves, shift, gain = (folder / f"{name}.png" for name in ("pass_at_k", "pass_at_1_shift", "gain"))
    _grid(comparisons, curves, "pass@k; dotted: the bound of ProRL eq. 5", lambda a, c: _curves(a, c, names))
    _grid(comparisons, shift, "prompts by their pass@1", lambda a, c: _histogram(a, c, names))
    _gain(comparisons, gain)
    return [curves, shift, gain]


def _grid(
    comparisons: Sequence[Comparison], path: Path, title: str, draw_one: Callable[[Any, Comparison], None]
) -> None:
    columns = min(COLUMNS, len(comparisons))
    rows = -(-len(comparisons) // columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(4.4 * columns, 3.2 * rows + 0.7), constrained_layout=True, squeeze=False
    )
    for axis in axes.flat[len(comparisons) :]:
        axis.remove()
    for axis, comparison in zip(axes.flat, comparisons, strict=False):
        draw_one(axis, comparison)
        _tidy(axis)
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=min(4, len(labels)), frameon=False, fontsize=9
    )
    figure.suptitle(title, fontsize=12)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _curves(axis: Any, comparison: Comparison, names: Sequence[str]) -> None:
    ks = list(comparison.pass_at_k)
    for place, name in enumerate(names):
        colour = COLOURS[place % len(COLOURS)]
        axis.plot(
            ks, [comparison.pass_at_k[k][place] for k in ks], "-o", color=colour, label=name, markersize=3
        )
        bound = [comparison.bound[k][place] for k in comparison.bound]
        axis.plot(list(comparison.bound), bound, ":", color=colour, linewidth=1)
    axis.set_xscale("log", base=2)
    axis.set_xticks(ks, [str(k) for k in ks])
    axis.set_ylim(-0.02, 1.02)
    axis.set_xlabel("k", fontsize=9)
    sure = "" if comparison.certain else "?"
    axis.set_title(f"{comparison.benchmark}: {comparison.verdict}{sure}", fontsize=10)


def _histogram(axis: Any, comparison: Comparison, names: Sequence[str]) -> None:
    width = 1 / NUM_BINS / (len(names) + 1)
    lefts = np.arange(NUM_BINS) / NUM_BINS + width / 2
    for place, name in enumerate(names):
        shares = np.asarray(comparison.histogram[place]) / comparison.num_prompts
        colour = COLOURS[place % len(COLOURS)]
        axis.bar(lefts + place * width, shares, width, align="edge", color=colour, label=name)
    axis.set_xlim(0, 1)
    axis.set_xlabel("pass@1 of a prompt", fontsize=9)
    axis.set_ylabel("share of prompts", fontsize=9)
    axis.set_title(f"{comparison.benchmark} ({comparison.num_prompts} prompts)", fontsize=10)


def _gain(comparisons: Sequence[Comparison], path: Path) -> None:
    figure, axis = plt.subplots(figsize=(7, 4.6), constrained_layout=True)
    for one in comparisons:
        start, colour = one.pass_at_k[one.k][0], VERDICT_COLOURS[one.verdict]
        spread = [[one.gain.value - one.gain.low], [one.gain.high - one.gain.value]]
        axis.errorbar(start, one.gain.value, yerr=spread, fmt="o", color=colour, capsize=2, markersize=5)
        axis.annotate(one.benchmark, (start, one.gain.value), (5, 4), textcoords="offset points", fontsize=8)
    axis.axhline(0, color="#7a7a7a", linewidth=0.8)
    axis.set_xlim(-0.03, 1.1)
    axis.set_xlabel("pass@k of the start, at the largest common k", fontsize=9)
    axis.set_ylabel("gain of the last checkpoint (95 % interval)", fontsize=9)
    axis.set_title("the weaker the start, the stronger the gain?", fontsize=11)
    _tidy(axis)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _tidy(axis: Any) -> None:
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(labelsize=8)
