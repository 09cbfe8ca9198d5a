"""Reads out of a page's HTML what its charts are given to draw."""

import json
import re
from typing import Any

CHART = re.compile(r'data-figure="([^"]+)".*?class="chart-json" hidden>([^<]*)<', re.DOTALL)


def figures(page: str) -> dict[str, Any]:
    """Each figure by its key; what is not strict JSON fails."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return {key: json.loads(text, parse_constant=refuse) for key, text in CHART.findall(page)}
