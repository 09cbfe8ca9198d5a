"""The one look of every figure. A colour is CSS, `var(--name)` or `light-dark(a, b)`; static/js/chart.js resolves it."""

from collections.abc import Sequence
from html import escape
from typing import Any

from rlviewer.lib.colour import NEGATIVE, NEUTRAL, POSITIVE, RUN_COLOURS, SEQUENTIAL, Rgb, run_colour

SERIES_COLOURS = tuple(map(run_colour, range(len(RUN_COLOURS))))
MUTED = "var(--muted)"
GRID = "var(--line)"
ALARM = "var(--red)"
SHARE_FORMAT = ".2~%"
NUMBER_FORMAT = ".4~g"
# Which table a figure has: a row an x; a row an x and a column a y; a row a point.
BY_X, MATRIX, POINTS = "x", "matrix", "points"


def _css(pair: tuple[Rgb, Rgb]) -> str:
    light, dark = ("#" + bytes(colour).hex() for colour in pair)
    return f"light-dark({light}, {dark})"


SIGNED_SCALE = [[0, _css(NEGATIVE)], [0.5, _css(NEUTRAL)], [1, _css(POSITIVE)]]
SEQUENTIAL_SCALE = [[0, _css(NEUTRAL)], [1, _css(SEQUENTIAL)]]


def plain(text: str) -> str:
    """Text as plotly shows it: it takes its texts for HTML."""
    return escape(text, quote=False)


def colour_of(number: int) -> str:
    """Colour of the series of that place in a chart whose series are no runs."""
    return SERIES_COLOURS[number % len(SERIES_COLOURS)]


def number_format(is_share: bool) -> str:
    return SHARE_FORMAT if is_share else NUMBER_FORMAT


def axis(title: str = "", **extra: Any) -> dict[str, Any]:
    return {
        "title": {"text": plain(title), "standoff": 6},
        "gridcolor": GRID,
        "linecolor": GRID,
        "zeroline": False,
        "automargin": True,
        "layer": "below traces",  # the axis would cut the markers of its own first step in half
        "exponentformat": "e",  # 8e-13, not 800f
        "tickfont": {"size": 11, "color": MUTED},
        **extra,
    }


def layout(*, x_title: str, y_title: str, **extra: Any) -> dict[str, Any]:
    """Layout of a chart whose title stands above it in the page."""
    return {
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, sans-serif", "size": 11, "color": "var(--text)"},
        "margin": {"l": 52, "r": 16, "t": 8, "b": 40},
        "hovermode": "x unified",
        "hoverdistance": 10,  # pixels
        "hoverlabel": {"bgcolor": "var(--raised)", "bordercolor": GRID, "font": {"size": 12}},
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "font": {"size": 11}},
        "dragmode": "zoom",
        # Keeps zoom and hidden traces over a refresh.
        "uirevision": "keep",
        "xaxis": axis(x_title, rangemode="nonnegative", unifiedhovertitle={"text": f"{plain(x_title)} %{{x}}"}),
        "yaxis": axis(y_title),
        **extra,
    }


def figure(
    traces: Sequence[dict[str, Any]], layout: dict[str, Any], *, table: str, x: str, y: str = ""
) -> dict[str, Any]:
    """A figure, and how chart.js makes the same numbers a table: its kind and what its axes are called there."""
    return {"data": list(traces), "layout": layout, "table": {"kind": table, "x": x, "y": y}}
