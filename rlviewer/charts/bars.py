"""Bars over categories or steps, side by side or stacked, and histograms."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rlviewer.charts import theme
from rlviewer.charts.links import Links, linked
from rlviewer.charts.thinning import finite_or_none


@dataclass(frozen=True, slots=True)
class Bars:
    """One bar a category; None where there is no value."""

    name: str
    values: Sequence[float | None]
    links: Links = ""
    colour: str = ""  # the chart's next one
    errors: Sequence[tuple[float, float]] = field(default=())  # interval of each value: from, to


@dataclass(frozen=True, slots=True)
class BarChart:
    x_title: str
    unit: str
    categories: Sequence[str | int]
    series: Sequence[Bars]
    is_stacked: bool = False
    is_share: bool = False


def figure(chart: BarChart) -> dict[str, Any]:
    """Plotly figure of the bars. Categories that are whole numbers, as steps are, lie on an axis of numbers."""
    has_numbers = all(isinstance(category, int) for category in chart.categories)
    names: list[Any] = list(chart.categories) if has_numbers else [theme.plain(str(c)) for c in chart.categories]
    traces = [
        {
            "type": "bar",
            "name": theme.plain(bars.name),
            "x": names,
            "y": finite_or_none(bars.values),
            "marker": {"color": bars.colour or theme.colour_of(number)},
            "hovertemplate": _shown(chart.is_share, is_named=len(chart.series) > 1),
            **_error_bars(bars),
            **linked(bars.links),
        }
        for number, bars in enumerate(chart.series)
    ]
    layout = theme.layout(
        x_title=chart.x_title,
        y_title=chart.unit,
        barmode="stack" if chart.is_stacked else "group",
        bargap=0.15,
        showlegend=len(chart.series) > 1,
    )
    if not has_numbers:
        layout["xaxis"]["type"] = "category"
    if chart.is_share:
        layout["yaxis"]["tickformat"] = theme.SHARE_FORMAT
    return theme.figure(traces, layout, table=theme.BY_X, x=chart.x_title)


def _shown(is_share: bool, *, is_named: bool) -> str:
    name = "%{fullData.name}: " if is_named else ""
    return f"{name}%{{y:{theme.number_format(is_share)}}}<extra></extra>"


def _error_bars(bars: Bars) -> dict[str, Any]:
    if not bars.errors:
        return {}
    pairs = list(zip(bars.values, bars.errors, strict=True))
    return {
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": [None if value is None else high - value for value, (_, high) in pairs],
            "arrayminus": [None if value is None else value - low for value, (low, _) in pairs],
            "color": theme.MUTED,
            "thickness": 1,
            "width": 3,
        }
    }


@dataclass(frozen=True, slots=True)
class Counts:
    """How many fell into each bin."""

    name: str
    counts: Sequence[int]
    links: Links = ""
    colour: str = ""


@dataclass(frozen=True, slots=True)
class Histogram:
    """Bins between neighbouring `edges`: one more edge than bins."""

    x_title: str
    unit: str  # what is counted, such as "rollouts"
    edges: Sequence[float]
    series: Sequence[Counts]


def histogram(chart: Histogram) -> dict[str, Any]:
    """Plotly figure of the counts; several series lie over each other."""
    bins = list(zip(chart.edges, chart.edges[1:], strict=False))
    names = [f"{low:.4g} to {high:.4g}" for low, high in bins]
    traces = [
        {
            "type": "bar",
            "name": theme.plain(counts.name),
            "x": [(low + high) / 2 for low, high in bins],
            "width": [high - low for low, high in bins],
            "y": list(counts.counts),
            "text": names,
            "textposition": "none",
            "opacity": 0.6 if len(chart.series) > 1 else 1,
            "marker": {"color": counts.colour or theme.colour_of(number), "line": {"width": 0}},
            "hovertemplate": "%{fullData.name}, %{text}: %{y}" + f" {theme.plain(chart.unit)}<extra></extra>",
            **linked(counts.links),
        }
        for number, counts in enumerate(chart.series)
    ]
    layout = theme.layout(
        x_title=chart.x_title,
        y_title=chart.unit,
        barmode="overlay",
        bargap=0,
        hovermode="closest",
        showlegend=len(chart.series) > 1,
    )
    layout["xaxis"]["rangemode"] = "normal"
    return theme.figure(traces, layout, table=theme.BY_X, x=chart.x_title) | {"x_names": names}
