"""H1, the supply of tasks: an endless stream to train on, and a fixed set that training never sees. Imports no torch."""

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from training.config import ConfigError
from training.tasks.base import Task, TaskFamily

# One in this many operands is held out, whatever the run and its seed.
HELD_OUT_SHARE = 8
# The held-out tasks do not depend on a run's seed, so that repeats are judged on the same prompts.
HELD_OUT_SEED = 0
# Draws in a row without a new task after which a family counts as exhausted.
PATIENCE_DRAWS = 2000
# Draws per example wanted; where the family has too few distinct tasks there are fewer examples.
EXAMPLE_DRAWS = 50


def make_task(family: TaskFamily, params: Mapping[str, Any], seed: int) -> Task:
    """The task of that seed: the same one on every machine."""
    task = family.generate(random.Random(seed), params)  # noqa: S311 - reproducible, not secret
    return replace(task, seed=seed, family=family.name)


def task_key(task: Task) -> str:
    """Equal for tasks with the same operands."""
    return f"{task.family}|{task.operands or task.prompt}"


def is_held_out(task: Task) -> bool:
    """Whether the task's operands belong to the evaluation; a property of the operands alone, about one in eight."""
    digest = hashlib.sha256(task_key(task).encode("utf-8", "surrogatepass")).digest()
    return digest[0] % HELD_OUT_SHARE == 0


class TaskStream:
    """Training tasks, none of them held out. The n-th draw depends on the seed and n only."""

    def __init__(self, family: TaskFamily, params: Mapping[str, Any], seed: int) -> None:
        self.family = family
        self.params = dict(params)
        self.seed = seed
        self.drawn = 0

    def take(self, count: int) -> list[Task]:
        """The next `count` tasks.

        Raises:
            ConfigError: the family has no tasks to train on at this difficulty.
        """
        return [self._next() for _ in range(count)]

    def _next(self) -> Task:
        for _ in range(PATIENCE_DRAWS):
            task = make_task(self.family, self.params, draw_seed(self.seed, "train", self.drawn))
            self.drawn += 1
            if not is_held_out(task):
                return task
        raise ConfigError("task.params", f"{self.family.name} has no task to train on at this difficulty; raise it")

    def examples(self, task: Task, count: int, rng: random.Random) -> list[Task]:
        """Up to `count` other training tasks, drawn with `rng`; fewer where the family has no more."""
        found: dict[str, Task] = {}
        for _ in range(EXAMPLE_DRAWS * count):
            one = make_task(self.family, self.params, rng.getrandbits(63))
            if not is_held_out(one) and task_key(one) != task_key(task):
                found[task_key(one)] = one
            if len(found) == count:
                break
        return list(found.values())

    def observe(self, outcomes: Sequence[tuple[Task, Sequence[bool]]]) -> dict[str, float]:
        """Nothing: the draws do not depend on how tasks were answered."""
        return {}

    def state(self) -> dict[str, int]:
        """What a checkpoint keeps; JSON-ready."""
        return {"seed": self.seed, "drawn": self.drawn}

    def restore(self, state: Mapping[str, int]) -> None:
        """Go on where `state` was taken."""
        self.seed, self.drawn = int(state["seed"]), int(state["drawn"])


def held_out_tasks(family: TaskFamily, params: Mapping[str, Any], count: int, seed: int) -> list[Task]:
    """`count` held-out tasks with distinct operands; of a fixed set as many of them as there are.

    Raises:
        ConfigError: the family has fewer at this difficulty, a fixed set none.
    """
    if family.tasks:
        tasks = [task for task in family.tasks(params) if is_held_out(task)][:count]
        if not tasks:
            raise ConfigError(
                "task.name",
                f"none of the tasks of {family.name} falls to the evaluation, about one in eight does; add some",
            )
        return tasks
    found: dict[str, Task] = {}
    draws = since_new = 0
    while len(found) < count:
        task = make_task(family, params, draw_seed(seed, "heldout", draws))
        draws, since_new = draws + 1, since_new + 1
        if is_held_out(task) and task_key(task) not in found:
            found[task_key(task)] = task
            since_new = 0
        if since_new >= PATIENCE_DRAWS:
            raise ConfigError(
                "eval.prompts",
                f"{family.name} at this difficulty has only about {len(found)} distinct held-out tasks, "
                f"{count} are wanted; raise the difficulty or ask for fewer",
            )
    return list(found.values())


def draw_seed(seed: int, purpose: str, draw: int) -> int:
    """The seed of a draw; 63 bits, since it is stored in a signed column."""
    digest = hashlib.sha256(f"{purpose}|{seed}|{draw}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
