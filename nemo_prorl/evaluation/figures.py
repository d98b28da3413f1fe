"""Comparisons as pictures: pass@k curves, distributions of pass@1, the gain against the start (ProRL, figures 3, 4 and
7), and pass@k by size (figure 6)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import wrap
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np

from nemo_prorl.evaluation.comparison import BenchmarkComparison, common_k, samples_each
from nemo_prorl.evaluation.results import NUM_BINS
from nemo_prorl.evaluation.tables import MARK

mpl.use("Agg")

COLUMNS, MANY_COLUMNS = 3, 6
FEW = 12
"""With more panels than this, the figure has MANY_COLUMNS columns."""
MAX_LABELS = 25
"""With more points than this, only the outermost are labelled."""
NUM_OUTERMOST = 3
CHARACTERS_PER_INCH = 14
"""Width of the notes below a figure."""
COLOURS = ("#7a7a7a", "#e0a030", "#3a7ca5", "#b0413e", "#5b8c5a", "#6c4f9c")
VERDICT_COLOURS = {"diminish": "#b0413e", "plateau": "#e0a030", "sustained": "#5b8c5a", "gain": "#3a7ca5"}


def draw(
    comparisons: Sequence[BenchmarkComparison],
    names: Sequence[str],
    folder: Path,
    remarks: Sequence[str] = (),
) -> list[Path]:
    """Writes pass_at_k.png, pass_at_1_shift.png and gain.png into the folder, which must exist. remarks: notes below
    each."""
    curves, shift, gain = (folder / f"{name}.png" for name in ("pass_at_k", "pass_at_1_shift", "gain"))
    notes = [*remarks, *(f"{MARK} {one.name}: {one.shortfall}" for one in comparisons if one.shortfall)]
    with _grid(comparisons, curves, "pass@k; dotted: the bound of ProRL eq. 5", notes) as panels:
        for axis, one in panels:
            _curves(axis, one, names)
    with _grid(comparisons, shift, "prompts by their pass@1", notes) as panels:
        for axis, one in panels:
            _histogram(axis, one, names)
    # Gains with their intervals over the start's pass@k, coloured by class.
    ordered = sorted(comparisons, key=lambda one: one.gain.value)
    is_crowded = len(ordered) > MAX_LABELS
    labelled = {one.name for one in (*ordered[:NUM_OUTERMOST], *ordered[-NUM_OUTERMOST:])}
    whiskers = {"elinewidth": 0.4, "capsize": 0} if is_crowded else {"elinewidth": 0.8, "capsize": 2}
    with _chart(gain, "the weaker the start, the stronger the gain?", notes) as axis:
        for one in ordered:
            x, y, colour = one.pass_at_k[one.k][0], one.gain.value, VERDICT_COLOURS[one.verdict]
            spread = [[y - one.gain.low], [one.gain.high - y]]
            axis.errorbar(x, y, yerr=spread, fmt="o", color=colour, markersize=5, **whiskers)
            if not is_crowded or one.name in labelled:
                axis.annotate(_label(one), (x, y), (5, 4), textcoords="offset points", fontsize=8)
        for verdict in dict.fromkeys(one.verdict for one in ordered):
            axis.plot([], [], "o", color=VERDICT_COLOURS[verdict], label=verdict)
        axis.axhline(0, color="#7a7a7a", linewidth=0.8)
        axis.set_ylabel(f"gain in pass@k of the last checkpoint, {_ks(comparisons)}", fontsize=9)
        axis.legend(frameon=False, fontsize=8)
        axis.set_xlim(-0.03, 1.1)
        axis.set_xlabel(f"pass@k of the start, {_ks(comparisons)}", fontsize=9)
    return [curves, shift, gain]


def draw_sizes(
    series: str,
    unit: str,
    sizes: Sequence[tuple[int, BenchmarkComparison]],
    names: Sequence[str],
    path: Path,
    remarks: Sequence[str] = (),
) -> None:
    """Draws pass@1 (solid) and pass@k (dashed) by problem size, one colour per checkpoint, for a k that all sizes
    have. remarks: notes below."""
    xs, of_sizes = zip(*sizes, strict=True)
    k = common_k(of_sizes)
    with _chart(path, f"{series}: pass@1 and pass@{k} by size", remarks) as axis:
        for place, name in enumerate(names):
            look = {"color": COLOURS[place % len(COLOURS)], "markersize": 4}
            for of, style in ((1, "-o"), (k, "--s")):
                values = [one.pass_at_k[of][place] for one in of_sizes]
                axis.plot(xs, values, style, label=f"{name}, pass@{of}", **look)
        axis.set_xticks(xs)
        axis.set_ylim(-0.02, 1.02)
        axis.set_xlabel(unit, fontsize=9)
        axis.set_ylabel(f"share of problems ({samples_each(of_sizes)})", fontsize=9)
        axis.legend(frameon=False, fontsize=8)


@contextmanager
def _chart(path: Path, title: str, notes: Sequence[str]) -> Iterator[Any]:
    """Yields axes to draw on, and writes the file."""
    with _figure(path, 1, 1, (7, 4.6), notes) as (figure, axes):
        figure.suptitle(title, fontsize=11)
        yield axes[0, 0]


@contextmanager
def _grid(
    comparisons: Sequence[BenchmarkComparison], path: Path, title: str, notes: Sequence[str]
) -> Iterator[list[tuple[Any, BenchmarkComparison]]]:
    """Yields the axes for each comparison, and writes the file."""
    columns = min(COLUMNS if len(comparisons) <= FEW else MANY_COLUMNS, len(comparisons))
    rows = -(-len(comparisons) // columns)
    with _figure(path, rows, columns, (4.4 * columns, 3.2 * rows + 0.7), notes) as (figure, axes):
        for axis in axes.flat[len(comparisons) :]:
            axis.remove()
        yield list(zip(axes.flat, comparisons, strict=False))
        handles, labels = axes.flat[0].get_legend_handles_labels()
        look = {"ncols": min(4, len(labels)), "frameon": False, "fontsize": 9}
        figure.legend(handles, labels, loc="outside upper right", **look)
        figure.suptitle(title, fontsize=12, x=0.01, ha="left")


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
    for place, name in enumerate(names):
        colour = COLOURS[place % len(COLOURS)]
        axis.plot(
            ks, [comparison.pass_at_k[k][place] for k in ks], "-o", color=colour, label=name, markersize=3
        )
        bound = [comparison.bound[k][place] for k in comparison.bound]
        axis.plot(list(comparison.bound), bound, ":", color=colour, linewidth=1)
    axis.axvline(comparison.k, color="#b8b8b8", linewidth=0.8, zorder=0)
    axis.set_xscale("log", base=2)
    axis.set_xticks(ks, [str(k) for k in ks])
    axis.set_ylim(-0.02, 1.02)
    axis.set_xlabel(f"k (of {comparison.num_samples} samples; verdict at {comparison.k})", fontsize=9)
    sure = "" if comparison.certain else "?"
    axis.set_title(f"{_label(comparison)}: {comparison.verdict}{sure}", fontsize=10)


def _histogram(axis: Any, comparison: BenchmarkComparison, names: Sequence[str]) -> None:
    width = 1 / NUM_BINS / (len(names) + 1)
    lefts = np.arange(NUM_BINS) / NUM_BINS + width / 2
    for place, name in enumerate(names):
        shares = np.asarray(comparison.histogram[place]) / comparison.num_prompts
        colour = COLOURS[place % len(COLOURS)]
        axis.bar(lefts + place * width, shares, width, align="edge", color=colour, label=name)
    axis.set_xlim(0, 1)
    axis.set_xlabel("pass@1 of a prompt", fontsize=9)
    axis.set_ylabel("share of prompts", fontsize=9)
    axis.set_title(f"{_label(comparison)} ({comparison.num_prompts} prompts)", fontsize=10)


def _ks(comparisons: Sequence[BenchmarkComparison]) -> str:
    found = sorted({(one.k, one.num_samples) for one in comparisons})
    return (
        f"k = {', '.join(f'{k} of {n}' for k, n in found)}" if len(found) <= 3 else "k = half of the samples"
    )


def _label(one: BenchmarkComparison) -> str:
    """Returns a puzzle's own name, without benchmark and category."""
    name = one.name.rpartition("/")[2] if one.name.count("/") > 1 else one.name
    return name + (MARK if one.shortfall else "")
