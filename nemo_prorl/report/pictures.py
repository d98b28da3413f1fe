"""Drawings as PNG, with matplotlib: for papers, slides and places without a browser."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.ticker import MaxNLocator

from nemo_prorl.report.drawings import MAX_MARKERS, NUM_HUES, NUM_SHADES, Drawing
from nemo_prorl.run_folder.storage import replacing_file

mpl.use("Agg")

STYLES = (Path(__file__).parent / "page" / "page.css").read_text(encoding="utf-8")
PALETTE = ("#1f2937", *re.findall(r"--line-\d+: (#\w+)", STYLES)[: NUM_HUES + NUM_SHADES])
"""The page's colours in light mode."""
RESET, STAGE = "#b4232f", "#9aa3af"
TITLE_LETTERS = 52
"""Most letters in a line of a chart's title."""
COLUMNS, CHART_INCHES, TITLE_INCHES = 3, (4.4, 3.0), 0.3


def picture(drawings: Sequence[Drawing], path: Path, *, title: str) -> None:
    """Draws all drawings into one PNG, written atomically."""
    columns = 2 if len(drawings) == 4 else min(COLUMNS, len(drawings))
    rows = -(-len(drawings) // columns)
    width, height = CHART_INCHES[0] * columns, CHART_INCHES[1] * rows + TITLE_INCHES
    # Fixed margins: matplotlib's layout engines would draw everything twice.
    margins = {"left": 0.7 / width, "right": 1 - 0.15 / width, "bottom": 0.55 / height}
    margins |= {"top": 1 - (TITLE_INCHES + 0.35) / height, "wspace": 0.22, "hspace": 0.4}
    figure, axes = plt.subplots(rows, columns, figsize=(width, height), squeeze=False, gridspec_kw=margins)
    for axis, drawing in zip(axes.flat, drawings, strict=False):
        _draw(axis, drawing)
    for axis in list(axes.flat)[len(drawings) :]:
        axis.set_visible(False)
    if any(drawing.resets for drawing in drawings):
        title += "   (dashed: reset)"
    figure.suptitle(title, fontsize=12, y=1 - 0.12 / height, va="top")
    with replacing_file(path) as aside:
        figure.savefig(aside, dpi=110, format="png")
    plt.close(figure)


def _draw(axis: Any, drawing: Drawing) -> None:
    for line in drawing.lines:
        look = {"color": PALETTE[line.colour], "linewidth": 1.6, "label": line.label}
        if line.trend:
            axis.plot(*line.points, color=PALETTE[line.colour], linewidth=0.8, alpha=0.25)
        elif len(line.points.steps) <= MAX_MARKERS:
            look |= {"marker": "o", "markersize": 3}
        axis.plot(*(line.trend or line.points), **look)
    if drawing.band:
        axis.fill_between(*drawing.band, color=PALETTE[drawing.lines[0].colour], alpha=0.2, linewidth=0)
    for start, _, _ in drawing.stages[1:]:
        axis.axvline(start, color=STAGE, linewidth=0.8, zorder=0)
    for step, number in drawing.resets:
        shade = RESET if number is None else PALETTE[number]
        axis.axvline(step, color=shade, linestyle="--", linewidth=0.9, alpha=0.6)
    unit = f" ({drawing.panel.unit})" if drawing.panel.unit else ""
    title = fill(f"{drawing.panel.title}{unit}", TITLE_LETTERS)
    axis.set_title(title, fontsize=8 if "\n" in title else 10)
    axis.xaxis.set_major_locator(MaxNLocator("auto", integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))
    axis.set_xlabel("step", fontsize=9)
    axis.tick_params(which="both", labelsize=8)  # a short logarithmic axis has labels at minor ticks
    axis.grid(alpha=0.2)
    axis.spines[["top", "right"]].set_visible(False)
    if drawing.is_log:
        axis.set_yscale("log")
        low, high = axis.get_ylim()
        if high < 5 * low:  # hardly a mark is a power of ten
            axis.yaxis.set_major_formatter("{x:g}")
            axis.yaxis.set_minor_formatter("{x:g}")
    if drawing.starts_at_zero:
        axis.set_ylim(bottom=0)
    if len(drawing.lines) > 1:
        columns = 2 if len(drawing.lines) > 3 else 1
        axis.legend(fontsize=7, framealpha=0.8, edgecolor="none", ncols=columns, loc="best")
