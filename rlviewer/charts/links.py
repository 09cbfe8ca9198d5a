"""Where a mark of a chart leads: chart.js follows it on a click and on Enter, and makes it a link in the chart's table."""

from collections.abc import Sequence
from typing import Any

# One address for all, with `{x}` and `{y}` where the point's own place belongs; or one for each point, None where nothing is.
Links = str | Sequence[str | None]


def linked(links: str | Sequence[Any]) -> dict[str, Any]:
    """What a trace says of where its points lead; a heat map has a row of links for each row of cells."""
    if isinstance(links, str):
        return {"meta": {"href": links}} if links else {}
    return {"customdata": list(links)}
