"""A metric over the steps of a run, thinned for drawing and smoothed for reading. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

MAX_POINTS = 800
"""Most points of a drawn line: two per screen pixel of a chart's width."""
NUM_WINDOWS = 50
"""A trend's window is the run's length divided by this."""
MIN_POINTS_FOR_TREND = 150
"""Shorter curves are drawn as they are."""


class Curve(NamedTuple):
    """Values over steps, both of shape [N], ascending steps, finite values."""

    steps: FloatArray
    values: FloatArray


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
        kept |= {
            int(stretch[curve.values[stretch].argmin()]),
            int(stretch[curve.values[stretch].argmax()]),
        }
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
