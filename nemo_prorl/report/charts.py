"""A drawing as a Plotly figure. Colours are numbers, which page/page.js replaces for light or dark mode."""

from __future__ import annotations

from typing import Any

from nemo_prorl.report.drawings import MAX_MARKERS, Band, Curve, Drawing, Line

PLOT_PX = 240
AXIS: dict[str, Any] = {"automargin": True, "zeroline": False, "nticks": 6}
FEW_STEPS = 6
"""Up to so many steps, each has a mark on the axis; there is no mark between two steps."""


def plotly_figure(drawing: Drawing) -> dict[str, Any]:
    """Returns data and layout, as Plotly.newPlot and plotly.graph_objects.Figure take them."""
    traces = [trace for number, line in enumerate(drawing.lines) for trace in _traces(line, number)]
    if drawing.band:
        traces.append(_band_trace(drawing.band, drawing.lines[0]))
    y_axis = AXIS | {
        "separatethousands": True,
        "exponentformat": "SI" if drawing.extremes[1] >= 1e4 else "e",
        "type": "log" if drawing.is_log else "linear",
        "rangemode": "tozero" if drawing.starts_at_zero else "normal",
    }
    steps = [line.points.steps for line in drawing.lines]
    num_steps = max(float(one.max()) for one in steps) - min(float(one.min()) for one in steps)
    layout = {
        "height": PLOT_PX,
        "margin": {"l": 8, "r": 12, "t": 16, "b": 28, "pad": 0},
        "hovermode": "x unified",
        "hoverlabel": {"namelength": -1},
        "showlegend": False,
        "xaxis": AXIS
        | {"tickformat": ",~f", "hoverformat": ",d", "dtick": 1 if num_steps <= FEW_STEPS else None},
        "yaxis": y_axis,
        "shapes": _shapes(drawing),
    }
    return {"data": traces, "layout": layout}


def _traces(line: Line, number: int) -> list[dict[str, Any]]:
    meta = {"colour": line.colour, "line": number}
    trace: dict[str, Any] = {
        "type": "scatter",
        "name": line.label,
        "mode": "lines+markers" if len(line.points.steps) <= MAX_MARKERS else "lines",
        "line": {"width": 1.8},
        "marker": {"size": 4.5},
        "hovertemplate": "%{y:.4~g}",
        "meta": meta | {"role": "line"},
        **_points(line.points),
    }
    if line.trend is None:
        return [trace]
    faint = trace | {"line": {"width": 1}, "meta": meta | {"role": "faint"}}
    return [faint, trace | {"hoverinfo": "skip", "hovertemplate": None, **_points(line.trend)}]


def _band_trace(band: Band, line: Line) -> dict[str, Any]:
    """Returns the band as one closed outline."""
    upper, lower = _points(Curve(band.steps, band.high)), _points(Curve(band.steps, band.low))
    return {
        "type": "scatter",
        "name": "forecast",
        "mode": "lines",
        "fill": "toself",
        "line": {"width": 0},
        "marker": {},
        "hoverinfo": "skip",
        "meta": {"colour": line.colour, "line": 0, "role": "band"},
        **{axis: upper[axis] + lower[axis][::-1] for axis in upper},
    }


def _points(curve: Curve) -> dict[str, list[float]]:
    return {"x": [int(step) for step in curve.steps], "y": [float(f"{value:.5g}") for value in curve.values]}


def _shapes(drawing: Drawing) -> list[dict[str, Any]]:
    """Returns vertical lines: where stages begin, and, dashed, at resets."""
    marks: list[tuple[int, dict[str, Any]]] = [
        (start, {"name": "stage", "layer": "below", "line": {"width": 1}})
        for start, _, _ in drawing.stages[1:]
    ]
    for step, colour in drawing.resets:
        name, opacity = ("reset", 0.65) if colour is None else (f"reset {colour}", 0.4)
        marks.append((step, {"name": name, "opacity": opacity, "line": {"width": 1, "dash": "dash"}}))
    place = {"type": "line", "xref": "x", "yref": "paper", "y0": 0, "y1": 1}
    return [{**place, "x0": step, "x1": step, **look} for step, look in marks]
