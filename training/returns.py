"""From the rewards of tokens to their advantages: reward-to-go, generalised advantage estimation, process supervision.

Rewards, returns and advantages go on across tokens that do not count (prompts of later turns, tool output): a reward that
stands there belongs to what the policy wrote before it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from training.advantages import TIE_TOLERANCE
from training.steps import StepRewards


@dataclass(frozen=True, slots=True)
class Estimated:
    """`[B, T]` float64, 0 where the token does not count."""

    advantages: Tensor
    returns: Tensor  # what the critic should have said: advantages + values


def return_to_go(token_rewards: Tensor, loss_mask: Tensor, *, discount: float = 1.0) -> Tensor:
    """`sum over s >= t of discount^(s - t) r_s`, where only counted tokens take a step of the discount.

    Args:
        token_rewards: `[B, T]`.
        loss_mask: `[B, T]`, True where the token counts.
    Source: Hu et al. 2025, arXiv:2501.03262, for the rewards of tokens.
    """
    counts = loss_mask.bool()
    out = torch.zeros_like(token_rewards, dtype=torch.float64)
    running = torch.zeros(len(out), dtype=torch.float64, device=out.device)
    owed = torch.zeros_like(running)
    for column in reversed(range(out.shape[1])):
        now, reward = counts[:, column], token_rewards[:, column] + owed
        running = torch.where(now, reward + discount * running, running)
        owed = torch.where(now, 0, reward)
        out[:, column] = torch.where(now, running, 0)
    return out


def gae(
    token_rewards: Tensor,
    values: Tensor,
    loss_mask: Tensor,
    *,
    discount: float = 1.0,
    trace_decay: float = 0.95,
    value_after_last: Tensor | None = None,
) -> Estimated:
    """Generalised advantage estimation: `A_t = d_t + discount trace_decay A_(t+1)`, `d_t = r_t + discount V_(t+1) - V_t`.

    The token after t is the next one that counts.

    Args:
        token_rewards: `[B, T]`.
        values: `[B, T]`, of the state before each token; what stands at masked tokens never matters.
        loss_mask: `[B, T]`, True where the token counts.
        trace_decay: lambda; 1 is the return minus the value, 0 the one-step error.
        value_after_last: `[B]`, of the state after the last token; None: 0, the completion is over.
    Source: Schulman et al. 2016, arXiv:1506.02438, eq. 16.
    """
    counts = loss_mask.bool()
    advantages = torch.zeros_like(token_rewards, dtype=torch.float64)
    values = torch.where(counts, values, 0).double()
    ahead = torch.zeros(len(values), dtype=torch.float64, device=values.device)
    next_value = ahead if value_after_last is None else value_after_last.double()
    owed = torch.zeros_like(ahead)
    for column in reversed(range(values.shape[1])):
        now, reward = counts[:, column], token_rewards[:, column] + owed
        error = reward + discount * next_value - values[:, column]
        ahead = torch.where(now, error + discount * trace_decay * ahead, ahead)
        next_value = torch.where(now, values[:, column], next_value)
        owed = torch.where(now, 0, reward)
        advantages[:, column] = torch.where(now, ahead, 0)
    return Estimated(advantages, torch.where(counts, advantages + values, 0))


def normalised_steps(steps: StepRewards, group_index: Tensor, *, eps: float) -> Tensor:
    """`[B, S]`: every step's reward minus the mean of all steps of its group, divided by their deviation (n - 1) + `eps`.

    0 where the steps of a group differ by at most 1e-6; NaN where there is no step.

    Source: Shao et al. 2024, arXiv:2402.03300, sec. 4.1.3.
    """
    out = torch.full_like(steps.values, torch.nan)
    for group in group_index.unique().tolist():
        rows = group_index == group
        found = steps.values[rows][steps.exists[rows]]
        if not found.numel():
            continue
        has_spread = found.max() - found.min() > TIE_TOLERANCE
        scaled = (steps.values[rows] - found.mean()) / ((found.std() if found.numel() > 1 else 0.0) + eps)
        out[rows] = torch.where(steps.exists[rows], scaled if has_spread else torch.zeros_like(scaled), torch.nan)
    return out


def process_advantages(steps: StepRewards, group_index: Tensor, loss_mask: Tensor, *, eps: float) -> Tensor:
    """`[B, T]`: of every counted token the sum of the normalised rewards of the steps that end at or after it.

    Source: Shao et al. 2024, arXiv:2402.03300, sec. 4.1.3.
    """
    values = normalised_steps(steps, group_index, eps=eps).nan_to_num(0.0)
    at_end = torch.zeros(loss_mask.shape, dtype=torch.float64, device=loss_mask.device)
    at_end.scatter_add_(1, (steps.ends - 1).clamp(min=0), values)
    to_go = at_end.flip(1).cumsum(dim=1).flip(1)
    return torch.where(loss_mask.bool(), to_go, 0)
