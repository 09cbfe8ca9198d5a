"""Which tokens of a rollout carry how much of the signal. Pure tensor functions; all rectangles are `[B, T]`."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def ends_weight(loss_mask: Tensor, *, strength: float) -> Tensor:
    """`1 + strength (2 tau - 1)^2` with tau from 0 at a rollout's first counted token to 1 at its last: a U.

    Source: AVATAR, arXiv:2508.03100.
    """
    counts = loss_mask.bool()
    place = counts.cumsum(dim=1).double() - 1
    last = counts.sum(dim=1, keepdim=True).double() - 1
    # A rollout of one token has no ends.
    position = torch.where(last > 0, place / last.clamp(min=1), 0.5)
    return torch.where(counts, 1 + strength * (2 * position - 1).square(), 0)


def dead_group_entropy_advantages(
    entropy: Tensor,
    loss_mask: Tensor,
    group_index: Tensor,
    dead_cause: Sequence[str | None],
    is_finished: Tensor,
    *,
    strength: float,
) -> Tensor:
    """Advantages for groups without a difference: all right `strength H_t`; all wrong `-strength (max H - H_t)`.

    H is a token's entropy in nats, its maximum is over the same rollout, so uncertain tokens are spared. Groups that are
    mixed, graded alike, of one, or without any finished completion get 0.

    Source: RL-ZVP, arXiv:2509.21880.
    """
    counts = loss_mask.bool()
    entropy = torch.where(counts, entropy, 0).double()
    finished = torch.zeros(len(dead_cause), dtype=torch.bool, device=group_index.device)
    finished.index_put_((group_index[is_finished],), torch.tensor(True, device=group_index.device))
    right, wrong = (
        (torch.tensor([cause == name for cause in dead_cause], device=group_index.device) & finished)[group_index, None]
        for name in ("all_right", "all_wrong")
    )
    highest = entropy.amax(dim=1, keepdim=True)
    out = torch.where(right, strength * entropy, torch.where(wrong, -strength * (highest - entropy), 0))
    return torch.where(counts, out, 0)


def top_entropy(entropy: Tensor, loss_mask: Tensor, *, share: float) -> Tensor:
    """Bool: the `share` of all counted tokens with the highest entropy; ties with the threshold are in.

    Source: Wang et al. 2025, "Beyond the 80/20 rule", arXiv:2506.01939.
    """
    counts = loss_mask.bool()
    if not bool(counts.any()):
        return counts
    ascending = entropy[counts].double().sort().values
    # torch.quantile takes at most 2^24 values.
    place = (1 - share) * (len(ascending) - 1)
    below, above = ascending[math.floor(place)], ascending[math.ceil(place)]
    threshold = below + (above - below) * (place - math.floor(place))
    return counts & (entropy.double() >= threshold)


def sampled_tokens(loss_mask: Tensor, *, share: float, seed: int) -> Tensor:
    """Weights of tokens that are drawn one by one: 1 / share with probability `share`, else 0.

    Their expectation is 1, so the gradient stays unbiased as long as the denominators count all tokens. A rollout of which
    nothing is drawn adds 0.

    Source: NAT (URS), arXiv:2603.06619.
    """
    counts = loss_mask.bool()
    draw = torch.rand(int(counts.sum()), dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    out = torch.zeros(counts.shape, dtype=torch.float64, device=counts.device)
    out[counts] = ((draw < share).double() / share).to(counts.device)
    return out


def prefix_cut(loss_mask: Tensor, *, shortest: int, seed: int) -> Tensor:
    """Weights of the tokens before a random cut: 1 / P(cut at or after the token), else 0.

    The cut is uniform from `shortest` to the rollout's counted tokens, so nothing behind it needs a forward pass.

    Source: NAT (RPC), arXiv:2603.06619; the distribution of the cut is ours.
    """
    counts = loss_mask.bool()
    total = counts.sum(dim=1, keepdim=True)
    least = total.clamp(max=shortest)
    choices = total - least + 1
    draw = torch.rand(len(counts), 1, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    cut = least + (draw.to(counts.device) * choices).long().clamp(max=choices - 1)
    place = counts.cumsum(dim=1)
    reach = ((total - place + 1).double() / choices).clamp(max=1.0)
    return torch.where(counts & (place <= cut), 1 / reach, 0)


def covariance(logprobs: Tensor, token_advantages: Tensor, loss_mask: Tensor) -> Tensor:
    """`(A - mean A) (log policy - mean log policy)` of every counted token, the means over all of the step; 0 elsewhere.

    Source: Cui et al. 2025, "The entropy mechanism of reinforcement learning", arXiv:2505.22617.
    """
    counts = loss_mask.bool()
    if not bool(counts.any()):
        return torch.zeros_like(token_advantages, dtype=torch.float64)
    logprobs, advantages = logprobs.double(), token_advantages.double()
    product = (advantages - advantages[counts].mean()) * (logprobs - logprobs[counts].mean())
    return torch.where(counts, product, 0)


def covariance_band(
    logprobs: Tensor, token_advantages: Tensor, loss_mask: Tensor, *, low: float, high: float, share: float, seed: int
) -> Tensor:
    """Bool: tokens drawn from those whose covariance lies between `low` and `high`, `share` of all counted, at least one.

    Source: Cui et al. 2025, Clip-Cov, arXiv:2505.22617.
    """
    value = covariance(logprobs, token_advantages, loss_mask)
    eligible = (loss_mask.bool() & (value > low) & (value < high)).flatten()
    found = eligible.nonzero()[:, 0]
    wanted = max(int(share * int(loss_mask.bool().sum())), 1)
    order = torch.randperm(len(found), generator=torch.Generator().manual_seed(seed)).to(found.device)
    chosen = torch.zeros_like(eligible)
    chosen[found[order[:wanted]]] = True
    return chosen.reshape(loss_mask.shape)


def covariance_top(logprobs: Tensor, token_advantages: Tensor, loss_mask: Tensor, *, share: float) -> Tensor:
    """Bool: the `share` of all counted tokens with the highest covariance, at least one.

    Source: Cui et al. 2025, KL-Cov, arXiv:2505.22617.
    """
    counts = loss_mask.bool().flatten()
    chosen = torch.zeros_like(counts)
    tokens = int(counts.sum())
    if not tokens:
        return chosen.reshape(loss_mask.shape)
    value = covariance(logprobs, token_advantages, loss_mask).flatten().masked_fill(~counts, -torch.inf)
    chosen[value.topk(max(int(share * tokens), 1)).indices] = True
    return chosen.reshape(loss_mask.shape)
