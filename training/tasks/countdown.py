"""Countdown: `3 5 7 make 22=` is answered by an expression that uses each number once, such as `3*5+7`."""

import operator
import random
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from training.tasks.base import LONGEST_ANSWER, Param, Task, TaskFamily, Verdict, answer_part, steps, unreadable

SYMBOL = re.compile(r" *([0-9]{1,9}|[-+*/()]) *")
NOUN = "an expression of the numbers with + - * / and brackets"
PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2}
OPERATIONS: dict[str, Callable[[Fraction, Fraction], Fraction]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}


class ExpressionError(ValueError):
    """Not an expression, or one without a value."""


def generate(rng: random.Random, params: Mapping[str, Any]) -> Task:
    while True:
        numbers = [rng.randint(1, params["largest_number"]) for _ in range(params["count"])]
        work, expression, target = combine(rng, numbers)
        if target <= params["largest_target"]:
            break
    rng.shuffle(numbers)
    return Task(
        family=FAMILY.name,
        params=dict(params),
        difficulty=float(params["count"]),
        prompt=f"{' '.join(map(str, numbers))} make {target}=",
        answer=expression,
        oracle=steps(*work, expression),
        operands=f"{' '.join(map(str, sorted(numbers)))} make {target}",
        payload={"numbers": sorted(numbers), "target": target},
    )


def combine(rng: random.Random, numbers: list[int]) -> tuple[list[str], str, int]:
    """Joins two parts at a time, each result a positive whole number; the steps, the expression and its value."""
    parts = [(str(number), number) for number in numbers]
    work = []
    while len(parts) > 1:
        rng.shuffle(parts)
        (left, a), (right, b) = parts.pop(), parts.pop()
        if a < b:
            left, a, right, b = right, b, left, a
        signs = ["+", "*", *(["-"] if a > b else []), *(["/"] if a % b == 0 else [])]
        sign = rng.choice(signs)
        value = int(OPERATIONS[sign](Fraction(a), Fraction(b)))
        work.append(f"{a}{sign}{b}={value};")
        parts.append((f"({left}{sign}{right})", value))
    expression, target = parts[0]
    return work, expression[1:-1], target


def check(task: Task, completion: str) -> Verdict:
    found = answer_part(completion)
    if not found or len(found) > LONGEST_ANSWER:
        return unreadable(found, NOUN)
    try:
        used, value = evaluate(found)
    except ExpressionError as error:
        verdict = unreadable(found, NOUN)
        return Verdict(0.0, False, None, f"{verdict.feedback[:-1]}: {error}.")
    if sorted(used) != task.payload["numbers"]:
        return Verdict(0.0, False, found, f"Each number is used exactly once; this uses {sorted(used)}.")
    if value != task.payload["target"]:
        return Verdict(0.0, False, found, f"Expected {task.payload['target']}, this makes {value}.")
    return Verdict(1.0, True, found, "Right.")


def evaluate(text: str) -> tuple[list[int], Fraction]:
    """The numbers used and the exact value. Iterative (shunting-yard): brackets nest as deep as the text is long.

    Raises:
        ExpressionError: not an expression, or it divides by zero.
    """
    values: list[Fraction] = []
    signs: list[str] = []
    used: list[int] = []
    wants_number = True
    position = 0
    while position < len(text):
        match = SYMBOL.match(text, position)
        if match is None:
            raise ExpressionError(f"cannot read it from character {position + 1}")
        symbol, position = match[1], match.end()
        if wants_number != (symbol == "(" or symbol.isdigit()):
            raise ExpressionError(f"{symbol} stands where {'a number' if wants_number else 'an operator'} belongs")
        if symbol.isdigit():
            used.append(int(symbol))
            values.append(Fraction(used[-1]))
            wants_number = False
        elif symbol == "(":
            signs.append(symbol)
        elif symbol == ")":
            _apply(values, signs, lowest=1)
            if not signs:
                raise ExpressionError("a bracket closes that was not opened")
            signs.pop()
        else:
            _apply(values, signs, lowest=PRECEDENCE[symbol])
            signs.append(symbol)
            wants_number = True
    if wants_number:
        raise ExpressionError("it ends where a number belongs")
    _apply(values, signs, lowest=1)
    if signs:
        raise ExpressionError("a bracket is not closed")
    return used, values[0]


def _apply(values: list[Fraction], signs: list[str], *, lowest: int) -> None:
    """Carry out waiting operations that bind at least as tightly as `lowest`, up to an open bracket."""
    while signs and signs[-1] != "(" and PRECEDENCE[signs[-1]] >= lowest:
        right, left, sign = values.pop(), values.pop(), signs.pop()
        if sign == "/" and right == 0:
            raise ExpressionError("it divides by zero")
        values.append(OPERATIONS[sign](left, right))


FAMILY = TaskFamily(
    name="countdown",
    title="Countdown",
    help="Make a target from given numbers, each used once.",
    params={
        "count": Param(3, "Numbers given.", low=2, high=8),
        "largest_number": Param(20, "Numbers are drawn from 1 to this.", low=2, high=999),
        "largest_target": Param(200, "The target is at most this.", low=2, high=99_999),
    },
    generate=generate,
    check=check,
    at_level=lambda level: {"count": level + 2},
    last_level=4,
)
