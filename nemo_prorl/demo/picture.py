"""The demos' pictures: what was trained over the steps, and what is solved before and after, by size or kind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt

from nemo_prorl.demo.levels import SHOWN, UNITS
from nemo_prorl.demo.tasks import TASKS
from nemo_prorl.run_folder.storage import replacing_file

mpl.use("Agg")

BEFORE, AFTER, RESET = "#8a8a8a", "#b0413e", "#1f2937"
TRAINING, HELD_OUT = "#d99a3d", "#1d6fd1"
WIDTH, DPI = 8.3, 200
"""In inches: 830 pixels wide on a page, where 9 points are 12 pixels."""
STAGES = {"demo1": " smaller sizes", "demo2": " all sizes"}
"""What a stage of `demo` trains on."""


def draw(
    path: Path, records: Sequence[Mapping[str, Any]], levels: Sequence[Mapping[str, Any]], *, k: int
) -> None:
    """Draws the training run on the left, and pass@1 and pass@k of each level on the right, a chart a task."""
    with _beside_training(path, records, height=4.5, charts=(2, 2)) as axes:
        for axis, task in zip(axes, SHOWN, strict=True):
            _draw_task(axis, task, [level for level in levels if level["task"] == task], k)


def draw_kinds(
    path: Path, records: Sequence[Mapping[str, Any]], kinds: Mapping[str, Mapping[str, Any]], *, k: int
) -> None:
    """Draws the training run on the left, and pass@1 and pass@k of each kind of problem on the right, with intervals.
    kinds: kind -> `solved.compare`."""
    with _beside_training(path, records, height=3.2, charts=(1, 2)) as axes:
        for axis, (key, title) in zip(
            axes, (("pass_at_1", "pass@1"), ("pass_at_k", f"pass@{k}")), strict=True
        ):
            for shift, when, colour in ((-0.2, "before", BEFORE), (0.2, "after", AFTER)):
                values = [change[f"{key}_{when}"] for change in kinds.values()]
                bounds = [change[f"{key}_{when}_interval"] for change in kinds.values()]
                errors = [[v - low for v, (low, _) in zip(values, bounds, strict=True)],
                          [high - v for v, (_, high) in zip(values, bounds, strict=True)]]  # fmt: skip
                places = [place + shift for place in range(len(kinds))]
                axis.bar(
                    places, values, 0.38, color=colour, label=when, yerr=errors, error_kw={"linewidth": 1}
                )
            axis.set(title=title, ylim=(0, 1), xticks=range(len(kinds)), xticklabels=kinds)
            axis.set_axisbelow(True)
            _plain(axis)


@contextmanager
def _beside_training(
    path: Path, records: Sequence[Mapping[str, Any]], *, height: float, charts: tuple[int, int]
) -> Iterator[Any]:
    """Yields so many rows and columns of axes, to the right of the training run; then adds a legend and saves."""
    with mpl.rc_context({"font.size": 9, "axes.titlesize": 10}):
        figure = plt.figure(figsize=(WIDTH, height), layout="constrained")
        left, right = figure.subfigures(1, 2, width_ratios=(1, 1.25))
        _draw_training(left.subplots(), records)
        axes = right.subplots(*charts, sharey=True).flat
        yield axes
        labels = axes[0].get_legend_handles_labels()
        right.legend(*labels, loc="outside lower center", ncols=3, frameon=False)
        with replacing_file(path) as aside:
            figure.savefig(aside, dpi=DPI, format="png")
        plt.close(figure)


def _draw_training(axis: Any, records: Sequence[Mapping[str, Any]]) -> None:
    for metric, label, look in (
        ("reward/pass_rate", "training", {"color": TRAINING, "linewidth": 1.2}),
        ("validation/pass_at_1", "held out", {"color": HELD_OUT, "marker": "o", "markersize": 4}),
    ):
        points = [(record["step"], record[metric]) for record in records if metric in record]
        axis.plot(*zip(*points, strict=True), label=label, **look) if points else None
    starts = dict[str, int]()
    for record in records:
        starts.setdefault(record["stage"], record["step"])
    for number, (stage, step) in enumerate(starts.items()):
        if number:
            axis.axvline(step, color=RESET, linestyle="--", linewidth=1)
            axis.text(step, 0.02, " hard reset", transform=axis.get_xaxis_transform(), color=RESET)
        what = STAGES.get(stage, "")
        axis.text(step, 0.97, what, transform=axis.get_xaxis_transform(), va="top", color=RESET)
    axis.set(title="Share of right responses", xlabel="training step", ylim=(0, 1))
    axis.legend(loc="lower right", bbox_to_anchor=(1, 0.07), frameon=False)
    _plain(axis)


def _draw_task(axis: Any, task: str, levels: Sequence[Mapping[str, Any]], k: int) -> None:
    sizes = [level["size"] for level in levels]
    for key, name, style in (("pass_at_k", f"pass@{k}", ":"), ("pass_at_1", "pass@1", "-")):
        for when, colour in (("before", BEFORE), ("after", AFTER)):
            values = [level[f"{key}_{when}"] for level in levels]
            axis.plot(sizes, values, style, marker="o", markersize=3, color=colour, label=f"{name} {when}")
            if key == "pass_at_k":
                bounds = zip(*(level[f"{key}_{when}_interval"] for level in levels), strict=True)
                axis.fill_between(sizes, *bounds, color=colour, alpha=0.12, linewidth=0)
    trained = "" if TASKS[task].trained else ", not trained"
    axis.set(title=f"{task}{trained}", xlabel=f"size ({UNITS[task]})", xticks=sizes, ylim=(-0.04, 1.04))
    if sizes_of_rl := TASKS[task].trained:
        ends = (min(sizes_of_rl) - 0.5, max(sizes_of_rl) + 0.5)
        axis.axvspan(*ends, color=TRAINING, alpha=0.12, linewidth=0, label="trained sizes")
    _plain(axis)


def _plain(axis: Any) -> None:
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
