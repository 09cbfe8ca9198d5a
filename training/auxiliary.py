"""H8, further loss terms per token, added to the policy loss before aggregation. A run names any number of them."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from training.divergences import KL_ESTIMATORS
from training.losses import LossInputs


def ref_kl(inputs: LossInputs, params: Mapping[str, Any]) -> Tensor:
    """`[B, T]` KL to the frozen reference times its coefficient, 0 at masked tokens.

    Raises:
        ValueError: the batch has no ref_logprobs, or the estimator is k1, whose expected gradient is zero.
    """
    if inputs.ref_logprobs is None:
        raise ValueError("ref_kl needs ref_logprobs; load a reference model or drop it from hooks.H8")
    if params["kl_estimator"] == "k1":
        raise ValueError("k1 as a loss has zero expected gradient; use k2 or k3")
    policy = torch.where(inputs.loss_mask, inputs.policy_logprobs, 0)
    reference = torch.where(inputs.loss_mask, inputs.ref_logprobs, 0)
    return params["kl_coefficient"] * KL_ESTIMATORS[params["kl_estimator"]](policy, reference)


def entropy_bonus(inputs: LossInputs, params: Mapping[str, Any]) -> Tensor:
    """`[B, T]` minus the policy's entropy times its coefficient, so that descent raises it.

    Raises:
        ValueError: the forward pass gave no entropy.
    """
    if inputs.policy_entropy is None:
        raise ValueError("entropy_bonus needs the policy's entropy with its gradient")
    return -params["entropy_coefficient"] * torch.where(inputs.loss_mask, inputs.policy_entropy, 0)


def drift_square(inputs: LossInputs, params: Mapping[str, Any]) -> Tensor:
    """`[B, T]` the squared log-ratio to the sampler times its coefficient: keeps the policy near what sampled.

    Source: Kimi team 2026, arXiv:2602.02276.
    """
    policy = torch.where(inputs.loss_mask, inputs.policy_logprobs, 0)
    sampler = torch.where(inputs.loss_mask, inputs.sampler_logprobs, 0)
    return params["drift_coefficient"] * (policy - sampler).square()


AUXILIARIES: dict[str, Callable[[LossInputs, Mapping[str, Any]], Tensor]] = {
    "ref_kl": ref_kl,
    "entropy_bonus": entropy_bonus,
    "drift_square": drift_square,
}
