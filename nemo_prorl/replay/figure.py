"""A replay as one picture: signals over steps, what really happened, and what the controller would have done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt

from nemo_prorl.config import ControllerAction
from nemo_prorl.replay import Replay
from nemo_prorl.training.held_out import DOMAIN_MEAN, PROMPT_MEAN, REWARD, VALIDATION
from nemo_prorl.training.signals import ENTROPY, KL, LENGTH, NO_EOS

mpl.use("Agg")

_COLOURS = {
    ControllerAction.reset: "#b0413e",
    ControllerAction.end_stage: "#c98a1b",
    ControllerAction.stop: "#5b2a86",
}
_HAPPENED = "#555555"


def draw_replay(result: Replay, path: Path, *, title: str) -> None:
    """Draws five panels below one another. Writes a PNG."""
    figure, axes = plt.subplots(5, 1, figsize=(11, 12), sharex=True, constrained_layout=True)
    panels = (
        ("KL to the reference\n(nats a token)", {KL: ""}),
        ("entropy\n(nats a token)", {ENTROPY: ""}),
        ("response length\n(tokens)", {LENGTH: ""}),
        ("rollouts without end\n(share)", {NO_EOS: ""}),
        ("held-out reward", _validation_series(result.records)),
    )
    for axis, (name, series) in zip(axes, panels, strict=True):
        _draw_series(axis, result.records, series)
        axis.set_ylabel(name, fontsize=9)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        _draw_marks(axis, result)
    if any(record.get(KL, 0) > 0 for record in result.records):
        axes[0].set_yscale("log")
    axes[-1].set_xlabel("step")
    _name_marks(axes[0], result)
    _draw_legend(figure, result)
    figure.suptitle(title, fontsize=11)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _validation_series(records: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    keys = sorted({key for record in records for key in record if key.startswith(VALIDATION)})
    domains = [key for key in keys if key.endswith(REWARD) and key != PROMPT_MEAN]
    means = {DOMAIN_MEAN: "mean over domains", PROMPT_MEAN: "mean over prompts"}
    return {key: label for key, label in means.items() if key in keys} | {
        key: key.removeprefix(VALIDATION).removesuffix(REWARD) for key in domains
    }


def _draw_series(axis: Any, records: Sequence[Mapping[str, Any]], series: Mapping[str, str]) -> None:
    for key, label in series.items():
        points = [
            (record["step"], record[key]) for record in records if isinstance(record.get(key), int | float)
        ]
        if points:
            marker = "o" if key.startswith(VALIDATION) else None
            axis.plot(*zip(*points, strict=True), label=label, linewidth=1.4, marker=marker, markersize=3)
    if not axis.lines:
        axis.text(0.5, 0.5, "not measured", transform=axis.transAxes, ha="center", color=_HAPPENED)
    elif any(series.values()):
        axis.legend(fontsize=8, frameon=False, loc="best")


def _draw_marks(axis: Any, result: Replay) -> None:
    """Draws real events as broad grey lines below the would-be decisions, so that both show at one step."""
    for event in result.events:
        style = "-" if event.is_stage else (0, (2, 2))
        axis.axvline(event.step, color=_HAPPENED, linestyle=style, linewidth=4, alpha=0.4, zorder=1)
    for decision in result.decisions:
        axis.axvline(decision.step, color=_COLOURS[decision.action], linewidth=1.4, zorder=1.5)


def _name_marks(axis: Any, result: Replay) -> None:
    """Writes labels above the first panel, upright so that neighbours do not overlap; one text per step."""
    names: dict[int, list[str]] = {}
    colours: dict[int, str] = {}
    for event in result.events:
        if event.is_stage:
            names.setdefault(event.step, []).append(event.text.removesuffix(" begins"))
    for decision in result.decisions:
        names.setdefault(decision.step, []).append(decision.signal)
        colours[decision.step] = _COLOURS[decision.action]
    for step, texts in names.items():
        _write(axis, step, ", ".join(texts), colours.get(step, _HAPPENED))


def _write(axis: Any, step: int, text: str, colour: str) -> None:
    axis.annotate(
        text,
        (step, 1.02),
        xycoords=("data", "axes fraction"),
        rotation=60,
        ha="left",
        va="bottom",
        fontsize=8,
        color=colour,
    )


def _draw_legend(figure: Any, result: Replay) -> None:
    """Draws a legend of the marks that occur."""
    happened = {"color": _HAPPENED, "linewidth": 4, "alpha": 0.4}
    entries: list[dict[str, Any]] = []
    if any(event.is_stage for event in result.events):
        entries.append(happened | {"label": "happened: new stage"})
    if any(not event.is_stage for event in result.events):
        entries.append(happened | {"label": "happened: reset", "linestyle": (0, (1, 1))})
    for action, colour in _COLOURS.items():
        if any(decision.action is action for decision in result.decisions):
            entries.append({"color": colour, "linewidth": 1.4, "label": f"controller: {action.name}"})
    if entries:
        handles = [mpl.lines.Line2D([], [], **entry) for entry in entries]
        figure.legend(handles=handles, loc="outside lower center", ncols=4, fontsize=9, frameon=False)
