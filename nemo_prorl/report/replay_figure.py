"""A replay as one picture: signals over steps, what really happened, and what the controller would have done."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.ticker import MaxNLocator

from nemo_prorl.config import ControllerAction
from nemo_prorl.run_folder.events import EventKind
from nemo_prorl.run_folder.validation_metrics import DOMAIN_MEAN, PROMPT_MEAN, SCORE, VALIDATION
from nemo_prorl.training.control.replay import Replay
from nemo_prorl.training.control.signals import ENTROPY, KL, LENGTH, NO_EOS

mpl.use("Agg")

_COLOURS = {
    ControllerAction.warn: "#3b6ea5",
    ControllerAction.remix: "#3f7d4e",
    ControllerAction.reset: "#b0413e",
    ControllerAction.end_stage: "#c98a1b",
    ControllerAction.stop: "#5b2a86",
}
_HAPPENED = "#555555"


def draw_replay(result: Replay, path: Path, *, title: str) -> None:
    """Draws five panels below one another. Writes a PNG."""
    figure, axes = plt.subplots(5, 1, figsize=(11, 12), sharex=True, constrained_layout=True)
    keys = sorted({key for record in result.records for key in record if key.startswith(VALIDATION)})
    means = {DOMAIN_MEAN: "mean over domains", PROMPT_MEAN: "mean over prompts"}
    validations = {key: label for key, label in means.items() if key in keys} | {
        key: key.removeprefix(VALIDATION).removesuffix(SCORE)
        for key in keys
        if key.endswith(SCORE) and key != PROMPT_MEAN
    }
    panels = (
        ("KL to the reference\n(nats a token)", {KL: ""}),
        ("entropy\n(nats a token)", {ENTROPY: ""}),
        ("response length\n(tokens)", {LENGTH: ""}),
        ("rollouts without end\n(share)", {NO_EOS: ""}),
        ("held-out reward", validations),
    )
    marks: dict[str, Any] = {}
    for axis, (name, series) in zip(axes, panels, strict=True):
        _draw_series(axis, result.records, series)
        axis.set_ylabel(name, fontsize=9)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        marks = {look["label"]: axis.axvline(step, **look) for step, look in _marks(result)}
    if any(record.get(KL, 0) > 0 for record in result.records):
        axes[0].set_yscale("log")
    axes[-1].set_xlabel("step")
    axes[-1].xaxis.set_major_locator(MaxNLocator("auto", integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))
    _name_marks(axes[0], result)
    if marks:
        handles = list(marks.values())
        figure.legend(handles=handles, loc="outside lower center", ncols=4, fontsize=9, frameon=False)
    figure.suptitle(title, fontsize=11)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _draw_series(axis: Any, records: Sequence[Mapping[str, Any]], series: Mapping[str, str]) -> None:
    for key, label in series.items():
        measured = [record for record in records if isinstance(record.get(key), int | float)]
        if measured:
            steps, values = [record["step"] for record in measured], [record[key] for record in measured]
            marker = "o" if key.startswith(VALIDATION) else None
            axis.plot(steps, values, label=label, linewidth=1.4, marker=marker, markersize=3)
    if not axis.lines:
        axis.text(0.5, 0.5, "not measured", transform=axis.transAxes, ha="center", color=_HAPPENED)
    elif any(series.values()):
        axis.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))  # beside the lines


def _marks(result: Replay) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (step, look of a vertical line): real events as broad grey lines below the would-be decisions, so that
    both show at one step."""
    happened = {"color": _HAPPENED, "linewidth": 4, "alpha": 0.4, "zorder": 1}
    for event in result.events:
        if event.kind is EventKind.stage:
            yield event.step, happened | {"label": "happened: new stage"}
        elif event.kind is EventKind.reset:
            yield event.step, happened | {"linestyle": (0, (2, 2)), "label": "happened: reset"}
    for decision in result.decisions:
        label, colour = f"controller: {decision.action.name}", _COLOURS[decision.action]
        yield decision.step, {"color": colour, "linewidth": 1.4, "zorder": 1.5, "label": label}


def _name_marks(axis: Any, result: Replay) -> None:
    """Writes labels above the first panel, upright so that neighbours do not overlap; one text per step."""
    names: dict[int, list[str]] = {}
    colours: dict[int, str] = {}
    for event in result.events:
        if event.kind is EventKind.stage:
            names.setdefault(event.step, []).append(event.stage)
    for decision in result.decisions:
        names.setdefault(decision.step, []).append(decision.signal)
        colours[decision.step] = _COLOURS[decision.action]
    where = {"xycoords": ("data", "axes fraction"), "rotation": 60, "ha": "left", "va": "bottom"}
    for step, texts in names.items():
        colour = colours.get(step, _HAPPENED)
        axis.annotate(", ".join(texts), (step, 1.02), **where, fontsize=8, color=colour)
