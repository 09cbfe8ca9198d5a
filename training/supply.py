"""H1, where the tasks of a run come from. Imports no torch."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from training.tasks.base import Task, TaskFamily
from training.tasks.pool import make_pool
from training.tasks.stream import TaskStream
from training.tasks.window import DifficultyWindow


class TaskSupply(Protocol):
    """Training tasks one after another, none of them held out; part of the checkpoint."""

    def take(self, count: int) -> list[Task]:
        """The next `count` tasks."""

    def examples(self, task: Task, count: int, rng: random.Random) -> list[Task]:
        """Up to `count` other training tasks of the same kind, with their answers; never `task` itself."""

    def observe(self, outcomes: Sequence[tuple[Task, Sequence[bool]]]) -> dict[str, float]:
        """Which completions of each task were right, cut ones counted as wrong; returns metrics by name."""

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps; JSON-ready."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was taken."""


@dataclass(frozen=True, slots=True)
class SupplyContext:
    """What every H1 entry is given."""

    family: TaskFamily
    task_params: dict[str, Any]
    seed: int
    group_size: int
    pool: int  # 0: no limit
    params: Mapping[str, Any]


def _tasks(context: SupplyContext) -> TaskSupply:
    if context.pool or context.family.tasks:
        return make_pool(context.family, context.task_params, context.pool, context.seed)
    return TaskStream(context.family, context.task_params, context.seed)


def _difficulty_window(context: SupplyContext) -> TaskSupply:
    return DifficultyWindow(
        context.family,
        context.task_params,
        context.seed,
        group_size=context.group_size,
        promote_above=context.params["promote_above"],
    )


SUPPLIES: dict[str, Callable[[SupplyContext], TaskSupply]] = {
    "tasks": _tasks,
    "difficulty_window": _difficulty_window,
}
