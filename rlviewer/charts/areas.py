"""Shares or amounts of a whole, stacked over the steps."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from rlviewer.charts import theme
from rlviewer.charts.links import Links, linked
from rlviewer.charts.thinning import LIMIT, finite_or_none, kept


@dataclass(frozen=True, slots=True)
class Area:
    """One part of the whole; None at a step that stored nothing."""

    name: str
    values: Sequence[float | None]
    links: Links = ""
    colour: str = ""


@dataclass(frozen=True, slots=True)
class AreaChart:
    """`steps` in order, the first part of `areas` at the bottom."""

    unit: str
    steps: Sequence[int]
    areas: Sequence[Area]
    is_share: bool = False
    x_title: str = "step"


def figure(chart: AreaChart) -> dict[str, Any]:
    """Plotly figure of the stack. A step at which no part has a value parts the areas: nothing is drawn over it."""
    columns = [finite_or_none(area.values) for area in chart.areas]
    places = _kept_places(chart.steps, columns)
    stretches = [list(group) for known, group in groupby(places, lambda at: _is_known(columns, at)) if known]
    traces = [
        _trace(chart, number, columns[number], stretch, stack)
        for stack, stretch in enumerate(stretches)
        for number in range(len(chart.areas))
    ]
    layout = theme.layout(x_title=chart.x_title, y_title=chart.unit, showlegend=len(chart.areas) > 1)
    layout["legend"]["traceorder"] = "normal"
    layout["yaxis"]["rangemode"] = "tozero"
    if chart.is_share:
        layout["yaxis"]["tickformat"] = theme.SHARE_FORMAT
    return theme.figure(traces, layout, table=theme.BY_X, x=chart.x_title)


def _is_known(columns: Sequence[Sequence[float | None]], at: int) -> bool:
    return any(column[at] is not None for column in columns)


def _kept_places(steps: Sequence[int], columns: Sequence[Sequence[float | None]]) -> list[int]:
    """Every part's extremes, and all of a step that one part keeps."""
    if len(steps) <= LIMIT or not columns:
        return list(range(len(steps)))
    limit = max(100, LIMIT // len(columns))
    numbers = ([float("nan") if value is None else value for value in column] for column in columns)
    return sorted({place for column in numbers for place in kept(steps, column, limit=limit)})


def _trace(
    chart: AreaChart, number: int, values: Sequence[float | None], stretch: Sequence[int], stack: int
) -> dict[str, Any]:
    area = chart.areas[number]
    colour = area.colour or theme.colour_of(number)
    links = area.links if isinstance(area.links, str) else [area.links[at] for at in stretch]
    return {
        "type": "scatter",
        "mode": "lines+markers" if len(stretch) == 1 else "lines",  # a lone step has no area to show it
        "name": theme.plain(area.name),
        "legendgroup": str(number),
        "showlegend": stack == 0,
        "stackgroup": str(stack),
        "x": [chart.steps[at] for at in stretch],
        "y": [values[at] for at in stretch],
        "line": {"color": colour, "width": 0.75},
        "fillcolor": colour,
        "hovertemplate": f"%{{fullData.name}}: %{{y:{theme.number_format(chart.is_share)}}}<extra></extra>",
        **linked(links),
    }
