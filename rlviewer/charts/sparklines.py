"""A line of a few pixels beside a number: an SVG path, no script and no library."""

import math
from collections.abc import Sequence

from rlviewer.charts.thinning import thin

WIDTH, HEIGHT, INSET = 96, 24, 2


def path(values: Sequence[float], *, limit: int = 120) -> str:
    """`d` of a path in a box of WIDTH x HEIGHT, with a gap where a value is not finite; empty without a finite value."""
    places, kept = thin(range(len(values)), values, limit=limit)
    finite = [value for value in kept if math.isfinite(value)]
    if not finite:
        return ""
    low, span = min(finite), max(finite) - min(finite)
    across = max(1, len(values) - 1)
    parts: list[str] = []
    command = "M"
    for place, value in zip(places, kept, strict=True):
        if not math.isfinite(value):
            command = "M"
            continue
        x = INSET + (WIDTH - 2 * INSET) * place / across
        y = HEIGHT - INSET - (HEIGHT - 2 * INSET) * ((value - low) / span if span else 0.5)
        # A line of no length is what makes a round cap draw a lone point.
        parts.append(f"{command}{x:.1f},{y:.1f}" + ("h0" if command == "M" else ""))
        command = "L"
    return "".join(parts)
