"""KL to the reference as a part of the reward."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from training.divergences import KL_ESTIMATORS
from training.rewards import RewardSpan
from training.rollouts import Rollouts, ScoredRollouts
from training.steps import token_rewards


@dataclass(frozen=True, slots=True)
class ShapedRewards:
    """Scores with the penalty as a span of each rollout, and what every token of it is credited with."""

    scores: ScoredRollouts
    token_rewards: Tensor  # [B, T] float64; a row sums to the rollout's reward
    mean_kl: float  # nats per counted token, before the coefficient


def kl_in_reward(
    rollouts: Rollouts,
    scores: ScoredRollouts,
    anchor_logprobs: Tensor,
    ref_logprobs: Tensor,
    *,
    coefficient: float,
    estimator: str,
) -> ShapedRewards:
    """Takes `coefficient` times the KL to the reference from the reward of every sampled token.

    Args:
        anchor_logprobs, ref_logprobs: `[B, T]` nats, under the weights that sampled and the frozen reference.
    Source: Ouyang et al. 2022, arXiv:2203.02155, eq. 2, for the place; Schulman 2020 for the estimators.
    """
    counts = rollouts.generated
    kl = KL_ESTIMATORS[estimator](torch.where(counts, anchor_logprobs, 0), torch.where(counts, ref_logprobs, 0))
    kl = torch.where(counts, kl, 0).double()
    was_scored = torch.tensor([bool(one.spans) for one in scores.scored], device=kl.device)
    penalty = torch.where(was_scored[:, None], -coefficient * kl, 0)
    shaped = [
        replace(one, spans=(*one.spans, RewardSpan(0, length, total, "penalty", "ref_kl"))) if one.spans else one
        for one, length, total in zip(
            scores.scored, rollouts.lengths.tolist(), penalty.sum(dim=1).tolist(), strict=True
        )
    ]
    rewards = torch.tensor([one.reward for one in shaped], dtype=torch.float64, device=kl.device)
    return ShapedRewards(
        scores=ScoredRollouts(shaped, rewards, scores.correct),
        token_rewards=token_rewards(scores.scored, kl.shape[1], kl.device) + penalty,
        mean_kl=(kl.sum() / counts.sum().clamp(min=1)).item(),
    )
