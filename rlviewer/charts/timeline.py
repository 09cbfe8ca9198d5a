"""Every rollout of one prompt in one run as a dot: its reward or length against the step, coloured by its advantage."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rlviewer.charts import theme
from rlviewer.charts.curves import Mark
from rlviewer.charts.scatter import Points, ScatterChart, figure

# The dots of a step lie side by side within this share of a step's width.
SPREAD = 0.7
# By how far the advantage reaches: more than half of the largest one, less, none.
STRONG_UP, UP, NONE, DOWN, STRONG_DOWN, UNKNOWN = range(6)
COLOURS = {
    STRONG_UP: "light-dark(#174ea6, #9cc3ff)",
    UP: "light-dark(#6f9fe8, #4c7cc4)",
    NONE: "var(--muted)",
    DOWN: "light-dark(#d98a3d, #b06a24)",
    STRONG_DOWN: "light-dark(#934500, #f5b070)",
    UNKNOWN: "var(--line-strong)",
}
SYMBOLS = {
    STRONG_UP: "triangle-up",
    UP: "triangle-up-open",
    NONE: "circle-open",
    DOWN: "triangle-down-open",
    STRONG_DOWN: "triangle-down",
    UNKNOWN: "x-thin-open",
}
# The same in a page's own legend.
SIGNS = {STRONG_UP: "▲", UP: "△", NONE: "○", DOWN: "▽", STRONG_DOWN: "▼", UNKNOWN: "×"}


@dataclass(frozen=True, slots=True)
class Dot:
    """`text` names it on hover and in the table."""

    step: int
    value: float | None
    advantage: float | None
    text: str
    href: str


def timeline(
    dots: Sequence[Dot], marks: Sequence[Mark], *, y_title: str, steps: tuple[int, int], largest: float
) -> dict[str, Any]:
    """Plotly figure of the dots between the steps, with a line at each mark; a value that is not finite has no dot.

    `largest` is the largest absolute advantage of the page, so that equal colours mean the same in all its charts.
    """
    places = _side_by_side(dots)
    by_level: dict[int, list[tuple[Dot, float]]] = {}
    for dot, place in zip(dots, places, strict=True):
        by_level.setdefault(level(dot.advantage, largest), []).append((dot, place))
    series = [
        Points(
            name_of(number, largest),
            [place for _, place in found],
            [dot.value for dot, _ in found],
            [dot.text for dot, _ in found],
            [dot.href for dot, _ in found],
            COLOURS[number],
        )
        for number, found in sorted(by_level.items())
    ]
    made = figure(ScatterChart("step", y_title, series))
    for trace, number in zip(made["data"], sorted(by_level), strict=True):
        trace["marker"] |= {"symbol": SYMBOLS[number], "size": 8, "opacity": 0.9}
        trace["hovertemplate"] = "%{text}<extra></extra>"
        trace["meta"] = {"xs": [dot.step for dot, _ in by_level[number]]}
    layout = made["layout"]
    layout["showlegend"] = False  # one for all charts of the page stands above them
    layout["xaxis"] |= {"range": [steps[0] - 0.5, steps[1] + 0.5], "autorange": False}
    layout["shapes"] = [_line(mark) for mark in marks]
    if steps[1] - steps[0] < 10:
        layout["xaxis"]["tickvals"] = list(range(steps[0], steps[1] + 1))
    return made


def level(advantage: float | None, largest: float) -> int:
    """Which way the update pushed the rollout, and whether by more than half of the largest advantage."""
    if advantage is None or not math.isfinite(advantage):
        return UNKNOWN
    if advantage == 0:
        return NONE
    is_strong = abs(advantage) > largest / 2
    return (STRONG_UP if is_strong else UP) if advantage > 0 else (STRONG_DOWN if is_strong else DOWN)


def name_of(number: int, largest: float) -> str:
    """What the colour says."""
    shown = f"{largest / 2:.2g}"
    return {
        STRONG_UP: f"advantage above +{shown}",
        UP: "advantage above 0",
        NONE: "advantage 0",
        DOWN: "advantage below 0",
        STRONG_DOWN: f"advantage below \u2212{shown}",
        UNKNOWN: "no advantage",
    }[number]


def _side_by_side(dots: Sequence[Dot]) -> list[float]:
    """Where each dot lies: those of a step in their order around it, so that equal values do not hide each other."""
    counts = Counter(dot.step for dot in dots)
    seen: Counter[int] = Counter()
    places = []
    for dot in dots:
        place = (seen[dot.step] + 0.5) / counts[dot.step] - 0.5
        seen[dot.step] += 1
        places.append(dot.step + SPREAD * place)
    return places


def _line(mark: Mark) -> dict[str, Any]:
    return {
        "type": "line",
        "layer": "below",
        "x0": mark.step,
        "x1": mark.step,
        "yref": "paper",
        "y0": 0,
        "y1": 1,
        "line": {"color": theme.MUTED, "width": 1, "dash": "dot"},
        "label": {
            "text": theme.plain(mark.text),
            "textangle": 0,
            "textposition": "middle",
            "xanchor": "left",
            "padding": 4,
            "font": {"size": 10, "color": theme.MUTED},
        },
    }
