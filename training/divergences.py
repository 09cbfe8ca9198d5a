"""KL between policy and another model, estimated on the sampled tokens (Schulman 2020, "Approximating KL divergence").

All take log-probabilities of the sampled tokens in nats, of one shape, and return nats per token. k1 is unbiased and can be
negative; k3 is unbiased and never negative. As a loss on the policy k1 has zero expected gradient, k2 that of the reverse
KL, k3 that of the forward KL.
"""

from collections.abc import Callable

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
