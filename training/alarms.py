"""What a step's numbers should not look like, as events of the step. Imports no torch."""

from collections.abc import Mapping
from typing import Any

# Nats a token. Engines that sample from the weights that are trained differ by rounding only: about 1e-6 in float32.
GAP_LIMITS = {"float32": 1e-3, "bfloat16": 5e-2}


def sampler_alarm(metrics: Mapping[str, float], *, limit: float, dtype: str) -> list[dict[str, Any]]:
    """One event when sampler and policy disagree by `limit` on average (0: by the limit of the weights' type)."""
    gap, limit = metrics.get("sampler_policy_gap", 0.0), limit or GAP_LIMITS[dtype]
    if gap <= limit:
        return []
    reason = (
        f"sampler and policy differ by {gap:.3g} nats a token, more than {limit:g}: "
        "the engine samples from old weights, or computes them otherwise"
    )
    return [{"kind": "sampler-policy-gap", "reason": reason, "gap": gap, "limit": limit}]
