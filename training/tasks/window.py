"""H1, difficulty that follows the policy: a window of whole levels that moves up when its highest is mastered."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from training.config import ConfigError
from training.tasks.base import Task, TaskFamily
from training.tasks.stream import EXAMPLE_DRAWS, PATIENCE_DRAWS, draw_seed, is_held_out, make_task, task_key

# Levels in the window below its highest.
WIDTH = 3
# Groups at the highest level before it is judged.
JUDGED_GROUPS = 8


class DifficultyWindow:
    """Tasks of a level drawn uniformly from the window [low, high], which starts at [0, 0].

    After at least 8 groups at level `high` of which the share `promote_above` of completions is right, `high` rises by one, its
    count starts anew, and `low` follows at most three behind. At the family's last level the window stays and is saturated.

    Source: Zeng et al. 2025, RLVE, arXiv:2511.07317.
    """

    def __init__(
        self, family: TaskFamily, params: Mapping[str, Any], seed: int, *, group_size: int, promote_above: float
    ) -> None:
        if family.at_level is None:
            raise ValueError(f"{family.name} has no levels of difficulty")
        self.family = family
        self.params = dict(params)
        self.seed = seed
        self.judged_rollouts = JUDGED_GROUPS * group_size
        self.promote_above = promote_above
        self.low = self.high = self.drawn = self.right = self.seen = 0

    @property
    def is_saturated(self) -> bool:
        return self.high == self.family.last_level

    def take(self, count: int) -> list[Task]:
        """The next `count` tasks, none of them held out; `difficulty` is their level."""
        return [self._next() for _ in range(count)]

    def _next(self) -> Task:
        for _ in range(PATIENCE_DRAWS):
            seed = draw_seed(self.seed, "window", self.drawn)
            self.drawn += 1
            level = random.Random(seed).randint(self.low, self.high)  # noqa: S311 - reproducible, not secret
            task = self._at(level, seed)
            if not is_held_out(task):
                return task
        raise ConfigError(
            "task.name", f"{self.family.name} has no task to train on at levels {self.low} to {self.high}"
        )

    def _at(self, level: int, seed: int) -> Task:
        assert self.family.at_level is not None
        knobs = {**self.params, **self.family.at_level(level)}
        return replace(make_task(self.family, knobs, seed), difficulty=float(level))

    def examples(self, task: Task, count: int, rng: random.Random) -> list[Task]:
        """Up to `count` other training tasks of the same level."""
        found: dict[str, Task] = {}
        for _ in range(EXAMPLE_DRAWS * count):
            one = self._at(int(task.difficulty), rng.getrandbits(63))
            if not is_held_out(one) and task_key(one) != task_key(task):
                found[task_key(one)] = one
            if len(found) == count:
                break
        return list(found.values())

    def observe(self, outcomes: Sequence[tuple[Task, Sequence[bool]]]) -> dict[str, float]:
        """Count the completions of the highest level and move up if they are right often enough."""
        for task, right in outcomes:
            if task.difficulty == self.high:
                self.right += sum(right)
                self.seen += len(right)
        accuracy = self.right / self.seen if self.seen else 0.0
        metrics = {
            "window_low": float(self.low),
            "window_high": float(self.high),
            "window_accuracy": accuracy,
            "window_saturated": float(self.is_saturated),
        }
        if self.seen >= self.judged_rollouts and accuracy >= self.promote_above and not self.is_saturated:
            self.high += 1
            self.low = max(self.low, self.high - WIDTH)
            self.right = self.seen = 0
        return metrics

    def state(self) -> dict[str, int]:
        """What a checkpoint keeps; JSON-ready."""
        return {name: getattr(self, name) for name in ("seed", "low", "high", "drawn", "right", "seen")}

    def restore(self, state: Mapping[str, int]) -> None:
        """Go on where `state` was taken."""
        for name in self.state():
            setattr(self, name, int(state[name]))
