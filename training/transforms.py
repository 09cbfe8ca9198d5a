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


def example_chance(step: int, steps: int, *, start: float, end: float) -> float:
    """Linear in the step, from `start` at the first (0) to `end` at the last (`steps` - 1).

    Source: curriculum of in-context examples (CBRL), arXiv:2603.18953.
    """
    return start + (end - start) * (step / (steps - 1) if steps > 1 else 0.0)


def worked_examples(task: Task, context: PromptContext) -> TransformedPrompt:
    """With a chance that changes over the run, a few solved tasks of the same kind before the prompt, a line each.

    Never the task itself; a family with fewer gives what it has. Evaluations never get examples.
    """
    params = context.params
    chance = example_chance(context.step, context.steps, start=params["examples_start"], end=params["examples_end"])
    if context.rng.random() >= chance:
        return identity(task)
    examples = context.examples(task, params["example_count"], context.rng)
    shown = [f"{one.prompt}{one.solution if params['example_steps'] else one.answer}\n" for one in examples]
    return TransformedPrompt(
        prompt=(*(Segment(text) for text in shown), Segment(task.prompt)),
        name="worked_examples",
        parameters={"count": len(examples), "chance": chance},
    )


TRANSFORMS: dict[str, Callable[[Task, PromptContext], TransformedPrompt]] = {
    "identity": identity,
    "worked_examples": worked_examples,
}
