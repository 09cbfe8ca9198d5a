"""H9, which prompts are sampled, and which groups enter the update. Imports no torch."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from training.tasks.base import Task
from training.tasks.stream import TaskStream

# Outcomes that differ by no more are equal.
TIE_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class ChosenPrompt:
    task: Task
    sampling_weight: float = 1.0


@dataclass(frozen=True, slots=True)
class GroupChoice:
    """Whether a scored group enters the update, and why not."""

    kept: bool
    drop_reason: str = ""


@dataclass(frozen=True, slots=True)
class Selection:
    """Asked twice a step: for prompts before sampling, for groups after scoring."""

    choose_prompts: Callable[[TaskStream, int], list[ChosenPrompt]]
    # Given a group's rewards before penalties and shaping: whether it counts as one of the prompts of the step. Another
    # prompt is sampled for one that does not, which is stored and left out of the update.
    accepts: Callable[[Sequence[float]], bool]
    # Given the cause of each dead group, None for one with signal.
    choose_groups: Callable[[Sequence[str | None]], list[GroupChoice]]


def next_prompts(stream: TaskStream, count: int) -> list[ChosenPrompt]:
    """The next tasks of the stream, each as likely as any other."""
    return [ChosenPrompt(task) for task in stream.take(count)]


def keep_all_groups(dead_causes: Sequence[str | None]) -> list[GroupChoice]:
    """Every group with at least two scored rollouts; a dead one enters with advantages of zero."""
    return [
        GroupChoice(cause not in ("single", "unscored"), cause if cause in ("single", "unscored") else "")
        for cause in dead_causes
    ]


def accept_any(outcomes: Sequence[float]) -> bool:
    return True


def accept_mixed(outcomes: Sequence[float]) -> bool:
    """At least two scored rollouts whose rewards differ by more than 1e-6 (DAPO's dynamic sampling)."""
    scored = [outcome for outcome in outcomes if not math.isnan(outcome)]
    return len(scored) > 1 and max(scored) - min(scored) > TIE_TOLERANCE


SELECTIONS: dict[str, Selection] = {
    "uniform": Selection(choose_prompts=next_prompts, accepts=accept_any, choose_groups=keep_all_groups),
    "mixed_only": Selection(choose_prompts=next_prompts, accepts=accept_mixed, choose_groups=keep_all_groups),
}
