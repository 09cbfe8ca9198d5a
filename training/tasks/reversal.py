"""String reversal: `reverse abcd=` is answered by `dcba`."""

import random
import re
import string
from collections.abc import Mapping
from typing import Any

from training.tasks.base import Param, Task, TaskFamily, Verdict, check_text, steps

LETTERS = re.compile(r"[a-z]+")


def generate(rng: random.Random, params: Mapping[str, Any]) -> Task:
    text = "".join(rng.choices(string.ascii_lowercase[: params["letters"]], k=params["length"]))
    answer = text[::-1]
    return Task(
        family=FAMILY.name,
        params=dict(params),
        difficulty=float(params["length"]),
        prompt=f"reverse {text}=",
        answer=answer,
        oracle=steps(*(f"{answer[:size]};" for size in range(1, len(answer))), answer),
        # Whoever knows that abc becomes cba knows the way back.
        operands=min(text, answer),
    )


def check(task: Task, completion: str) -> Verdict:
    return check_text(task, completion, pattern=LETTERS, noun="lower-case letters")


FAMILY = TaskFamily(
    name="reversal",
    title="String reversal",
    help="Write a string of letters backwards.",
    params={
        "length": Param(6, "Letters in the string.", low=1, high=100),
        "letters": Param(26, "Different letters to draw from.", low=2, high=26),
    },
    generate=generate,
    check=check,
    at_level=lambda level: {"length": level + 2},
    last_level=18,
)
