"""A drawing as a Plotly figure. Colours are numbers, which page/page.js replaces for light or dark mode."""

from __future__ import annotations

from typing import Any

from nemo_prorl.report.curves import Curve
from nemo_prorl.report.drawings import MAX_MARKERS, Drawing, Line
from nemo_prorl.report.panels import Kind

PLOT_PX = 240
PLOT_WIDTH_PX, LETTER_PX = 300, 7
"""Width of the plot on the narrowest page, and of a letter in a stage's name."""


def plotly_figure(drawing: Drawing) -> dict[str, Any]:
    """Returns data and layout, as Plotly.newPlot and plotly.graph_objects.Figure take them."""
    traces: list[dict[str, Any]] = []
    for number, line in enumerate(drawing.lines):
        traces += _traces(drawing, line, number)
    layout = {
        "height": PLOT_PX,
        "margin": {"l": 8, "r": 12, "t": 16, "b": 28, "pad": 0},
        "hovermode": "x unified",
        "hoverlabel": {"namelength": -1},
        "showlegend": False,
        "xaxis": {
            "zeroline": False,
            "automargin": True,
            "nticks": 6,
            "tickformat": ",d",
            "hoverformat": ",d",
        },
        "yaxis": _y_axis(drawing),
        "shapes": _shapes(drawing),
        "annotations": _stage_names(drawing),
    }
    return {"data": traces, "layout": layout}


def _traces(drawing: Drawing, line: Line, number: int) -> list[dict[str, Any]]:
    is_area = drawing.panel.kind is not Kind.lines
    few = len(line.points.steps) <= MAX_MARKERS and not is_area
    meta = {"colour": line.colour, "line": number}
    trace: dict[str, Any] = {
        "type": "scatter",
        "name": line.label,
        "mode": "lines+markers" if few else "lines",
        "line": {"width": 0, "shape": "hvh"} if is_area else {"width": 1.8},
        "marker": {"size": 4.5},
        "hovertemplate": "%{y:.4~g}",
        "meta": meta | {"role": "area" if is_area else "line"},
        **_points(line.points),
    }
    if is_area:
        return [trace | {"stackgroup": "all"}]
    if line.trend is None:
        return [trace]
    faint = trace | {"line": {"width": 1}, "meta": meta | {"role": "faint"}}
    return [faint, trace | {"hoverinfo": "skip", "hovertemplate": None, **_points(line.trend)}]


def _points(curve: Curve) -> dict[str, list[float]]:
    return {
        "x": [int(step) for step in curve.steps],
        "y": [float(f"{value:.5g}") for value in curve.values],
    }


def _y_axis(drawing: Drawing) -> dict[str, Any]:
    axis: dict[str, Any] = {
        "automargin": True, "zeroline": False, "nticks": 6, "separatethousands": True,
        "exponentformat": "SI" if drawing.highest >= 1e4 else "e",
    }  # fmt: skip
    scale = drawing.scale
    if scale.is_log:
        return axis | {"type": "log", "dtick": 1 if scale.spans_decades else None}
    if scale.high is not None:
        return axis | {"range": [scale.low, scale.high]}
    return axis | ({"rangemode": "tozero"} if scale.low == 0 else {})


def _shapes(drawing: Drawing) -> list[dict[str, Any]]:
    starts = [
        {
            "type": "line",
            "xref": "x",
            "yref": "paper",
            "x0": start,
            "x1": start,
            "y0": 0,
            "y1": 1,
            "layer": "below",
            "name": "stage",
            "line": {"width": 1},
        }
        for start, _, _ in drawing.stages[1:]
    ]
    resets = [
        {
            **{
                "type": "line",
                "xref": "x",
                "yref": "paper",
                "x0": mark.step,
                "x1": mark.step,
                "y0": 0,
                "y1": 1,
            },
            "name": "reset" if mark.colour is None else f"reset {mark.colour}",
            "opacity": 0.65 if mark.colour is None else 0.4,
            "line": {"width": 1, "dash": "dash"},
        }
        for mark in drawing.resets
    ]
    return starts + resets


def _stage_names(drawing: Drawing) -> list[dict[str, Any]]:
    """Writes the stages' names above the plot, if there is room for them on a phone."""
    if len(drawing.stages) < 2:
        return []
    whole = drawing.stages[-1][1] - drawing.stages[0][0]
    return [
        {
            "text": name,
            "xref": "x",
            "yref": "paper",
            "x": (start + end) / 2,
            "y": 1,
            "yanchor": "bottom",
            "showarrow": False,
            "font": {"size": 10},
        }
        for start, end, name in drawing.stages
        if LETTER_PX * len(name) < PLOT_WIDTH_PX * (end - start) / whole
    ]
