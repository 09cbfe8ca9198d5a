"""What each rollout adds to the step's means: sums over its counted tokens, and where the largest part of each lies."""

from typing import Any

import numpy as np
import numpy.typing as npt

from rlviewer.signal.material import Material
from rlviewer.signal.measures.budget import Budget, heaviest
from rlviewer.signal.measures.tokens import LOG_RATIO_LIMIT, Numbers, Tokens, counted_in, summed
from rlviewer.signal.measures.trust import k3


def rollout_shares(of: Material, tokens: Tokens, budget: Budget) -> dict[str, npt.NDArray[Any]]:
    """Columns of `RolloutSums`, a row a rollout. `NAME_at` is the heaviest token's position, -1 for none.

    `kl_k3` nats against the sampler, `ref_kl_k3` against the reference, `entropy` nats, `log_ratio` nats against the anchor,
    `clipped` tokens, `mass` as in the budget. A sum is missing when the source lacks a column; NaN where a rollout does.
    """
    found: dict[str, npt.NDArray[Any]] = {
        "rollout": np.array(of.narrow["id"], dtype=np.int64),
        "counted": budget.tokens.astype(np.int32),
        "mass": budget.mass,
        "mass_at": budget.heaviest.astype(np.int32),
    }
    values: dict[str, Numbers] = {}
    if tokens.policy is not None:
        policy = tokens.policy.astype(np.float64)
        if tokens.sampler is not None:
            values["kl_k3"] = k3(policy - tokens.sampler)
        if tokens.reference is not None:
            values["ref_kl_k3"] = k3(policy - tokens.reference)
    if tokens.entropy is not None:
        values["entropy"] = tokens.entropy
    if (clipped := tokens.is_clipped) is not None:
        values["clipped"] = clipped
    for name, each in values.items():
        known = np.where(tokens.counts & np.isfinite(each), each, 0).astype(np.float64)
        found[name] = summed(tokens.rollout, known, of.count)
        found[f"{name}_at"] = heaviest(known, of.starts).astype(np.int32)
        lacking = tokens.counts & ~np.isfinite(each)
        if lacking.any():  # what the mean is over, where that is less than all counted tokens
            found[f"{name}_counted"] = (found["counted"] - counted_in(tokens.rollout, lacking, of.count)).astype(
                np.int32
            )
    if (log_ratio := tokens.log_ratio) is not None:
        found["log_ratio"] = summed(tokens.rollout, np.clip(log_ratio, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT), of.count)
    return found
