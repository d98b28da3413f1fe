"""Comparisons as pictures: pass@k curves, and the gain against the start (ProRL, figures 4 and 3)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import ceil, sqrt
from pathlib import Path
from textwrap import wrap
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt

from nemo_prorl.evaluation.comparison import BenchmarkComparison
from nemo_prorl.evaluation.tables import MARK

mpl.use("Agg")

MAX_COLUMNS = 6
MAX_LABELS, NUM_OUTERMOST = 25, 3
"""With more points than the first, only so many at either end are labelled."""
CHARACTERS_PER_INCH = 14
"""Width of the notes below a figure."""
COLOURS = ("#7a7a7a", "#e0a030", "#3a7ca5", "#b0413e", "#5b8c5a", "#6c4f9c")
VERDICT_COLOURS = {"diminish": "#b0413e", "plateau": "#e0a030", "sustained": "#5b8c5a", "gain": "#3a7ca5"}


def draw(
    comparisons: Sequence[BenchmarkComparison], names: Sequence[str], folder: Path, remarks: Sequence[str]
) -> list[Path]:
    """Writes pass_at_k.png and gain.png into the folder, which must exist. remarks: notes below each."""
    curves, gain = folder / "pass_at_k.png", folder / "gain.png"
    notes = [*remarks, *(f"{MARK} {one.name}: {one.shortfall}" for one in comparisons if one.shortfall)]
    columns = min(MAX_COLUMNS, ceil(sqrt(len(comparisons))))
    rows = ceil(len(comparisons) / columns)
    with _figure(curves, rows, columns, (4.4 * columns, 3.2 * rows + 0.7), notes) as (figure, axes):
        for axis in axes.flat[len(comparisons) :]:
            axis.remove()
        for axis, one in zip(axes.flat, comparisons, strict=False):
            _curves(axis, one, names)
        look = {"ncols": min(4, len(names)), "frameon": False, "fontsize": 9}
        figure.legend(axes.flat[0].get_lines()[: len(names)], names, loc="outside upper right", **look)
        figure.suptitle("pass@k; dotted: the bound of ProRL eq. 5", fontsize=12, x=0.01, ha="left")
    with _figure(gain, 1, 1, (7, 4.6), notes) as (figure, axes):
        figure.suptitle("the weaker the start, the stronger the gain?", fontsize=11)
        _gains(axes[0, 0], sorted(comparisons, key=lambda one: one.gain.value))
    return [curves, gain]


@contextmanager
def _figure(
    path: Path, rows: int, columns: int, size: tuple[float, float], notes: Sequence[str]
) -> Iterator[tuple[Any, Any]]:
    """Yields (figure, axes); afterwards writes the file, with the notes below. size: width and height without notes, in
    inches."""
    lines = [line for text in notes for line in wrap(text, int(CHARACTERS_PER_INCH * size[0]))]
    size = (size[0], size[1] + 0.2 * len(lines))
    figure, axes = plt.subplots(rows, columns, figsize=size, constrained_layout=True, squeeze=False)
    yield figure, axes
    for axis in figure.axes:
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=8)
    if lines:
        figure.supxlabel("\n".join(lines), fontsize=8, ha="left", x=0.01)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _curves(axis: Any, comparison: BenchmarkComparison, names: Sequence[str]) -> None:
    ks = list(comparison.pass_at_k)
    for place in range(len(names)):
        values = [of_k[place] for of_k in comparison.pass_at_k.values()]
        axis.plot(ks, values, "-o", color=COLOURS[place % len(COLOURS)], markersize=3)
    for place in range(len(names)):
        bound = [of_k[place] for of_k in comparison.bound.values()]
        axis.plot(list(comparison.bound), bound, ":", color=COLOURS[place % len(COLOURS)], linewidth=1)
    axis.axvline(comparison.k, color="#b8b8b8", linewidth=0.8, zorder=0)
    axis.set_xscale("log", base=2)
    axis.set_xticks(ks, [str(k) for k in ks])
    axis.set_ylim(-0.02, 1.02)
    axis.set_xlabel(f"k (of {comparison.num_samples} samples; verdict at {comparison.k})", fontsize=9)
    sure = "" if comparison.certain else "?"
    axis.set_title(f"{_label(comparison)}: {comparison.verdict}{sure}", fontsize=10)


def _gains(axis: Any, ordered: Sequence[BenchmarkComparison]) -> None:
    """Draws gains, of which the least comes first, with their intervals over the start's pass@k, coloured by class."""
    labelled = (
        ordered if len(ordered) <= MAX_LABELS else [*ordered[:NUM_OUTERMOST], *ordered[-NUM_OUTERMOST:]]
    )
    for one in ordered:
        x, y, colour = one.pass_at_k[one.k][0], one.gain.value, VERDICT_COLOURS[one.verdict]
        spread = [[y - one.gain.low], [one.gain.high - y]]
        axis.errorbar(x, y, yerr=spread, fmt="o", color=colour, markersize=5, elinewidth=0.6)
        if one in labelled:
            axis.annotate(_label(one), (x, y), (5, 4), textcoords="offset points", fontsize=8)
    for verdict in dict.fromkeys(one.verdict for one in ordered):
        axis.plot([], [], "o", color=VERDICT_COLOURS[verdict], label=verdict)
    axis.axhline(0, color="#7a7a7a", linewidth=0.8)
    axis.legend(frameon=False, fontsize=8)
    axis.set_xlim(-0.03, 1.1)
    axis.set_xlabel("pass@k of the start, k = half of the samples", fontsize=9)
    axis.set_ylabel("gain in pass@k of the last checkpoint", fontsize=9)


def _label(one: BenchmarkComparison) -> str:
    """Returns a puzzle's own name, without benchmark and category."""
    name = one.name.rpartition("/")[2] if one.name.count("/") > 1 else one.name
    return name + (MARK if one.shortfall else "")
