"""Builds drawings from panels and runs: lines with points and colours, and marks, for the page and the pictures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from nemo_prorl.report import curves
from nemo_prorl.report.curves import Curve, curve_of
from nemo_prorl.report.events import events_of, resets_of, stage_spans
from nemo_prorl.report.health import unlike_held_out
from nemo_prorl.report.panels import Kind, Panel, expand, names_in
from nemo_prorl.report.runs import Run
from nemo_prorl.run_folder.events import EventKind
from nemo_prorl.run_folder.validation_metrics import VALIDATION

INK = 0
"""The text colour, for lines that summarise others. Other colours count from 1 in the palettes of page and pictures."""
MAX_MARKERS = 60
"""Lines with at most this many points get a dot at each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A series of one run."""

    label: str
    colour: int
    points: Curve
    """Recorded values, thinned."""
    trend: Curve | None
    """Drawn over the points if there are many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """The vertical axis's scale. None: as the points require."""

    low: float | None = None
    high: float | None = None
    is_log: bool = False
    spans_decades: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """One chart, ready to be drawn."""

    panel: Panel
    lines: tuple[Line, ...]
    resets: tuple[tuple[int, int | None], ...]
    """Steps with a reset, each with its run's colour; None: the colour of resets."""
    stages: tuple[tuple[int, int, str], ...]
    """The step before each stage's first, its last step and its name; empty when runs are compared."""
    scale: Scale
    description: str
    """Describes the picture in words."""


def draw(panel: Panel, runs: Sequence[Run]) -> list[Drawing]:
    """Returns one drawing for a single run, one per series for several runs; none without numbers."""
    metrics = frozenset().union(*(run.metrics for run in runs))
    series = expand(panel, metrics)
    if len(runs) == 1:
        colours = [_colour(metric, label, place, metrics) for place, (metric, label) in enumerate(series)]
        made = (_line(runs[0], *one, colour, panel) for one, colour in zip(series, colours, strict=True))
        lines = [line for line in made if line]
        if not any(line.points.values.any() for line in lines):
            lines = lines[:1]  # if all are zero, one line is enough
        return [_drawing(panel, lines, runs)] if lines else []
    drawings: list[Drawing] = []
    unlike = unlike_held_out(runs)
    for metric, label in series:
        title = panel.title if len(series) == 1 else f"{panel.title}: {label}"
        part = replace(panel, title=title, kind=Kind.lines, name=f"{panel.name}-{len(drawings)}")
        if unlike and metric.startswith(VALIDATION):  # a picture has the title alone
            part = replace(part, title=f"{title} (may not compare)", reading=f"{unlike} {panel.reading}")
        made = (_line(run, metric, run.name, number, part) for number, run in enumerate(runs, start=1))
        lines = [line for line in made if line]
        drawings += [_drawing(part, lines, runs)] if lines else []
    return drawings


def _line(run: Run, metric: str, label: str, colour: int, panel: Panel) -> Line | None:
    curve = curve_of(run.records, metric)
    if len(curve.steps) == 0:
        return None
    if panel.kind is not Kind.lines:
        return Line(label=label, colour=colour, points=curve, trend=None)
    breaking = (EventKind.reset, EventKind.stage, EventKind.measurement)
    breaks = [event.step for event in events_of(run) if event.kind in breaking]
    trend = None
    if len(curve.steps) >= curves.MIN_POINTS_FOR_TREND:
        trend = curves.thinned(curves.trend(curve, breaks))
    return Line(label=label, colour=colour, points=curves.thinned(curve), trend=trend)


def _colour(metric: str, label: str, position: int, metrics: Iterable[str]) -> int:
    """Returns a line's colour; a domain has the same colour in all charts."""
    domains = sorted({*names_in("reward/{}/mean", metrics), *names_in("validation/{}/score", metrics)})
    if label == "all":
        return INK
    return domains.index(label) + 1 if metric.count("/") == 2 and label in domains else position + 1


def _drawing(panel: Panel, lines: list[Line], runs: Sequence[Run]) -> Drawing:
    if panel.kind is not Kind.lines:
        lines = _stackable(lines, as_shares=panel.kind is Kind.shares)
    resets = [
        (event.step, None if len(runs) == 1 else number)
        for number, run in enumerate(runs, start=1)
        for event in resets_of(run)
    ]
    return Drawing(
        panel=panel,
        lines=tuple(lines),
        resets=tuple(resets),
        stages=tuple(stage_spans(runs[0])) if len(runs) == 1 else (),
        scale=_scale(panel, lines),
        description=_describe(panel, lines, len(resets)),
    )


def _scale(panel: Panel, lines: Sequence[Line]) -> Scale:
    """Returns a scale from 0, unless that would flatten the curves, as with a ratio around 1."""
    if panel.kind is Kind.shares:
        return Scale(low=0, high=1)
    low = min(float(line.points.values.min()) for line in lines)
    high = max(float(line.points.values.max()) for line in lines)
    if panel.log and low > 0:
        return Scale(is_log=True, spans_decades=high > 30 * low)
    if high - low <= 1e-9 * abs(high) and high >= 0:
        return Scale(low=0, high=1.25 * high or 1)
    return Scale(low=0) if 0 <= low <= 0.8 * high else Scale()


def _stackable(lines: list[Line], *, as_shares: bool) -> list[Line]:
    """Puts all lines on the same steps, with 0 where one has no value; averages them, and divides by the sum if shares
    are shown.

    Leaves out lines that are 0 everywhere.
    """
    steps = np.unique(np.concatenate([line.points.steps for line in lines]))
    table = np.zeros((len(lines), len(steps)))
    for row, line in zip(table, lines, strict=True):
        # Two records may have the same step: the validation before a stage's first step, and the step before it.
        np.add.at(row, np.searchsorted(steps, line.points.steps), line.points.values)
    averages = [curves.averaged(Curve(steps, row)) for row in table]
    total = np.sum([average.values for average in averages], axis=0)
    scale = 1 / np.where(total > 0, total, 1.0) if as_shares else np.ones_like(total)
    return [
        replace(line, points=Curve(average.steps, average.values * scale))
        for line, average in zip(lines, averages, strict=True)
        if average.values.any()
    ]


def _describe(panel: Panel, lines: list[Line], num_resets: int) -> str:
    said = [
        f"{line.label}: {values[0]:.3g} at step {steps[0]:.0f}, {values[-1]:.3g} at step {steps[-1]:.0f}, "
        f"from {values.min():.3g} to {values.max():.3g}"
        for line in lines[:8]
        for steps, values in [line.points]
    ]
    unit = f" ({panel.unit})" if panel.unit else ""
    resets = f" {num_resets} mark(s) of resets." if num_resets else ""
    return f"{panel.title}{unit} over steps. {'; '.join(said)}.{resets}"
