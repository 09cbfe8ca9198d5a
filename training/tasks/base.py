"""What a task is: a prompt with an answer that can be checked. Imports no torch.

A completion may show its work: steps end with `;`, and what follows the last one is the answer. `2+4=6;1+3=4;46` answers
46, and so does `46`.
"""

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from training.params import Param

__all__ = ["OracleStep", "Param", "Task", "TaskFamily", "Verdict", "answer_part", "check_text", "integer_text", "steps"]

STEP_END = ";"
# A longer one is no answer to any task of ours; bounds the work on a hostile completion.
LONGEST_ANSWER = 1000


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
    prompt: str
    answer: str
    oracle: tuple[OracleStep, ...] = ()
    # Equal for tasks that differ only in order or wording; decides train or held-out. "": the prompt decides.
    operands: str = ""
    # Makes the same task again: generate(random.Random(seed), params).
    seed: int = 0
    # What the checker needs beyond the answer (a dataset entry, the numbers of a countdown).
    payload: dict[str, Any] = field(default_factory=dict)

    @property
    def solution(self) -> str:
        """The oracle's completion: its steps joined; the bare answer where it shows none."""
        return "".join(step.text for step in self.oracle) or self.answer


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the checker says of one completion."""

    reward: float  # 0 to 1 for the built-in families
    correct: bool
    parsed_answer: str | None  # None: no answer could be read
    feedback: str = ""  # why, for a person


@dataclass(frozen=True, slots=True)
class TaskFamily:
    """A generator with its knobs and its checker."""

    name: str
    title: str
    help: str
    params: dict[str, Param]
    generate: Callable[[random.Random, Mapping[str, Any]], Task]
    check: Callable[[Task, str], Verdict]
    # What no single knob's bounds can say; raises ConfigError.
    check_together: Callable[[Mapping[str, Any]], None] | None = None
    # The tasks of a family that is a fixed set: drawn from instead of `generate`.
    tasks: Callable[[Mapping[str, Any]], Sequence[Task]] | None = None
    # Knobs of a level of difficulty, from 0 to the last; None: the family has no levels.
    at_level: Callable[[int], dict[str, Any]] | None = None
    last_level: int = 0
    # Of a family that is not ours: changes when its file does.
    version: str = ""


def steps(*texts: str) -> tuple[OracleStep, ...]:
    """Oracle steps of `texts`, with their offsets in the joined solution."""
    out, start = [], 0
    for text in texts:
        out.append(OracleStep(text, start, start + len(text)))
        start += len(text)
    return tuple(out)


def answer_part(completion: str) -> str:
    """What follows the last step, without the spaces and line breaks around it."""
    return completion[completion.rfind(STEP_END) + 1 :].strip(" \n")


def check_text(task: Task, completion: str, *, pattern: re.Pattern[str], noun: str) -> Verdict:
    """Right if the answer part equals the task's answer; unreadable unless it has the form of `pattern`."""
    found = answer_part(completion)
    if len(found) > LONGEST_ANSWER or not pattern.fullmatch(found):
        return unreadable(found, noun)
    if found == task.answer:
        return Verdict(1.0, True, found, "Right.")
    return Verdict(0.0, False, found, f"Expected {task.answer}, got {found}.")


def unreadable(found: str, noun: str) -> Verdict:
    """No answer could be read: says what was expected and what stood there."""
    shown = ascii(found[:40]) + ("..." if len(found) > 40 else "")
    return Verdict(
        0.0, False, None, f"Expected {noun}, found {shown}." if found else f"Expected {noun}, found nothing."
    )


# Digits of other scripts match \d and int() takes them, so the digits are spelled out.
INTEGER = re.compile(r"-?[0-9]+")


def integer_text(task: Task, completion: str) -> Verdict:
    """Checker of families whose answer is a whole number, compared as written: 046 is not 46."""
    return check_text(task, completion, pattern=INTEGER, noun="a whole number")


def number_of_digits(rng: random.Random, digits: int) -> int:
    """A number with that many digits; 0 is one of those with one digit."""
    return rng.randint(0 if digits == 1 else 10 ** (digits - 1), 10**digits - 1)
