"""Worked examples by name: inputs and expected numbers computed outside this code."""

import json
from pathlib import Path
from typing import Any

CASES: dict[str, dict[str, Any]] = {
    case["id"]: case
    for case in json.loads((Path(__file__).parents[1] / "data" / "golden_vectors.json").read_text())["cases"]
}


def numbers(values: list[Any]) -> list[float]:
    """Strings such as "nan" stand for those floats."""
    return [float(value) for value in values]
