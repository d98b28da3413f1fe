"""Builds drawings from panels and runs, for the page and the pictures: lines with points and colours, and marks. The
functions of curves at the end thin a metric for drawing and smooth it for reading."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nemo_prorl.report.forecast import outlook_of
from nemo_prorl.report.health import measurement_differences
from nemo_prorl.report.panels import Panel, expand, names_in
from nemo_prorl.run_folder.events import EventKind
from nemo_prorl.run_folder.formats import number_text
from nemo_prorl.run_folder.run import RunFolder
from nemo_prorl.run_folder.validation_metrics import VALIDATION

FloatArray = NDArray[np.float64]

INK, NUM_HUES, NUM_SHADES = 0, 8, 10
"""Colours in page/page.css: the text colour, then hues, then shades from dark to light."""
KINDS = ("informative", "all right", "all wrong")
"""Labels of prompts that have a hue each."""
MAX_MARKERS = 60
"""Lines with at most this many points get a dot at each."""
MAX_POINTS = 800
"""Most points of a drawn line: two per screen pixel of a chart's width."""
NUM_WINDOWS = 50
"""A trend's window is the run's length divided by this."""
NUM_BAND_POINTS = 12
MIN_POINTS_FOR_TREND = 150
"""Shorter curves are drawn as they are."""


class Curve(NamedTuple):
    """Values over steps, both of shape [N], ascending steps, finite values."""

    steps: FloatArray
    values: FloatArray


class Band(NamedTuple):
    """An interval over steps, all of shape [N]."""

    steps: FloatArray
    low: FloatArray
    high: FloatArray


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
class Drawing:
    """One chart, ready to be drawn."""

    panel: Panel
    lines: tuple[Line, ...]
    resets: tuple[tuple[int, int | None], ...]
    """Steps with a reset, each with its run's colour; None: the colour of resets."""
    stages: tuple[tuple[int, int, str], ...]
    """The step before each stage's first, its last step and its name; empty when runs are compared."""
    description: str
    """Describes the picture in words."""
    band: Band | None = None
    """A forecast of the first line."""

    @property
    def extremes(self) -> tuple[float, float]:
        """Returns the smallest and the largest value."""
        drawn = [line.points.values for line in self.lines]
        return min(float(values.min()) for values in drawn), max(float(values.max()) for values in drawn)

    @property
    def constant(self) -> str:
        """Returns the values of lines that do not change; empty if one does, or has a single point."""
        values = [line.points.values for line in self.lines]
        if any(len(one) < 2 or np.ptp(one) > 1e-3 * abs(one).max() for one in values):
            return ""
        texts = {line.label: number_text(line.points.values[-1]) for line in self.lines}
        return ", ".join(map(" ".join, texts.items())) if len({*texts.values()}) > 1 else texts.popitem()[1]

    @property
    def is_log(self) -> bool:
        return self.panel.log and self.extremes[0] > 0

    @property
    def starts_at_zero(self) -> bool:
        """Returns whether the vertical axis starts at 0: unless that would flatten the curves, as with a ratio around
        1."""
        low, high = self.extremes
        return not self.is_log and low >= 0 and (low <= 0.8 * high or high - low <= 1e-9 * high)


def draw(panel: Panel, runs: Sequence[RunFolder]) -> list[Drawing]:
    """Returns one drawing for a single run, one per series for several runs; none without numbers."""
    metrics = frozenset().union(*(run.metric_names for run in runs))
    series = expand(panel, metrics)
    if len(runs) == 1:
        domains = sorted({*names_in("reward/{}/mean", metrics), *names_in("validation/{}/score", metrics)})
        lines: list[Line] = []
        colours = _colours([label for _, label in series], domains)
        for metric, label in series:
            if metric.split("/")[1:2] == domains and any(line.label == "all" for line in lines):
                continue  # the only domain's line is the same once more
            if line := _line(runs[0], metric, label, colours[label]):
                lines.append(line)
        drawing = _drawing(panel, lines, runs) if lines else None
        if drawing and panel.has_forecast and (band := _forecast_band(runs[0])):
            end = f"{band.low[-1]:.3g} to {band.high[-1]:.3g} at step {band.steps[-1]:.0f}"
            drawing = replace(drawing, band=band, description=f"{drawing.description} Forecast: {end}.")
        return [drawing] if drawing else []
    drawings: list[Drawing] = []
    unlike = measurement_differences(runs)
    for metric, label in series:
        title = panel.title if len(series) == 1 else f"{panel.title}: {label}"
        part = replace(panel, title=title, name=f"{panel.name}-{len(drawings)}")
        if unlike and metric.startswith(VALIDATION):  # a picture has the title alone
            part = replace(part, title=f"{title} (may not compare)", reading=f"{unlike} {panel.reading}")
        made = (_line(run, metric, run.name, 1 + number % NUM_HUES) for number, run in enumerate(runs))
        lines = [line for line in made if line]
        drawings += [_drawing(part, lines, runs)] if lines else []
    return drawings


