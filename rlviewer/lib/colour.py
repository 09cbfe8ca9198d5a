"""Colours that carry meaning: 64 buckets of a signed and of a sequential scale, and one fixed colour a run.

`static/css/scales.css` is `scales_css()` written down (`python -m rlviewer.lib.colour` rewrites it). Each bucket has a light and
a dark colour on which the text of that mode reads well.
"""

import math
from pathlib import Path

BUCKETS = 64
# Okabe and Ito's list, darkened or lightened until each reads on its mode's background.
RUN_COLOURS = (
    ("#0072b2", "#56a8e0"),
    ("#b35900", "#f0a04b"),
    ("#00795a", "#3fc59d"),
    ("#a3397d", "#e08fc4"),
    ("#6f6200", "#d9c93f"),
    ("#b3261e", "#ff8a80"),
    ("#5b4bb5", "#a99cf5"),
    ("#51606f", "#a8b4c0"),
)
Rgb = tuple[int, int, int]
# Light and dark: the neutral middle, the strongest positive (blue), negative (orange) and sequential (green) colour.
NEUTRAL: tuple[Rgb, Rgb] = ((255, 255, 255), (22, 26, 33))
POSITIVE: tuple[Rgb, Rgb] = ((104, 164, 247), (26, 83, 165))
NEGATIVE: tuple[Rgb, Rgb] = ((245, 160, 78), (143, 70, 6))
SEQUENTIAL: tuple[Rgb, Rgb] = ((84, 190, 150), (6, 104, 74))


def run_colour(run_id: int) -> str:
    """The run's own colour as CSS, the same in every list, chip, sparkline and chart."""
    light, dark = RUN_COLOURS[run_id % len(RUN_COLOURS)]
    return f"light-dark({light}, {dark})"


def run_colour_class(run_id: int) -> str:
    """The class that sets `--run` to that colour."""
    return f"run-colour-{run_id % len(RUN_COLOURS)}"


def _mixed(start: Rgb, end: Rgb, share: float) -> Rgb:
    # A square root lets small values show: most advantages and gaps are far from the extremes.
    amount = math.sqrt(share)
    red, green, blue = (round(a + (b - a) * amount) for a, b in zip(start, end, strict=True))
    return red, green, blue


def bucket_colours(name: str, index: int) -> tuple[Rgb, Rgb]:
    """Light and dark colour of bucket `index` of the scale "sg" (signed) or "sq" (sequential)."""
    if name == "sg":
        middle = BUCKETS // 2
        ends, share = (POSITIVE if index > middle else NEGATIVE), abs(index - middle) / (middle - 1)
    else:
        ends, share = SEQUENTIAL, index / (BUCKETS - 1)
    light, dark = (_mixed(NEUTRAL[mode], ends[mode], min(1.0, share)) for mode in (0, 1))
    return light, dark


def scales_css() -> str:
    """The stylesheet of both scales and the runs' colours."""
    lines = ["/* Written by rlviewer/lib/colour.py. */"]
    for name in ("sg", "sq"):
        for index in range(BUCKETS):
            light, dark = ("#" + bytes(colour).hex() for colour in bucket_colours(name, index))
            lines.append(f".{name}{index} {{ background-color: light-dark({light}, {dark}) }}")
    for index in range(len(RUN_COLOURS)):
        lines.append(f".{run_colour_class(index)} {{ --run: {run_colour(index)} }}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    (Path(__file__).parents[2] / "static" / "css" / "scales.css").write_text(scales_css())
