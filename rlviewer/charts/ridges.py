"""Distributions one behind the other, such as one a step."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rlviewer.charts import theme
from rlviewer.charts.links import Links, linked

OVERLAP = 1.6  # the highest peak reaches over its neighbour


@dataclass(frozen=True, slots=True)
class Ridge:
    """How many fell into each bin, of one step."""

    name: str
    counts: Sequence[int]
    links: Links = ""


@dataclass(frozen=True, slots=True)
class RidgeChart:
    """Ridges from the oldest, at the back, to the newest, over bins between neighbouring `edges`."""

    x_title: str
    unit: str  # what is counted
    edges: Sequence[float]
    ridges: Sequence[Ridge]
    colour: str = theme.SERIES_COLOURS[0]


def figure(chart: RidgeChart) -> dict[str, Any]:
    """Plotly figure of the ridges: heights are shares of the ridge's own total, so that steps of any size compare."""
    middles = [(low + high) / 2 for low, high in zip(chart.edges, chart.edges[1:], strict=False)]
    shares = [[count / (sum(ridge.counts) or 1) for count in ridge.counts] for ridge in chart.ridges]
    peak = max((share for row in shares for share in row), default=0) or 1
    count = len(chart.ridges)
    traces: list[dict[str, Any]] = []
    for number, (ridge, row) in enumerate(zip(chart.ridges, shares, strict=True)):
        foot = count - 1 - number
        traces.append(_floor(middles, foot))
        meta = {"values": list(ridge.counts)} | linked(ridge.links).get("meta", {})
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": theme.plain(ridge.name),
                "x": middles,
                "y": [foot + OVERLAP * share / peak for share in row],
                "text": [f"{n} of {sum(ridge.counts)} {theme.plain(chart.unit)}" for n in ridge.counts],
                "line": {"color": chart.colour, "width": 1.25, "shape": "hvh"},
                "fill": "tonexty",
                "fillcolor": f"color-mix(in srgb, {chart.colour} 25%, var(--page))",
                "hovertemplate": f"%{{fullData.name}}, {theme.plain(chart.x_title)} about %{{x:.4~g}}: %{{text}}<extra></extra>",
                "showlegend": False,
                **linked(ridge.links),
                "meta": meta,
            }
        )
    layout = theme.layout(x_title=chart.x_title, y_title="", hovermode="closest", showlegend=False)
    layout["xaxis"]["rangemode"] = "normal"
    layout["yaxis"] |= {
        "tickmode": "array",
        "tickvals": [count - 1 - number for number in range(count)],
        "ticktext": [theme.plain(ridge.name) for ridge in chart.ridges],
    }
    return theme.figure(traces, layout, table=theme.BY_X, x=chart.x_title)


def _floor(middles: Sequence[float], foot: int) -> dict[str, Any]:
    """What the next ridge is filled down to."""
    return {
        "type": "scatter",
        "mode": "lines",
        "x": list(middles),
        "y": [foot] * len(middles),
        "line": {"width": 0},
        "hoverinfo": "skip",
        "showlegend": False,
        "meta": {"skip": True},
    }
