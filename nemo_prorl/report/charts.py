"""A drawing as a Plotly figure. Colours are numbers, which page/page.js replaces for light or dark mode."""

from __future__ import annotations

from typing import Any

from nemo_prorl.report.drawings import MAX_MARKERS, Band, Curve, Drawing, Line
from nemo_prorl.report.panels import Kind

PLOT_PX = 240
AXIS: dict[str, Any] = {"automargin": True, "zeroline": False, "nticks": 6}
FEW_STEPS = 6
"""Up to so many steps, each has a mark on the axis; there is no mark between two steps."""
PLOT_WIDTH_PX, LETTER_PX = 300, 7
"""Width of the plot on the narrowest page, and of a letter in a stage's name."""


def plotly_figure(drawing: Drawing) -> dict[str, Any]:
    """Returns data and layout, as Plotly.newPlot and plotly.graph_objects.Figure take them."""
    traces = [trace for number, line in enumerate(drawing.lines) for trace in _traces(drawing, line, number)]
    if drawing.band:
        traces.append(_band_trace(drawing.band, drawing.lines[0]))
    highest = max(float(line.points.values.max()) for line in drawing.lines)
    y_axis = AXIS | {"separatethousands": True, "exponentformat": "SI" if highest >= 1e4 else "e"}
    scale = drawing.scale
    if scale.is_log:
        y_axis |= {"type": "log", "dtick": 1 if scale.spans_decades else None}
    elif scale.high is not None:
        y_axis["range"] = [scale.low, scale.high]
    elif scale.low == 0:
        y_axis["rangemode"] = "tozero"
    steps = [line.points.steps for line in drawing.lines]
    num_steps = max(float(one.max()) for one in steps) - min(float(one.min()) for one in steps)
    # The stages' names stand above the plot, where there is room for them on a phone.
    look = {"xref": "x", "yref": "paper", "y": 1, "yanchor": "bottom", "showarrow": False}
    stages = drawing.stages if len(drawing.stages) > 1 else ()
    whole = stages[-1][1] - stages[0][0] if stages else 0
    stage_names = [
        look | {"text": name, "x": (start + end) / 2, "font": {"size": 10}}
        for start, end, name in stages
        if LETTER_PX * len(name) < PLOT_WIDTH_PX * (end - start) / whole
    ]
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
        "annotations": stage_names,
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
    starts = [
        _vertical(start, name="stage", layer="below", line={"width": 1}) for start, _, _ in drawing.stages[1:]
    ]
    resets = [
        _vertical(
            step,
            name="reset" if colour is None else f"reset {colour}",
            opacity=0.65 if colour is None else 0.4,
            line={"width": 1, "dash": "dash"},
        )
        for step, colour in drawing.resets
    ]
    return starts + resets


def _vertical(step: int, **look: Any) -> dict[str, Any]:
    return {"type": "line", "xref": "x", "yref": "paper", "x0": step, "x1": step, "y0": 0, "y1": 1, **look}
