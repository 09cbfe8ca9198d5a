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


AUXILIARIES: dict[str, Callable[[LossInputs, Mapping[str, Any]], Tensor]] = {
    "ref_kl": ref_kl,
}
# Entries that need log-probabilities under the frozen reference.
NEED_REFERENCE = frozenset({"ref_kl"})
