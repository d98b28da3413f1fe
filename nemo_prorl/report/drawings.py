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
from nemo_prorl.report.panels import Kind, Panel, expand, names_in
from nemo_prorl.run_folder.events import EventKind
from nemo_prorl.run_folder.run import RunFolder
from nemo_prorl.run_folder.validation_metrics import VALIDATION

FloatArray = NDArray[np.float64]

INK = 0
"""The text colour, for lines that summarise others. Other colours count from 1 in the palettes of page and pictures."""
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
    band: Band | None = None
    """A forecast of the first line."""

    @property
    def has_legend(self) -> bool:
        """Returns whether the lines need names: even a single area does, because it is one of several kinds."""
        return len(self.lines) > 1 or self.panel.kind is not Kind.lines


def draw(panel: Panel, runs: Sequence[RunFolder]) -> list[Drawing]:
    """Returns one drawing for a single run, one per series for several runs; none without numbers."""
    metrics = frozenset().union(*(run.metric_names for run in runs))
    series = expand(panel, metrics)
    if len(runs) == 1:
        # A domain has the same colour in all charts.
        domains = sorted({*names_in("reward/{}/mean", metrics), *names_in("validation/{}/score", metrics)})
        lines: list[Line] = []
        for place, (metric, label) in enumerate(series, start=1):
            is_domain = metric.count("/") == 2 and label in domains
            if is_domain and len(domains) == 1 and any(line.label == "all" for line in lines):
                continue  # the same line once more
            colour = INK if label == "all" else domains.index(label) + 1 if is_domain else place
            if line := _line(runs[0], metric, label, colour, panel):
                lines.append(line)
        if not any(line.points.values.any() for line in lines):
            lines = lines[:1]  # if all are zero, one line is enough
        drawing = _drawing(panel, lines, runs) if lines else None
        if drawing and panel.has_forecast and (band := _forecast_band(runs[0])):
            end = f"{band.low[-1]:.3g} to {band.high[-1]:.3g} at step {band.steps[-1]:.0f}"
            drawing = replace(drawing, band=band, description=f"{drawing.description} Forecast: {end}.")
        return [drawing] if drawing else []
    drawings: list[Drawing] = []
    unlike = measurement_differences(runs)
    for metric, label in series:
        title = panel.title if len(series) == 1 else f"{panel.title}: {label}"
        part = replace(panel, title=title, kind=Kind.lines, name=f"{panel.name}-{len(drawings)}")
        if unlike and metric.startswith(VALIDATION):  # a picture has the title alone
            part = replace(part, title=f"{title} (may not compare)", reading=f"{unlike} {panel.reading}")
        made = (_line(run, metric, run.name, number, part) for number, run in enumerate(runs, start=1))
        lines = [line for line in made if line]
        drawings += [_drawing(part, lines, runs)] if lines else []
    return drawings


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


def _line(run: RunFolder, metric: str, label: str, colour: int, panel: Panel) -> Line | None:
    curve = curve_of(run.full_records, metric)
    if len(curve.steps) == 0:
        return None
    if panel.kind is not Kind.lines:
        return Line(label=label, colour=colour, points=curve, trend=None)
    breaking = (EventKind.reset, EventKind.stage, EventKind.measurement)
    breaks = [event.step for event in run.events if event.kind in breaking]
    smooth = thinned(trend(curve, breaks)) if len(curve.steps) >= MIN_POINTS_FOR_TREND else None
    return Line(label=label, colour=colour, points=thinned(curve), trend=smooth)


def _drawing(panel: Panel, lines: list[Line], runs: Sequence[RunFolder]) -> Drawing:
    if panel.kind is not Kind.lines:
        lines = _stackable(lines, as_shares=panel.kind is Kind.shares)
    resets = [
        (event.step, None if len(runs) == 1 else number)
        for number, run in enumerate(runs, start=1)
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
        scale=scale_of(panel, lines),
        description=f"{panel.title}{unit} over steps. {'; '.join(said)}.{marks}",
    )


def number_text(value: float) -> str:
    """Formats a number for people, with about three digits that count: "12,346", "0.123", "2e-06"."""
    if abs(value) >= 1000 or float(value).is_integer():
        return f"{value:,.0f}"
    return f"{value:.3f}" if 0.01 <= abs(value) < 10 else f"{value:.4g}"


def scale_of(panel: Panel, lines: Sequence[Line]) -> Scale:
    """Returns a scale from 0, unless that would flatten the curves, as with a ratio around 1."""
    if panel.kind is Kind.shares:
        return Scale(low=0, high=1)
    drawn = [line.points.values for line in lines]
    low, high = min(float(values.min()) for values in drawn), max(float(values.max()) for values in drawn)
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
    averages = [averaged(Curve(steps, row)) for row in table]
    total = np.sum([average.values for average in averages], axis=0)
    scale = 1 / np.where(total > 0, total, 1.0) if as_shares else np.ones_like(total)
    return [
        replace(line, points=Curve(average.steps, average.values * scale))
        for line, average in zip(lines, averages, strict=True)
        if average.values.any()
    ]


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
    """Fits local straight lines (least squares) in a moving window, never across a break.

    In the middle of a stretch this is the moving average; at its ends, where the window has only one side, it follows
    the slope instead of flattening it. breaks: steps after which the curve begins anew (a reset, a new stage), so that
    its jump stays a jump.
    """
    half = max(1, len(curve.steps) // (2 * NUM_WINDOWS))
    fitted = np.empty_like(curve.values)
    edges = np.searchsorted(curve.steps, sorted(breaks), side="right")
    for part in np.split(np.arange(len(curve.steps)), edges):
        if len(part):
            fitted[part] = _local_lines(curve.values[part], half)
    return Curve(curve.steps, fitted)


def averaged(curve: Curve, max_points: int = MAX_POINTS // 4) -> Curve:
    """Returns means over at most `max_points` equal stretches, each at its last step, for area charts, which show
    totals."""
    if len(curve.steps) <= max_points:
        return curve
    stretches = np.array_split(np.arange(len(curve.steps)), max_points)
    return Curve(
        np.array([curve.steps[stretch[-1]] for stretch in stretches]),
        np.array([curve.values[stretch].mean() for stretch in stretches]),
    )


def _local_lines(values: FloatArray, half: int) -> FloatArray:
    """Returns, shape [N], at each position the value of the line fitted to the positions at most `half` away."""
    position = np.arange(len(values), dtype=np.float64)
    low = np.maximum(0, np.arange(len(values)) - half)
    high = np.minimum(len(values), np.arange(len(values)) + half + 1)

    def window_mean(terms: FloatArray) -> FloatArray:
        sums = np.concatenate([[0.0], np.cumsum(terms)])
        return (sums[high] - sums[low]) / (high - low)

    mean_position, mean_value = window_mean(position), window_mean(values)
    variance = window_mean(position**2) - mean_position**2
    covariance = window_mean(position * values) - mean_position * mean_value
    slope = np.divide(covariance, variance, out=np.zeros_like(values), where=variance > 0)
    return mean_value + slope * (position - mean_position)
