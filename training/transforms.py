"""H2, what becomes of a task's prompt before it is sampled from. Imports no torch.

Random transforms are drawn once per group, so that one baseline compares equal prompts. Everything a transform adds is
outside the loss.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from training.tasks.base import Task


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of the prompt and where it came from, one of training.records.ORIGINS."""

    text: str
    origin: str = "prompt"


@dataclass(frozen=True, slots=True)
class TransformedPrompt:
    """What the policy is given. `prompt` stays the group's; `prefix` starts each completion, outside the loss."""

    prompt: tuple[Segment, ...]
    prefix: tuple[Segment, ...] = ()
    name: str = "identity"
    parameters: dict[str, Any] = field(default_factory=dict)
    source_rollout: str | None = None  # the rollout a prefix came from

    @property
    def text(self) -> str:
        return "".join(segment.text for segment in self.prompt)


@dataclass(frozen=True, slots=True)
class PromptContext:
    """What every H2 entry is given beside the task."""

    step: int
    steps: int  # of the whole run
    rng: random.Random
    params: Mapping[str, Any]
    # Up to so many other training tasks like the one given.
    examples: Callable[[Task, int, random.Random], list[Task]]


def identity(task: Task, context: PromptContext | None = None) -> TransformedPrompt:
    """The prompt as the task states it."""
    return TransformedPrompt(prompt=(Segment(task.prompt),))


TRANSFORMS: dict[str, Callable[[Task, PromptContext], TransformedPrompt]] = {
    "identity": identity,
}
