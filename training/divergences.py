"""KL between policy and another model, estimated on the sampled tokens (Schulman 2020, "Approximating KL divergence").

All take log-probabilities of the sampled tokens in nats, of one shape, and return nats per token. k1 is unbiased and can be
negative; k3 is unbiased and never negative. As a loss on the policy k1 has zero expected gradient, k2 that of the reverse
KL, k3 that of the forward KL.
"""

from collections.abc import Callable

import torch
from torch import Tensor

EXPONENT_LIMIT = 20.0


def kl_k1(policy_logprobs: Tensor, other_logprobs: Tensor) -> Tensor:
    """`log policy - log other`."""
    return policy_logprobs - other_logprobs


def kl_k2(policy_logprobs: Tensor, other_logprobs: Tensor) -> Tensor:
    """Half the square of the log-ratio."""
    return (policy_logprobs - other_logprobs).square() / 2


def kl_k3(policy_logprobs: Tensor, other_logprobs: Tensor) -> Tensor:
    """`exp(d) - 1 - d` with d = log other - log policy, clamped to 20 in size."""
    difference = (other_logprobs - policy_logprobs).clamp(-EXPONENT_LIMIT, EXPONENT_LIMIT)
    # expm1 keeps the small values that exp(d) - 1 rounds away.
    return difference.expm1() - difference


KL_ESTIMATORS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"k1": kl_k1, "k2": kl_k2, "k3": kl_k3}


def top_k_divergence(policy_logprobs: Tensor, sampler_logprobs: Tensor, *, kind: str) -> Tensor:
    """`[...]` between two distributions over K named tokens and all others as one; never above that of the whole vocabulary.

    `tv` half the sum of |policy - sampler|; `kl` sum of sampler log(sampler / policy), in nats.

    Args:
        policy_logprobs, sampler_logprobs: `[..., K]` nats of the same tokens, those the sampler found likeliest and the one
            it drew; a token that fills up a row stands with -inf in both.
    Raises:
        ValueError: the shapes differ or the kind is unknown.
    Source: Qi et al. 2026, arXiv:2602.04879.
    """
    if policy_logprobs.shape != sampler_logprobs.shape:
        raise ValueError(f"shapes differ: {list(policy_logprobs.shape)} and {list(sampler_logprobs.shape)}")
    policy, sampler = (_with_others(one.double().exp()) for one in (policy_logprobs, sampler_logprobs))
    if kind == "tv":
        return (policy - sampler).abs().sum(dim=-1) / 2
    if kind == "kl":
        return torch.where(sampler > 0, sampler * ((sampler + 1e-8) / (policy + 1e-8)).log(), 0).sum(dim=-1)
    raise ValueError(f"unknown divergence {kind!r}; known: tv, kl")


def _with_others(probabilities: Tensor) -> Tensor:
    others = (1 - probabilities.sum(dim=-1, keepdim=True)).clamp(min=0)
    return torch.cat([probabilities, others], dim=-1)


def adapted_coefficient(coefficient: float, kl: float, *, target: float, horizon: int, rollouts: int) -> float:
    """The KL coefficient after a step whose mean KL was `kl`: it grows while KL is above the target, by at most a fifth.

    `coefficient (1 + clip(kl / target - 1, -0.2, 0.2) rollouts / horizon)`.

    Source: Ziegler et al. 2019, arXiv:1909.08593, sec. 2.2.
    """
    error = min(max(kl / target - 1, -0.2), 0.2)
    return coefficient * (1 + error * rollouts / horizon)


def adapted_entropy_coefficient(coefficient: float, entropy: float, *, target: float, step: float) -> float:
    """The entropy coefficient after a step: up by `step` while the entropy is at most the target, else down, in 0 to 1.

    Source: Skywork-OR1, arXiv:2505.22312.
    """
    return min(max(coefficient + (step if entropy <= target else -step), 0.0), 1.0)
