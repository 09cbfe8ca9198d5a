"""H1, a fixed number of tasks that come again: so that what is known of a prompt can be used. Imports no torch."""

import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from training.config import ConfigError
from training.seeds import derived_seed
from training.tasks.base import Task, TaskFamily
from training.tasks.stream import PATIENCE_DRAWS, TaskStream, is_held_out, task_key


class TaskPool:
    """Epoch after epoch of the same tasks, each epoch in another order that follows from the seed."""

    def __init__(self, tasks: Sequence[Task], seed: int) -> None:
        self.tasks = list(tasks)
        self.seed = seed
        self.taken = 0
        self.position = {task_key(task): number for number, task in enumerate(self.tasks)}

    def take(self, count: int) -> list[Task]:
        """The next `count` tasks; a request over the end of an epoch goes on in the next."""
        found: list[Task] = []
        while len(found) < count:
            epoch, start = divmod(self.taken, len(self.tasks))
            some = self._order(epoch)[start : start + count - len(found)]
            found += [self.tasks[number] for number in some]
            self.taken += len(some)
        return found

    def _order(self, epoch: int) -> list[int]:
        order = list(range(len(self.tasks)))
        random.Random(derived_seed(self.seed, "epoch", epoch)).shuffle(order)  # noqa: S311 - reproducible, not secret
        return order

    def examples(self, task: Task, count: int, rng: random.Random) -> list[Task]:
        """Up to `count` other tasks of the pool, drawn with `rng`."""
        others = [one for one in self.tasks if task_key(one) != task_key(task)]
        return rng.sample(others, min(count, len(others)))

    def observe(self, outcomes: Sequence[tuple[Task, Sequence[bool]]]) -> dict[str, float]:
        """Nothing: the order does not depend on how tasks were answered."""
        return {}

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps; JSON-ready."""
        return {"seed": self.seed, "taken": self.taken, "digest": self._digest()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was taken.

        Raises:
            ConfigError: it was taken of other tasks.
        """
        if state.get("digest") != self._digest():
            raise ConfigError(
                "task.name",
                "these are not the tasks that the checkpoint was made with; put them back or start a new run",
            )
        self.seed, self.taken = int(state["seed"]), int(state["taken"])

    def _digest(self) -> str:
        parts = (f"{task_key(task)}|{task.answer}".encode("utf-8", "surrogatepass") for task in self.tasks)
        return hashlib.sha256(b"\0".join(parts)).hexdigest()


def check_room(
    family: TaskFamily,
    params: Mapping[str, Any],
    tokens_of: Callable[[str], int],
    *,
    max_new_tokens: int,
    context_tokens: int | None,
) -> None:
    """Nothing, if every prompt of a fixed set leaves room for its completion.

    Raises:
        ConfigError: names the first that does not.
    """
    if not family.tasks or context_tokens is None:
        return
    for task in family.tasks(params):
        if (length := tokens_of(task.prompt)) + max_new_tokens > context_tokens:
            raise ConfigError(
                "task.name",
                f"{family.name}, row {task.seed}: the prompt takes {length} tokens, which with sampling.max_new_tokens "
                f"({max_new_tokens}) is more than the model's context of {context_tokens}; shorten one of them",
            )


def make_pool(family: TaskFamily, params: Mapping[str, Any], count: int, seed: int) -> TaskPool:
    """`count` distinct training tasks; 0 takes all of a family with a fixed set.

    Raises:
        ConfigError: the family has fewer.
    """
    tasks = _fixed(family, params, seed) if family.tasks else _drawn(family, params, count, seed)
    if len(tasks) < count or not tasks:
        raise ConfigError(
            "task.pool",
            f"{family.name} has only about {len(tasks)} distinct tasks to train on, {count or 1} are wanted; "
            "ask for fewer, or for harder tasks, of which there are more",
        )
    return TaskPool(tasks[: count or None], seed)


def _fixed(family: TaskFamily, params: Mapping[str, Any], seed: int) -> list[Task]:
    tasks = [task for task in family.tasks(params) if not is_held_out(task)] if family.tasks else []
    random.Random(derived_seed(seed, "pool", 0)).shuffle(tasks)  # noqa: S311 - reproducible, not secret
    return tasks


def _drawn(family: TaskFamily, params: Mapping[str, Any], count: int, seed: int) -> list[Task]:
    stream, found, last_new = TaskStream(family, params, seed), dict[str, Task](), 0
    while len(found) < count and stream.drawn - last_new < PATIENCE_DRAWS:
        (task,) = stream.take(1)
        if task_key(task) not in found:
            found[task_key(task)] = task
            last_new = stream.drawn
    return list(found.values())
