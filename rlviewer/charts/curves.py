"""A metric against the step."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from rlviewer.charts import theme
from rlviewer.charts.links import Links, linked
from rlviewer.charts.thinning import LIMIT, finite_or_none, kept

MARK_TEXT_PIXELS = 14
FEW_STEPS = 8
FEWEST_POINTS = 120  # of one curve among many
DASHES = ("solid", "dash", "dashdot")


@dataclass(frozen=True, slots=True)
class Curve:
    """One line. `superseded` points were replaced by a later attempt: drawn thin, kept out of the axis' way."""

    name: str
    steps: Sequence[int]
    values: Sequence[float | None]  # None: there is nothing, a gap; NaN: it was recorded so, and is marked
    colour: str = theme.SERIES_COLOURS[0]
    superseded: bool = False
    markers: bool = False
    dash: str = DASHES[0]
    links: Links = ""
    counts: Sequence[int] = field(default=())  # of how many each value is, told on hover
    counted: str = "rollouts"


@dataclass(frozen=True, slots=True)
class Band:
    """An interval around a curve. `name` says which, such as "95 % over 5 seeds"; None where there is none."""

    name: str
    steps: Sequence[int]
    low: Sequence[float | None]
    high: Sequence[float | None]
    colour: str = theme.SERIES_COLOURS[0]
    in_legend: bool = True


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
    bands: Sequence[Band] = field(default=())
    point_limit: int = LIMIT  # of all curves together


