"""Rollouts and their scores as tensors, without a model or an engine."""

from collections.abc import Sequence

import torch
from torch import Tensor

from training.plans import SampleRequest
from training.policy import Tokens
from training.rewards import RewardSpan, Scored
from training.rollouts import GENERATED, PREFIX, Rollouts, ScoredRollouts


def make_rollouts(
    lengths: Sequence[int],
    *,
    prompts: int = 1,
    width: int = 0,
    prefix_tokens: int = 0,
    is_finished: Sequence[bool] | None = None,
    is_greedy: Sequence[bool] | None = None,
    sampler_logprobs: Tensor | None = None,
    completions: Sequence[bytes] | None = None,
) -> Rollouts:
    """As many rollouts of each prompt; the first `prefix_tokens` of a completion were not sampled by the policy."""
    rollouts, width = len(lengths), width or max(lengths)
    group_size = rollouts // prompts
    ends = torch.tensor(lengths)
    shape = (rollouts, width)
    origin = torch.full(shape, GENERATED, dtype=torch.uint8)
    origin[:, :prefix_tokens] = PREFIX
    owner = torch.arange(prompts).repeat_interleave(group_size)
    greedy = is_greedy or [False] * rollouts
    return Rollouts(
        chosen=[],
        prompts=[None] * prompts,  # type: ignore[list-item]
        prompt_ids=[[0]] * prompts,
        requests=[SampleRequest(int(prompt), 1, is_greedy=flag) for prompt, flag in zip(owner, greedy, strict=True)],
        numbers=torch.arange(group_size).repeat(prompts),
        tokens=Tokens(
            torch.zeros(prompts, 1, dtype=torch.int64),
            torch.ones(prompts, 1, dtype=torch.bool),
            owner,
            torch.zeros(shape, dtype=torch.int64),
            torch.arange(width) < ends[:, None],
        ),
        sampler_logprobs=torch.full(shape, -1.0) if sampler_logprobs is None else sampler_logprobs,
        entropy=torch.linspace(0.1, 1.0, rollouts * width).reshape(shape),
        origin=origin,
        lengths=ends,
        is_finished=torch.tensor(is_finished or [True] * rollouts),
        completions=list(completions or [b""] * rollouts),
        seeds=[0] * rollouts,
    )


def make_scores(rewards: Sequence[float | None], rollouts: Rollouts) -> ScoredRollouts:
    """One outcome at the last token each; None: not scored. Above 1/2 is right."""
    scored = [
        Scored()
        if reward is None
        else Scored((RewardSpan(length - 1, length, reward, "outcome", "task"),), correct=reward > 0.5)
        for reward, length in zip(rewards, rollouts.lengths.tolist(), strict=True)
    ]
    return scores_of(scored)


def scores_of(scored: list[Scored]) -> ScoredRollouts:
    rewards = torch.tensor([one.reward for one in scored], dtype=torch.float64)
    return ScoredRollouts(scored, rewards, torch.tensor([one.correct for one in scored]))
