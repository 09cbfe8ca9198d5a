"""A value for each of two things, as colour."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rlviewer.charts import theme
from rlviewer.charts.links import linked
from rlviewer.charts.thinning import finite_or_none

# Where the scale's white lies: so far below the lowest value, as a share of the values' range.
FAINTEST = 0.2


@dataclass(frozen=True, slots=True)
class HeatMap:
    """`values[y][x]`, None where there is none; `links` likewise, or one address with `{x}` and `{y}`."""

    x_title: str
    y_title: str
    unit: str
    xs: Sequence[str | int]
    ys: Sequence[str | int]
    values: Sequence[Sequence[float | None]]
    links: str | Sequence[Sequence[str | None]] = ""
    is_signed: bool = False  # then white lies at zero, and both ends are equally far
    is_share: bool = False


def figure(chart: HeatMap) -> dict[str, Any]:
    """Plotly figure of the cells; a cell without a value stays empty."""
    rows = [finite_or_none(row) for row in chart.values]
    shown = theme.number_format(chart.is_share)
    trace = {
        "type": "heatmap",
        "name": theme.plain(chart.unit),
        "x": _names(chart.xs),
        "y": _names(chart.ys),
        "z": rows,
        "colorscale": theme.SIGNED_SCALE if chart.is_signed else theme.SEQUENTIAL_SCALE,
        "xgap": 1 if len(chart.xs) <= 100 else 0,
        "ygap": 1,
        "hoverongaps": False,
        "colorbar": {
            "title": {"text": theme.plain(chart.unit), "side": "right", "font": {"size": 11}},
            "thickness": 10,
            "outlinewidth": 0,
            "tickformat": theme.SHARE_FORMAT if chart.is_share else "",
            "tickfont": {"size": 11, "color": theme.MUTED},
        },
        "hovertemplate": (
            f"{theme.plain(chart.x_title)} %{{x}}<br>{theme.plain(chart.y_title)} %{{y}}<br>"
            f"{theme.plain(chart.unit)} %{{z:{shown}}}<extra></extra>"
        ),
        **linked(chart.links),
    }
    trace |= _reach(rows, is_signed=chart.is_signed, is_share=chart.is_share)
    layout = theme.layout(x_title=chart.x_title, y_title=chart.y_title, hovermode="closest")
    layout["xaxis"] |= {"showgrid": False, "rangemode": "normal", "type": _kind(chart.xs)}
    layout["yaxis"] |= {"showgrid": False, "autorange": "reversed", "type": _kind(chart.ys)}
    return theme.figure([trace], layout, table=theme.MATRIX, x=chart.x_title, y=chart.y_title)


def _names(places: Sequence[str | int]) -> list[str | int]:
    return [place if isinstance(place, int) else theme.plain(place) for place in places]


def _kind(places: Sequence[str | int]) -> str:
    return "linear" if all(isinstance(place, int) for place in places) else "category"


def _reach(rows: Sequence[Sequence[float | None]], *, is_signed: bool, is_share: bool) -> dict[str, float]:
    """Values at the scale's ends."""
    known = [value for row in rows for value in row if value is not None]
    if is_share:
        return {"zmin": -1 if is_signed else 0, "zmax": 1}
    if is_signed:
        largest = max(map(abs, known), default=0) or 1
        return {"zmin": -largest, "zmax": largest}
    low, high = min(known, default=0), max(known, default=1)
    # The lowest value has a colour too: white is for what is not there.
    return {"zmin": low - FAINTEST * ((high - low) or 1), "zmax": high}
