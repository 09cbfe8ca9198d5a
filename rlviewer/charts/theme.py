"""The one look of every figure. A colour is CSS, `var(--name)` or `light-dark(a, b)`; static/js/chart.js resolves it."""

from typing import Any

from rlviewer.lib.colour import RUN_COLOURS

SERIES_COLOURS = tuple(f"light-dark({light}, {dark})" for light, dark in RUN_COLOURS)
MUTED = "var(--muted)"
GRID = "var(--line)"
ALARM = "var(--red)"


def axis(title: str = "", **extra: Any) -> dict[str, Any]:
    return {
        "title": {"text": title, "standoff": 6},
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
        "xaxis": axis(x_title, rangemode="nonnegative", unifiedhovertitle={"text": f"{x_title} %{{x}}"}),
        "yaxis": axis(y_title),
        **extra,
    }