def _colours(labels: Sequence[str], domains: Sequence[str]) -> dict[str, int]:
    """Returns label -> colour for a single run's page, on which a colour has one meaning: the text colour is for what
    summarises domains, a hue for a kind of prompts or a domain, shades in the panel's order for the rest."""
    named = {"all": INK} | {label: 1 + number % NUM_HUES for number, label in enumerate((*KINDS, *domains))}
    others = [label for label in labels if label not in named]
    distance = min(4, (NUM_SHADES - 1) / max(1, len(others) - 1))
    return named | {label: 1 + NUM_HUES + round(i * distance) for i, label in enumerate(others)}


def _forecast_band(run: RunFolder) -> Band | None:
    """Returns the forecast from the newest step to the end of the stage; None if there is none."""
    outlook = outlook_of(run)
    if not outlook.end:
        return None
    steps = np.unique(np.linspace(outlook.step, outlook.end, NUM_BAND_POINTS).round())
    found = outlook.at([int(step) for step in steps])
    if found[0].reason:
        return None
    return Band(steps, np.array([one.low for one in found]), np.array([one.high for one in found]))


def _line(run: RunFolder, metric: str, label: str, colour: int) -> Line | None:
    curve = curve_of(run.full_records, metric)
    if len(curve.steps) == 0:
        return None
    breaking = (EventKind.reset, EventKind.stage, EventKind.measurement)
    breaks = [event.step for event in run.events if event.kind in breaking]
    smooth = thinned(trend(curve, breaks)) if len(curve.steps) >= MIN_POINTS_FOR_TREND else None
    return Line(label=label, colour=colour, points=thinned(curve), trend=smooth)


def _drawing(panel: Panel, lines: list[Line], runs: Sequence[RunFolder]) -> Drawing:
    resets = [
        (event.step, None if len(runs) == 1 else 1 + number % NUM_HUES)
        for number, run in enumerate(runs)
        for event in run.resets
    ]
    said = [
        f"{line.label}: {number_text(values[0])} at step {steps[0]:.0f}, {number_text(values[-1])} at step "
        f"{steps[-1]:.0f}, from {number_text(values.min())} to {number_text(values.max())}"
        for line in lines[:8]
        for steps, values in [line.points]
    ]
    unit = f" ({panel.unit})" if panel.unit else ""
    marks = f" {len(resets)} mark(s) of resets." if resets else ""
    return Drawing(
        panel=panel,
        lines=tuple(lines),
        resets=tuple(resets),
        stages=tuple(runs[0].stage_spans) if len(runs) == 1 else (),
        description=f"{panel.title}{unit} over steps. {'; '.join(said)}.{marks}",
    )


def curve_of(records: Sequence[Mapping[str, Any]], key: str) -> Curve:
    """Returns all finite values of the metric."""
    points = [(record["step"], record[key]) for record in records if isinstance(record.get(key), int | float)]
    array = np.asarray(points, dtype=np.float64).reshape(-1, 2)
    array = array[np.isfinite(array[:, 1])]
    return Curve(array[:, 0], array[:, 1])


def thinned(curve: Curve, max_points: int = MAX_POINTS) -> Curve:
    """Returns at most `max_points` of the curve's own points: first, last, and the extremes of equal stretches in
    between.

    No spike is lost, which averaging or taking every k-th point would do.
    """
    count = len(curve.steps)
    if count <= max_points:
        return curve
    stretches = np.array_split(np.arange(1, count - 1), (max_points - 2) // 2)
    kept = {0, count - 1}
    for stretch in stretches:
        kept |= {int(stretch[curve.values[stretch].argmin()]), int(stretch[curve.values[stretch].argmax()])}
    chosen = np.array(sorted(kept))
    return Curve(curve.steps[chosen], curve.values[chosen])


def trend(curve: Curve, breaks: Sequence[float] = ()) -> Curve:
    """Returns means over a moving window, never across a break: a step after which the curve begins anew (a reset, a
    new stage), so that its jump stays a jump."""
    half = max(1, len(curve.steps) // (2 * NUM_WINDOWS))
    window, means = np.ones(2 * half + 1), np.empty_like(curve.values)
    edges = np.searchsorted(curve.steps, sorted(breaks), side="right")
    for part in filter(len, np.split(np.arange(len(curve.steps)), edges)):
        sums, counts = (np.convolve(one, window) for one in (curve.values[part], np.ones(len(part))))
        means[part] = (sums / counts)[half:-half]
    return Curve(curve.steps, means)
