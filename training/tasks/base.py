"""What a task is: a prompt with an answer that can be checked. Imports no torch."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class OracleStep:
    """One step of the oracle's solution; `start` and `end` are character offsets in the joined solution text."""

    text: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Task:
    """One prompt to answer."""

    family: str
    params: dict[str, Any]
    difficulty: float
    seed: int
    prompt: str
    answer: str
    oracle: tuple[OracleStep, ...] = ()
    # Equal for tasks that differ only in order or wording; decides train or held-out.
    operands: str = ""
    # What the checker needs beyond the answer (a dataset entry, the numbers of a countdown).
    payload: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the checker says of one completion."""

    reward: float  # 0 to 1 for the built-in families
    correct: bool
    parsed_answer: str | None  # None: no answer could be read
    feedback: str = ""  # why, for a person


@dataclass(frozen=True, slots=True)
class Param:
    """A difficulty knob."""

    default: int | float | str | bool
    help: str
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class TaskFamily:
    """A generator with its knobs and its checker."""

    name: str
    title: str
    help: str
    params: dict[str, Param]
    generate: Callable[[random.Random, dict[str, Any]], Task]
    check: Callable[[Task, str], Verdict]
