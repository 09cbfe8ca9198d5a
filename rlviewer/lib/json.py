"""One strict JSON writer, so that every answer parses in a strict parser, and one strict reader."""

import json
from typing import Any

from pydantic_core import to_json

from rlviewer.lib.text import bytes_from_str, text_from_bytes


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


def encoded(value: Any) -> bytes:
    """The same of an answer, many times as fast; also takes times and UUIDs."""
    return to_json(value, inf_nan_mode="strings")


class JsonError(ValueError):
    """Text that is not strict JSON, or more of it than we take."""


MAX_JSON_CHARS = 1_000_000
MAX_JSON_DEPTH = 50
MAX_JSON_DIGITS = 300


def loads(text: str | bytes) -> Any:
    """Read strict JSON that Postgres can keep: no NaN, no doubled keys, bounded size, depth and digits.

    NUL and lone surrogates inside strings come back escaped by `lib.text`, so that jsonb and browsers accept them.

    Raises:
        JsonError: says what was found.
    """
    if len(text) > MAX_JSON_CHARS:
        raise JsonError(f"JSON of {len(text)} characters; the limit is {MAX_JSON_CHARS}")
    try:
        value = json.loads(
            text, object_pairs_hook=_object, parse_constant=_constant, parse_float=_float, parse_int=_int
        )
    except JsonError:
        raise
    except RecursionError:
        raise JsonError(f"JSON nested deeper than {MAX_JSON_DEPTH}") from None
    except ValueError as error:
        raise JsonError(f"not JSON: {error}") from error
    return storable(value)


def storable(value: Any) -> Any:
    """`value` as jsonb and browsers accept it: NUL and lone surrogates in strings are escaped by `lib.text`.

    Raises:
        JsonError: nested too deep.
    """
    return _storable(value, 0)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise JsonError("a key appears twice in one object")
    return made


def _constant(name: str) -> Any:
    raise JsonError(f"{name} is not JSON; write it as a string or null")


def _float(digits: str) -> float:
    number = float(digits)
    if len(digits) > MAX_JSON_DIGITS or number in (float("inf"), float("-inf")):
        raise JsonError(f"number {digits[:20]}... is out of range")
    return number


def _int(digits: str) -> int:
    if len(digits) > MAX_JSON_DIGITS:
        raise JsonError(f"number of {len(digits)} digits; the limit is {MAX_JSON_DIGITS}")
    return int(digits)


def _storable(value: Any, depth: int) -> Any:
    if depth > MAX_JSON_DEPTH:
        raise JsonError(f"JSON nested deeper than {MAX_JSON_DEPTH}")
    if isinstance(value, str):
        return text_from_bytes(bytes_from_str(value))
    if isinstance(value, dict):
        return {_storable(key, depth): _storable(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list):
        return [_storable(item, depth + 1) for item in value]
    return value
