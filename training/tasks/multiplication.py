"""Multiplication of whole numbers: `12*34=` is answered by `408`."""

import random
from collections.abc import Mapping
from typing import Any

from training.tasks.base import Param, Task, TaskFamily, integer_text, number_of_digits, steps


def generate(rng: random.Random, params: Mapping[str, Any]) -> Task:
    left = number_of_digits(rng, params["digits"])
    right = number_of_digits(rng, params["other_digits"])
    if rng.random() < 0.5:
        left, right = right, left
    answer = str(left * right)
    return Task(
        family=FAMILY.name,
        params=dict(params),
        difficulty=float(params["digits"] * params["other_digits"]),
        prompt=f"{left}*{right}=",
        answer=answer,
        oracle=steps(*rows(left, right), answer),
        operands="*".join(map(str, sorted((left, right)))),
    )


def rows(left: int, right: int) -> list[str]:
    """The school method: one product for each digit of the right number from its end, then the running sum."""
    out, total = [], 0
    for place, digit in enumerate(reversed(str(right))):
        row = left * int(digit) * 10**place
        out.append(f"{left}*{digit}{'0' * place}={row};")
        if place:
            out.append(f"{total}+{row}={total + row};")
        total += row
    return out


FAMILY = TaskFamily(
    name="multiplication",
    title="Multiplication",
    help="Multiply two whole numbers of a fixed number of digits.",
    params={
        "digits": Param(2, "Digits of one number.", low=1, high=50),
        "other_digits": Param(2, "Digits of the other.", low=1, high=50),
    },
    generate=generate,
    check=integer_text,
    at_level=lambda level: {"digits": level + 1, "other_digits": level + 1},
    last_level=9,
)
