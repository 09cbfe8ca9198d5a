"""Points in a plane: one number against another."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rlviewer.charts import theme
from rlviewer.charts.links import Links, linked
from rlviewer.charts.thinning import finite_or_none


@dataclass(frozen=True, slots=True)
class Points:
    """`texts` name the points on hover and in the table."""

    name: str
    xs: Sequence[float | None]
    ys: Sequence[float | None]
    texts: Sequence[str] = field(default=())
    links: Links = ""
    colour: str = ""


@dataclass(frozen=True, slots=True)
class ScatterChart:
    x_title: str
    y_title: str
    series: Sequence[Points]
    has_diagonal: bool = False  # the line where both are equal
    x_is_share: bool = False
    y_is_share: bool = False


SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "cross", "star", "hexagon")


def figure(chart: ScatterChart) -> dict[str, Any]:
    """Plotly figure of the points; a series is told by its symbol too, not by colour alone."""
    traces = []
    for number, points in enumerate(chart.series):
        name = ("%{text}<br>" if points.texts else "") + ("%{fullData.name}<br>" if len(chart.series) > 1 else "")
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": theme.plain(points.name),
                "x": finite_or_none(points.xs),
                "y": finite_or_none(points.ys),
                "marker": {
                    "color": points.colour or theme.colour_of(number),
                    "symbol": SYMBOLS[number % len(SYMBOLS)],
                    "size": 7,
                    "opacity": 0.75,
                },
                "hovertemplate": (
                    f"{name}{theme.plain(chart.x_title)} %{{x:{theme.number_format(chart.x_is_share)}}}<br>"
                    f"{theme.plain(chart.y_title)} %{{y:{theme.number_format(chart.y_is_share)}}}<extra></extra>"
                ),
                **({"text": [theme.plain(text) for text in points.texts]} if points.texts else {}),
                **linked(points.links),
            }
        )
    layout = theme.layout(
        x_title=chart.x_title, y_title=chart.y_title, hovermode="closest", showlegend=len(chart.series) > 1
    )
    layout["xaxis"]["rangemode"] = "normal"
    if chart.x_is_share:
        layout["xaxis"]["tickformat"] = theme.SHARE_FORMAT
    if chart.y_is_share:
        layout["yaxis"]["tickformat"] = theme.SHARE_FORMAT
    if chart.has_diagonal:
        layout["shapes"] = [_diagonal(chart)]
    return theme.figure(traces, layout, table=theme.POINTS, x=chart.x_title, y=chart.y_title)


def _diagonal(chart: ScatterChart) -> dict[str, Any]:
    numbers = [v for points in chart.series for v in finite_or_none([*points.xs, *points.ys]) if v is not None]
    low, high = min(numbers, default=0), max(numbers, default=1)
    return {
        "type": "line",
        "layer": "below",
        "x0": low,
        "y0": low,
        "x1": high,
        "y1": high,
        "line": {"color": theme.MUTED, "width": 1, "dash": "dot"},
    }
