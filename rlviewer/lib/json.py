"""One strict JSON writer: every answer parses in a strict parser."""

import json
from typing import Any


def strict_json(value: Any) -> Any:
    """`value` with NaN and infinities as the strings "NaN", "Infinity", "-Infinity": JSON has no numbers for them."""
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return "NaN" if value != value else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, dict):
        return {str(key): strict_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict_json(item) for item in value]
    return value


def dumps(value: Any) -> str:
    """Strict JSON text; non-finite floats become the strings of `strict_json`."""
    return json.dumps(strict_json(value), allow_nan=False, ensure_ascii=False, separators=(",", ":"))
