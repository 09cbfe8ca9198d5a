"""Sums of products modulo a number: `(12+34*5)%7=` is answered by `0`."""

import math
import random
from collections.abc import Mapping
from typing import Any

from training.tasks.base import Param, Task, TaskFamily, integer_text, number_of_digits, steps


def generate(rng: random.Random, params: Mapping[str, Any]) -> Task:
    modulus = rng.randint(2, params["largest_modulus"])
    numbers = [number_of_digits(rng, params["digits"]) for _ in range(params["terms"])]
    signs = ["+", *(rng.choice("+-*") for _ in numbers[1:])]
    products: list[tuple[str, list[int]]] = []
    for sign, number in zip(signs, numbers, strict=True):
        if sign == "*":
            products[-1][1].append(number)
        else:
            products.append((sign, [number]))
    work, answer = reduce(products, modulus)
    expression = "".join(sign + str(number) for sign, number in zip(signs, numbers, strict=True))[1:]
    return Task(
        family=FAMILY.name,
        params=dict(params),
        difficulty=float(params["digits"] * params["terms"]),
        prompt=f"({expression})%{modulus}=",
        answer=str(answer),
        oracle=steps(*work, str(answer)),
        operands=_canonical(products) + f"%{modulus}",
    )


def reduce(products: list[tuple[str, list[int]]], modulus: int) -> tuple[list[str], int]:
    """Each product reduced, then added to the running remainder; the remainder is never negative."""
    out, remainder = [], 0
    for position, (sign, factors) in enumerate(products):
        value = math.prod(factors) % modulus
        out.append(f"{'*'.join(map(str, factors))}%{modulus}={value};")
        total = remainder + value if sign == "+" else remainder - value
        if position:
            out.append(f"({remainder}{sign}{value})%{modulus}={total % modulus};")
        remainder = total % modulus
    return out, remainder


def _canonical(products: list[tuple[str, list[int]]]) -> str:
    """Equal for sums whose terms or factors only differ in order."""
    return "".join(sorted(sign + "*".join(map(str, sorted(factors))) for sign, factors in products))


FAMILY = TaskFamily(
    name="modular_arithmetic",
    title="Modular arithmetic",
    help="Remainder of a sum of products.",
    params={
        "terms": Param(3, "Numbers in the expression.", low=1, high=16),
        "digits": Param(2, "Digits of each number.", low=1, high=12),
        "largest_modulus": Param(13, "The modulus is drawn from 2 to this.", low=2, high=10_000),
    },
    generate=generate,
    check=integer_text,
    at_level=lambda level: {"terms": level + 2},
    last_level=6,
)
