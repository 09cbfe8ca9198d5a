"""A filter as a small tree, between the text that a person writes and the question to the database."""

import dataclasses
from dataclasses import dataclass

from rlviewer.search.fields import Field


@dataclass(frozen=True, slots=True)
class Range:
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Prefix:
    text: str


# None: nothing stored.
Value = float | int | bool | str | Range | Prefix | None


@dataclass(frozen=True, slots=True)
class Comparison:
    field: Field
    op: str  # "=" (one of the values), "<", "<=", ">", ">="
    values: tuple[Value, ...]
    # Where it is written, from its field's name to its last value.
    start: int = dataclasses.field(default=0, compare=False)
    end: int = dataclasses.field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Text:
    """`kind` is "words", "prefix", "substring" or "regex"."""

    kind: str
    text: str
    ignores_case: bool = False
    start: int = 0
    end: int = 0
    of: str = "completion"  # or "prompt"


@dataclass(frozen=True, slots=True)
class Not:
    part: "Node"


@dataclass(frozen=True, slots=True)
class All:
    parts: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Any:
    parts: tuple["Node", ...]


Node = Comparison | Text | Not | All | Any
