"""H3, how the completions of a step are asked for. Imports no torch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from training.transforms import TransformedPrompt


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """`count` completions of one prompt; a tree plan names the rollout and token they branch from."""

    prompt: int  # number in the step
    count: int
    tree_parent: int | None = None  # number in the group
    branch_token: int | None = None
    is_greedy: bool = False  # the likeliest token each time: a baseline that does not train


def plain(prompts: Sequence[TransformedPrompt], group_size: int) -> list[SampleRequest]:
    """`group_size` independent completions of every prompt."""
    return [SampleRequest(prompt=index, count=group_size) for index in range(len(prompts))]


def with_greedy(prompts: Sequence[TransformedPrompt], group_size: int) -> list[SampleRequest]:
    """`group_size` completions of every prompt, then its greedy one."""
    return [
        request
        for index in range(len(prompts))
        for request in (
            SampleRequest(prompt=index, count=group_size),
            SampleRequest(prompt=index, count=1, is_greedy=True),
        )
    ]


PLANS: dict[str, Callable[[Sequence[TransformedPrompt], int], list[SampleRequest]]] = {
    "plain": plain,
    "with_greedy": with_greedy,
}