def figure(chart: CurveChart) -> dict[str, Any]:
    """Plotly figure of the chart: a gap where a value is not finite, and a mark that says which it is.

    Where a curve has more points than are drawn, `is_thinned` is true: a zoom then deserves the rest.
    """
    traces = [trace for band in chart.bands for trace in _band(band, chart.is_share)]
    limit = max(FEWEST_POINTS, chart.point_limit // max(1, len(chart.curves)))
    is_thinned = False
    for curve in chart.curves:
        places = kept(curve.steps, curve.values, limit=limit)
        is_thinned |= len(places) < len(curve.steps)
        traces.append(_line(curve, places, labelled=len(chart.curves) > 1, is_share=chart.is_share))
        traces += _broken_marks(curve, places)
    traces += _ticks(chart.ticks)
    last_step = max((max(curve.steps, default=0) for curve in chart.curves), default=0)
    has_marks = any("yaxis" in trace for trace in traces)
    shown = [c for c in chart.curves if not c.superseded]
    layout = theme.layout(
        x_title=chart.x_title,
        y_title=chart.unit,
        showlegend=len(shown) > 1 or bool(chart.bands),
        shapes=[_mark_line(mark) for mark in chart.marks],
        annotations=[_mark_text(mark, last_step) for mark in chart.marks],
    )
    if chart.marks:  # their names stand above the plot, the legend above them
        layout["margin"]["t"] += MARK_TEXT_PIXELS
        layout["legend"]["y"] = 1.12
    if last_step < FEW_STEPS:  # there is no half step
        layout["xaxis"] |= {"tickmode": "array", "tickvals": list(range(last_step + 1))}
    layout["yaxis"] |= {"rangemode": "tozero"} if chart.is_share else {}
    if chart.is_share:
        layout["yaxis"]["tickformat"] = theme.SHARE_FORMAT
    if has_marks:
        layout["yaxis2"] = {"overlaying": "y", "range": [0, 1], "visible": False, "fixedrange": True}
    return theme.figure(traces, layout, table=theme.BY_X, x=chart.x_title) | {"is_thinned": is_thinned}


def _line(curve: Curve, places: list[int], *, labelled: bool, is_share: bool) -> dict[str, Any]:
    # A lone point, or one between two gaps, has no line to show it.
    markers = curve.markers or len(places) <= 30
    # Hovering finds the nearest of few points: they say where they lie.
    place = ", step %{x}" if curve.markers else ""
    shown = f"%{{y:{theme.number_format(is_share)}}}{_counted(curve)}<extra></extra>"
    links = curve.links if isinstance(curve.links, str) else [curve.links[at] for at in places]
    return {
        "type": "scatter",
        "mode": "lines+markers" if markers else "lines",
        "name": theme.plain(curve.name),
        "x": [curve.steps[at] for at in places],
        "y": finite_or_none([curve.values[at] for at in places]),
        "connectgaps": False,
        "cliponaxis": False,
        "zorder": int(curve.markers),  # the few points of evaluations lie above the rest
        "opacity": 0.5 if curve.superseded else 1,
        "line": {
            "color": theme.MUTED if curve.superseded else curve.colour,
            "width": 1 if curve.superseded else 1.75,
            "dash": "dot" if curve.superseded else curve.dash,
        },
        "marker": {"size": 5 if curve.markers else 4},
        "hovertemplate": f"%{{fullData.name}}{place}: {shown}" if labelled else shown,
        "showlegend": not curve.superseded,
        **({"text": [f"{curve.counts[at]:,}" for at in places]} if len(set(curve.counts)) > 1 else {}),
        **linked(links),
    }


def _counted(curve: Curve) -> str:
    """How many rollouts a value is the mean of; written once where it is always the same."""
    different = set(curve.counts)
    if not different:
        return ""
    number = f"{different.pop():,}" if len(different) == 1 else "%{text}"
    return f" (n = {number} {theme.plain(curve.counted)})"


def _band(band: Band, is_share: bool) -> list[dict[str, Any]]:
    """The filled interval, parted where it has a gap, and its two edges."""
    low, high = finite_or_none(band.low), finite_or_none(band.high)
    stretches = [
        list(group) for known, group in groupby(range(len(low)), lambda at: None not in (low[at], high[at])) if known
    ]
    xs: list[int | None] = []
    ys: list[float | None] = []
    for stretch in stretches:
        back = stretch[::-1]
        xs += [*(band.steps[at] for at in (*stretch, *back)), None]
        ys += [*(high[at] for at in stretch), *(low[at] for at in back), None]
    name = theme.plain(band.name)
    edge = {"type": "scatter", "mode": "lines", "x": list(band.steps), "legendgroup": name, "showlegend": False}
    shown = f"%{{fullData.name}}: %{{y:{theme.number_format(is_share)}}}<extra></extra>"
    line = {"color": band.colour, "width": 0.5}
    return [
        {
            "type": "scatter",
            "mode": "none",
            "name": name,
            "x": xs,
            "y": ys,
            "fill": "toself",
            "fillcolor": band.colour,
            "opacity": 0.2,
            "hoverinfo": "skip",
            "legendgroup": name,
            "showlegend": band.in_legend,
            "meta": {"skip": True},
        },
        edge | {"name": f"{name}, lower", "y": low, "line": line, "hovertemplate": shown},
        edge | {"name": f"{name}, upper", "y": high, "line": line, "hovertemplate": shown},
    ]


def _broken_marks(curve: Curve, places: list[int]) -> list[dict[str, Any]]:
    """A cross at the foot for each NaN, a triangle at the edge for each infinity."""
    held = ((curve.steps[at], curve.values[at]) for at in places)
    broken = [(step, value) for step, value in held if value is not None and not math.isfinite(value)]
    if not broken:
        return []
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "name": f"{theme.plain(curve.name)}, not finite",
            "meta": {"of": theme.plain(curve.name)},
            "yaxis": "y2",
            "x": [step for step, _ in broken],
            "y": [0.98 if value == math.inf else 0.02 for _, value in broken],
            "text": [_name_of(value) for _, value in broken],
            "marker": {"color": theme.ALARM, "size": 8, "symbol": [_symbol_of(value) for _, value in broken]},
            "hovertemplate": f"{theme.plain(curve.name)}: %{{text}}<extra></extra>",
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
            "meta": {"skip": True},
            "yaxis": "y2",
            "x": [tick.step for tick in ticks],
            "y": [0.02] * len(ticks),
            "text": [theme.plain(tick.text) for tick in ticks],
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
        "text": theme.plain(mark.text),
        "showarrow": False,
        "font": {"size": 10, "color": theme.MUTED},
    }
