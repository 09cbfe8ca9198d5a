"""Addition of whole numbers: `12+34=` is answered by `46`."""

import random
from collections.abc import Mapping
from itertools import zip_longest
from typing import Any

from training.tasks.base import Param, Task, TaskFamily, integer_text, number_of_digits, steps


def generate(rng: random.Random, params: Mapping[str, Any]) -> Task:
    numbers = [number_of_digits(rng, params["digits"]) for _ in range(params["terms"])]
    answer = str(sum(numbers))
    return Task(
        family=FAMILY.name,
        params=dict(params),
        difficulty=float(params["digits"] * (params["terms"] - 1)),
        prompt="+".join(map(str, numbers)) + "=",
        answer=answer,
        oracle=steps(*columns(numbers), answer),
        operands="+".join(map(str, sorted(numbers))),
    )


def columns(numbers: list[int]) -> list[str]:
    """The school method, a column a step from the right: digits, carry, and the sum of both."""
    out, carry = [], 0
    for column in zip_longest(*(reversed(str(number)) for number in numbers), fillvalue="0"):
        total = sum(map(int, column)) + carry
        out.append("+".join([*column, *([str(carry)] if carry else [])]) + f"={total};")
        carry = total // 10
    return out


FAMILY = TaskFamily(
    name="addition",
    title="Addition",
    help="Add whole numbers of a fixed number of digits.",
    params={
        "digits": Param(2, "Digits of each number.", low=1, high=100),
        "terms": Param(2, "Numbers to add.", low=2, high=16),
    },
    generate=generate,
    check=integer_text,
    at_level=lambda level: {"digits": level + 1},
    last_level=19,
)
