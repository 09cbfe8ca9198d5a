"""H9, which prompts are sampled, and which groups enter the update. Imports no torch."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from training.supply import TaskSupply
from training.tasks.base import Task

# Outcomes that differ by no more are equal.
TIE_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class ChosenPrompt:
    task: Task
    sampling_weight: float = 1.0
    position: int | None = None  # in the pool
    tracker_value: float | None = None  # as it was before this step, like the next two
    tracker_count: float | None = None
    tracker_last_seen: int | None = None  # step
    base_pass_rate: float | None = None
    base_samples: int | None = None
    base_majority: float | None = None  # share of the base model's samples with their most frequent answer


@dataclass(frozen=True, slots=True)
class GroupChoice:
    """Whether a scored group enters the update, and why not."""

    kept: bool
    drop_reason: str = ""


@dataclass(frozen=True, slots=True)
class Response:
    """The first completion of a group, as it was sampled."""

    prompt_ids: Sequence[int]
    completion_ids: Sequence[int]
    logprobs: Sequence[float]  # nats, of the sampler; NaN at tokens it did not sample


# Log-probabilities of responses under the policy as it is now, in nats.
Rescore = Callable[[Sequence[Response]], list[list[float]]]


@dataclass(frozen=True, slots=True)
class SeenGroup:
    """A group of the step after scoring, for a selection that remembers."""

    choice: ChosenPrompt
    outcomes: Sequence[float]  # rewards before penalties and shaping; NaN: not scored
    correct: Sequence[bool]
    is_finished: Sequence[bool]
    answers: Sequence[str | None]
    first: Response

    @property
    def right(self) -> list[bool]:
        """Correct and not cut at the limit."""
        return [correct and done for correct, done in zip(self.correct, self.is_finished, strict=True)]


def prompt_columns(chosen: Sequence[ChosenPrompt]) -> dict[str, list[Any]]:
    """What a batch stores of the prompts beside the tasks."""
    names = ("tracker_value", "tracker_count", "tracker_last_seen", "base_pass_rate", "base_samples")
    return {name: [getattr(one, name) for one in chosen] for name in names}


class Uniform:
    """The next tasks of the supply, each as likely as any other; every group enters.

    A selection is asked for prompts before sampling and for groups after scoring, then told what came of them.
    """

    def __init__(self, supply: TaskSupply, params: Mapping[str, Any], seed: int) -> None:
        self.supply = supply
        self.params = params
        self.seed = seed

    @property
    def to_profile(self) -> list[Task]:
        """Tasks to ask the base model before the first step; none once it is known."""
        return []

    @property
    def profile_samples(self) -> int:
        """How many completions of each."""
        return 0

    def learn_profile(self, seen: Sequence[SeenGroup]) -> None:
        """What the base model made of the tasks to profile, in their order."""

    def choose(self, count: int) -> list[ChosenPrompt]:
        """Prompts for the step at hand."""
        return [ChosenPrompt(task) for task in self.supply.take(count)]

    def accepts(self, outcomes: Sequence[float]) -> bool:
        """Given a group's rewards before penalties and shaping: whether it counts as one of the prompts of the step.

        Another prompt is sampled for one that does not, which is stored and left out of the update.
        """
        return True

    def choose_groups(self, dead_causes: Sequence[str | None]) -> list[GroupChoice]:
        """Given the cause of each dead group, None for one with signal: which groups enter the update."""
        return keep_all_groups(dead_causes)

    def observe(self, step: int, seen: Sequence[SeenGroup], rescore: Rescore) -> dict[str, float]:
        """Learn from the scored groups of a step, before the update; returns metrics by name."""
        return {}

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps; JSON-ready."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was taken."""


class MixedOnly(Uniform):
    """Only groups with a difference: at least two scored rollouts whose rewards differ by more than 1e-6.

    Source: Yu et al. 2025, DAPO's dynamic sampling, arXiv:2503.14476.
    """

    def accepts(self, outcomes: Sequence[float]) -> bool:
        scored = [outcome for outcome in outcomes if not math.isnan(outcome)]
        return len(scored) > 1 and max(scored) - min(scored) > TIE_TOLERANCE


def keep_all_groups(dead_causes: Sequence[str | None]) -> list[GroupChoice]:
    """Every group with at least two scored rollouts; a dead one enters with advantages of zero."""
    return [
        GroupChoice(cause not in ("single", "unscored"), cause if cause in ("single", "unscored") else "")
        for cause in dead_causes
    ]
