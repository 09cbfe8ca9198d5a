"""A metric against the step."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rlviewer.charts import theme
from rlviewer.charts.thinning import thin

MARK_TEXT_PIXELS = 14
SHARE_FORMAT = ".2~%"
FEW_STEPS = 8


@dataclass(frozen=True, slots=True)
class Curve:
    """One line. `superseded` points were replaced by a later attempt: drawn thin, kept out of the axis' way."""

    name: str
    steps: Sequence[int]
    values: Sequence[float]
    colour: str = theme.SERIES_COLOURS[0]
    superseded: bool = False
    markers: bool = False


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened at a step: a vertical line with its name, or a tick on the axis that tells it on hover."""

    step: int
    text: str


@dataclass(frozen=True, slots=True)
class CurveChart:
    """What one chart of curves shows."""

    unit: str
    curves: Sequence[Curve]
    marks: Sequence[Mark] = field(default=())
    ticks: Sequence[Mark] = field(default=())
    is_share: bool = False
    x_title: str = "step"


def figure(chart: CurveChart) -> dict[str, Any]:
    """Plotly figure of the chart: a gap where a value is not finite, and a mark that says which it is."""
    traces: list[dict[str, Any]] = []
    for curve in chart.curves:
        steps, values = thin(curve.steps, curve.values)
        traces.append(_line(curve, steps, values, labelled=len(chart.curves) > 1, is_share=chart.is_share))
        traces += _broken_marks(curve, steps, values)
    traces += _ticks(chart.ticks)
    last_step = max((max(curve.steps, default=0) for curve in chart.curves), default=0)
    has_marks = any("yaxis" in trace for trace in traces)
    shown = [c for c in chart.curves if not c.superseded]
    layout = theme.layout(
        x_title=chart.x_title,
        y_title=chart.unit,
        showlegend=len(shown) > 1,
        shapes=[_mark_line(mark) for mark in chart.marks],
        annotations=[_mark_text(mark, last_step) for mark in chart.marks],
    )
    if chart.marks:  # their names stand above the plot, the legend above them
        layout["margin"]["t"] += MARK_TEXT_PIXELS
        layout["legend"]["y"] = 1.12
    if last_step < FEW_STEPS:  # there is no half step
        layout["xaxis"]["dtick"] = 1
    layout["yaxis"] |= {"rangemode": "tozero"} if chart.is_share else {}
    if chart.is_share:
        layout["yaxis"]["tickformat"] = SHARE_FORMAT
    if has_marks:
        layout["yaxis2"] = {"overlaying": "y", "range": [0, 1], "visible": False, "fixedrange": True}
    return {"data": traces, "layout": layout}


def _line(curve: Curve, steps: list[int], values: list[float], *, labelled: bool, is_share: bool) -> dict[str, Any]:
    # A lone point, or one between two gaps, has no line to show it.
    markers = curve.markers or len(steps) <= 30
    # Hovering finds the nearest of few points: they say where they lie.
    place = ", step %{x}" if curve.markers else ""
    shown = f"%{{y:{SHARE_FORMAT if is_share else '.4~g'}}}"
    return {
        "type": "scatter",
        "mode": "lines+markers" if markers else "lines",
        "name": curve.name,
        "x": steps,
        "y": [value if math.isfinite(value) else None for value in values],
        "connectgaps": False,
        "cliponaxis": False,
        "zorder": int(curve.markers),  # the few points of evaluations lie above the rest
        "opacity": 0.5 if curve.superseded else 1,
        "line": {
            "color": theme.MUTED if curve.superseded else curve.colour,
            "width": 1 if curve.superseded else 1.75,
            "dash": "dot" if curve.superseded else "solid",
        },
        "marker": {"size": 5 if curve.markers else 4},
        "hovertemplate": f"{curve.name}{place}: {shown}<extra></extra>" if labelled else f"{shown}<extra></extra>",
        "showlegend": not curve.superseded,
    }


def _broken_marks(curve: Curve, steps: list[int], values: list[float]) -> list[dict[str, Any]]:
    """A cross at the foot for each NaN, a triangle at the edge for each infinity."""
    broken = [(step, value) for step, value in zip(steps, values, strict=True) if not math.isfinite(value)]
    if not broken:
        return []
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "name": f"{curve.name}, not finite",
            "yaxis": "y2",
            "x": [step for step, _ in broken],
            "y": [0.98 if value == math.inf else 0.02 for _, value in broken],
            "text": [_name_of(value) for _, value in broken],
            "marker": {"color": theme.ALARM, "size": 8, "symbol": [_symbol_of(value) for _, value in broken]},
            "hovertemplate": f"{curve.name}: %{{text}}<extra></extra>",
            "showlegend": False,
        }
    ]


def _ticks(ticks: Sequence[Mark]) -> list[dict[str, Any]]:
    """Small triangles on the axis of steps."""
    if not ticks:
        return []
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "name": "events",
            "yaxis": "y2",
            "x": [tick.step for tick in ticks],
            "y": [0.02] * len(ticks),
            "text": [tick.text for tick in ticks],
            "cliponaxis": False,
            "marker": {"color": theme.MUTED, "size": 6, "symbol": "triangle-up"},
            "hovertemplate": "%{text}, step %{x}<extra></extra>",
            "showlegend": False,
        }
    ]


def _name_of(value: float) -> str:
    return "NaN" if math.isnan(value) else ("infinite" if value > 0 else "minus infinite")


def _symbol_of(value: float) -> str:
    return "x-thin-open" if math.isnan(value) else ("triangle-up" if value > 0 else "triangle-down")


def _mark_line(mark: Mark) -> dict[str, Any]:
    return {
        "type": "line",
        "xref": "x",
        "yref": "paper",
        "x0": mark.step,
        "x1": mark.step,
        "y0": 0,
        "y1": 1,
        "line": {"color": theme.MUTED, "width": 1, "dash": "dot"},
    }


def _mark_text(mark: Mark, last_step: int) -> dict[str, Any]:
    """Above the plot, on the side of the line that has room."""
    return {
        "xref": "x",
        "yref": "paper",
        "x": mark.step,
        "y": 1,
        "xanchor": "left" if 2 * mark.step <= last_step else "right",
        "yanchor": "bottom",
        "text": mark.text,
        "showarrow": False,
        "font": {"size": 10, "color": theme.MUTED},
    }
