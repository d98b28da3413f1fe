"""The arms as curves: for each arm the mean over its seeds, and every seed as a thin line behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from nemo_prorl.questions.arms import ArmRun
from nemo_prorl.questions.table import KL, TOKENS
from nemo_prorl.report.drawings import INK, Curve, Drawing, Line, curve_of, scale_of
from nemo_prorl.report.panels import Panel
from nemo_prorl.report.pictures import picture
from nemo_prorl.run_folder.run import RunFolder
from nemo_prorl.run_folder.validation_metrics import PROMPT_MEAN

BEFORE = "before"
"""Label of the run that the arms continue."""
PANELS = (
    Panel(
        name="held_out",
        title="Held-out reward",
        unit="mean over prompts",
        series={PROMPT_MEAN: ""},
        reading="",
    ),
    Panel(name="kl", title="KL to the reference", unit="nats a token", series={KL: ""}, reading=""),
    Panel(name="tokens", title="Held-out response length", unit="tokens", series={TOKENS: ""}, reading=""),
)

Records = Sequence[Mapping[str, Any]]
"""The records of one run, in order."""


def draw_fork(runs: Sequence[ArmRun], path: Path, *, at: int) -> None:
    """Draws the finished runs, and the run that they continue up to the step of the fork."""
    records = {run: RunFolder(run.folder).records for run in runs if run.is_done}
    before = [record for record in next(iter(records.values())) if record["step"] <= at]
    arms: dict[str, list[Records]] = {
        BEFORE: [[record for record in before if record["stage"] != runs[0].arm.name]]
    }
    for run, of_run in records.items():
        arms.setdefault(run.arm.name, []).append([one for one in of_run if one["stage"] == run.arm.name])
    draw_arms(arms, PANELS, path, title=f"{len(arms) - 1} arms from step {at}")


def draw_arms(
    arms: Mapping[str, Sequence[Records]], panels: Sequence[Panel], path: Path, *, title: str
) -> None:
    """Draws the first metric of each panel into one PNG, a colour for each arm. arms: name -> the records of each of
    its seeds."""
    picture([drawing for panel in panels if (drawing := _drawing(panel, arms))], path, title=title)


def _drawing(panel: Panel, arms: Mapping[str, Sequence[Records]]) -> Drawing | None:
    """Returns the drawing of a panel's first metric, if an arm has it. The mean covers the steps that all seeds of the
    arm have, and is marked where the first of them was reset."""
    metric, lines = next(iter(panel.series)), []
    resets: list[tuple[int, int | None]] = []
    first = INK if BEFORE in arms else INK + 1
    for number, (name, seeds) in enumerate(arms.items(), start=first):
        curves = [
            curve for records in seeds if len((curve := _last_at_a_step(curve_of(records, metric))).steps)
        ]
        if curves:
            members = tuple(curves) if len(curves) > 1 else ()
            lines.append(Line(label=name, colour=number, points=_mean(curves), trend=None, members=members))
            resets += [(step, number) for step in _reset_steps(seeds[0])]
    if not lines:
        return None
    scale = scale_of(panel, lines)
    return Drawing(
        panel=panel, lines=tuple(lines), resets=tuple(resets), stages=(), scale=scale, description=""
    )


def _reset_steps(records: Records) -> list[int]:
    """Returns the steps after which the run was reset, also by the start of a stage."""
    return [
        before["step"]
        for before, after in pairwise(records)
        if after.get("num_resets", 0) > before.get("num_resets", 0)
    ]


def _last_at_a_step(curve: Curve) -> Curve:
    """Returns the curve with one value a step: a stage validates the step before its first one again."""
    steps, places = np.unique(curve.steps[::-1], return_index=True)
    return Curve(steps, curve.values[::-1][places])


def _mean(curves: Sequence[Curve]) -> Curve:
    steps = curves[0].steps
    for curve in curves[1:]:
        steps = np.intersect1d(steps, curve.steps)
    return Curve(steps, np.mean([curve.values[np.isin(curve.steps, steps)] for curve in curves], axis=0))
