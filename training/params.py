"""Named knobs with bounds, for task families and recipes, and the check of what a person wrote. Imports no torch."""

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from training.config import NAMES, ConfigError, as_float

TOLD_NAMES = 20  # of a longer list an error names these


@dataclass(frozen=True, slots=True)
class Param:
    """A knob: its default decides its type, the rest says what may be written."""

    default: Any
    help: str
    low: float | None = None  # inclusive
    high: float | None = None  # inclusive
    options: tuple[str, ...] = ()


def check_params(specs: Mapping[str, Param], raw: Mapping[str, Any], *, where: str) -> dict[str, Any]:
    """`raw` completed with the defaults of `specs`, in their order.

    Raises:
        ConfigError: an unknown name, a wrong type or a value out of bounds; its key is `where.NAME`.
    """
    for name in raw:
        if name not in specs:
            raise ConfigError(f"{where}.{name}", unknown(name, specs, "parameter"))
    return {name: _checked(spec, raw.get(name, spec.default), f"{where}.{name}") for name, spec in specs.items()}


def unknown(name: str, known: Mapping[str, Any] | tuple[str, ...], noun: str) -> str:
    """What to say of a name that is not among `known`: the nearest one, or what is known."""
    near = difflib.get_close_matches(name, list(known), n=1)
    if near:
        return f"unknown {noun} {name!r}; did you mean {near[0]}?"
    shown = ", ".join(list(known)[:TOLD_NAMES]) or "none"
    more = f" and {len(known) - TOLD_NAMES} more" if len(known) > TOLD_NAMES else ""
    return f"unknown {noun} {name!r}; known: {shown}{more}"


def _checked(spec: Param, value: Any, key: str) -> Any:
    kind = type(spec.default)
    if kind is float and type(value) is int:
        value = as_float(value)
    if kind is tuple and isinstance(value, list):
        value = tuple(value)
    if kind is not type(None) and type(value) is not kind:
        raise ConfigError(key, f"must be {NAMES.get(kind, 'a list')}, got {value!r}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(key, f"must be a finite number, got {value}")
    if spec.low is not None and value < spec.low:
        raise ConfigError(key, f"must be at least {spec.low}, got {value}")
    if spec.high is not None and value > spec.high:
        raise ConfigError(key, f"must be at most {spec.high}, got {value}")
    if spec.options and value not in spec.options:
        raise ConfigError(key, unknown(str(value), spec.options, "choice"))
    return value
