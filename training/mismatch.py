"""The sampling engine's log-probabilities against the trainer's own under the same weights. Pure tensor functions.

Two programs round differently, so a rollout is never quite on policy. `mismatch_ratio` is exp(recomputed - sampler); what is
made of it here multiplies the policy term of the loss and never its denominators.
"""

import torch
from torch import Tensor

EXPONENT_LIMIT = 20.0
LEVELS = ("token", "sequence_mean", "sequence_sum")


def mismatch_ratio(
    recomputed_logprobs: Tensor, sampler_logprobs: Tensor, loss_mask: Tensor, *, level: str = "token"
) -> Tensor:
    """`[B, T]` exp(recomputed - sampler) per token, or of the whole completion by the mean or the sum of its log-ratios.

    Args:
        recomputed_logprobs: `[B, T]` nats, under the weights that sampled, by the trainer.
        sampler_logprobs: `[B, T]` nats, of the same weights, by the engine.
        loss_mask: `[B, T]`, True where the token counts; elsewhere the ratio is 1.
    Raises:
        ValueError: the level is unknown.
    Source: Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL training".
    """
    counts = loss_mask.bool()
    difference = torch.where(counts, recomputed_logprobs, 0) - torch.where(counts, sampler_logprobs, 0)
    if level == "token":
        exponent = difference
    elif level in LEVELS:
        total = difference.sum(dim=1, keepdim=True)
        exponent = total / counts.sum(dim=1, keepdim=True).clamp(min=1) if level == "sequence_mean" else total
        exponent = torch.where(counts, exponent, 0)
    else:
        raise ValueError(f"unknown mismatch level {level!r}; known: {', '.join(LEVELS)}")
    return exponent.clamp(-EXPONENT_LIMIT, EXPONENT_LIMIT).exp()


def bounded(ratio: Tensor, *, low: float, high: float) -> Tensor:
    """The ratio inside `[low, high]`, 0 outside (IcePop).

    Source: Ling team 2025, arXiv:2510.18855.
    """
    return torch.where((ratio >= low) & (ratio <= high), ratio, 0)


def sequence_kept(
    recomputed_logprobs: Tensor, sampler_logprobs: Tensor, loss_mask: Tensor, *, low: float, high: float
) -> Tensor:
    """`[B]` bool: the geometric mean of a completion's token ratios lies inside `[low, high]`."""
    ratio = mismatch_ratio(recomputed_logprobs, sampler_logprobs, loss_mask, level="sequence_mean")
    mean = torch.where(loss_mask.bool(), ratio, 0).amax(dim=1)
    return ((mean >= low) & (mean <= high)) | ~loss_mask.bool().any(dim=1)


def effective_sample_share(weights: Tensor, loss_mask: Tensor) -> float:
    """`(sum w)^2 / (n sum w^2)` over the counted tokens: 1 when all weigh the same, towards 0 when few carry the step."""
    counted = weights[loss_mask.bool()].double()
    squares = counted.square().sum().item()
    return counted.sum().item() ** 2 / (counted.numel() * squares) if squares else 0.0
