"""Sorting of whole numbers: `sort 34 7 12=` is answered by `7 12 34`."""

import random
import re
from collections.abc import Mapping
from typing import Any

from training.tasks.base import Param, Task, TaskFamily, Verdict, check_text, steps

NUMBERS = re.compile(r"[0-9]+(?: [0-9]+)*")


def generate(rng: random.Random, params: Mapping[str, Any]) -> Task:
    numbers = [rng.randrange(10 ** params["digits"]) for _ in range(params["count"])]
    answer = " ".join(map(str, sorted(numbers)))
    return Task(
        family=FAMILY.name,
        params=dict(params),
        difficulty=float(params["count"]),
        prompt=f"sort {' '.join(map(str, numbers))}=",
        answer=answer,
        oracle=steps(*insertions(numbers), answer),
        operands=answer,
    )


def insertions(numbers: list[int]) -> list[str]:
    """Insertion sort: the sorted part after each number but the last is put in its place."""
    return [f"{' '.join(map(str, sorted(numbers[:size])))};" for size in range(2, len(numbers))]


def check(task: Task, completion: str) -> Verdict:
    return check_text(task, completion, pattern=NUMBERS, noun="numbers with one space between them")


FAMILY = TaskFamily(
    name="sorting",
    title="Sorting",
    help="Write numbers in rising order.",
    params={
        "count": Param(5, "Numbers to sort.", low=2, high=64),
        "digits": Param(2, "Digits of the longest possible number.", low=1, high=9),
    },
    generate=generate,
    check=check,
    at_level=lambda level: {"count": level + 2},
    last_level=14,
)
