"""How far a step's update moved from the weights that sampled, and what the rule that limits it cut."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rlviewer.signal.material import Floats, Integers, Mask, Material
from rlviewer.signal.measures.tokens import (
    LOG_RATIO_LIMIT,
    Numbers,
    Tokens,
    column,
    counted_in,
    mean_or_none,
)
from rlviewer.signal.names import RATIO_QUANTILES, SPREAD_QUANTILES


@dataclass(frozen=True, slots=True)
class VersionCounts:
    """What a step made of the tokens that one policy version sampled."""

    version: int  # steps trained when it sampled
    rollouts: int  # with a token of it
    mixing: int  # of these, rollouts that hold tokens of another version too
    tokens: int  # sampled
    kept: int  # counted and not clipped
    clipped: int
    dropped: int  # not counted
    spread: list[float] | None  # quantiles of the ratio of its counted tokens


@dataclass(frozen=True, slots=True)
class TrustSignals:
    step: dict[str, Any]  # columns of `StepSignal`
    group_ess: list[float | None]  # effective share of each group's tokens
    versions: list[VersionCounts]
    uncounted: dict[str, int]  # rollouts without a counted token, by reason
    histograms: dict[str, Integers]  # of `histograms`


def trust_signals(of: Material, tokens: Tokens) -> TrustSignals:
    log_ratio = tokens.log_ratio
    ratio = None if log_ratio is None else np.exp(log_ratio)
    counted = counted_in(tokens.rollout, tokens.counts, of.count)
    has_counted = counted > 0
    step = {
        "counted_tokens": int(counted.sum()),
        "counted_rollouts": int(has_counted.sum()),
        "counted_prompts": len(np.unique(of.group_of[has_counted])),
        "ratio_quantiles": _quantiles(ratio, RATIO_QUANTILES),
        "ess_share": None if ratio is None else ess_share(ratio),
        **_by_sign(of, tokens),
        **_divergences(tokens),
        **_gap(tokens),
    }
    groups = len(of.groups)
    return TrustSignals(
        step=step,
        group_ess=[None] * groups if ratio is None else group_ess(of.group_of[tokens.rollout], ratio, groups),
        versions=version_counts(of, tokens, ratio),
        uncounted=_uncounted(of, has_counted),
        histograms=histograms(tokens, log_ratio),
    )


def _quantiles(values: Numbers | None, shares: tuple[float, ...]) -> list[float] | None:
    if values is None:
        return None
    known = values[np.isfinite(values)]
    return np.quantile(known, shares).tolist() if len(known) else None


def ess_share(weights: Floats) -> float | None:
    """`(sum w)^2 / (n sum w^2)` of the finite weights: 1 when all weigh the same."""
    known = weights[np.isfinite(weights)]
    return float(known.sum() ** 2 / (len(known) * np.square(known).sum())) if len(known) else None


def group_ess(group: Integers, weights: Floats, groups: int) -> list[float | None]:
    """`ess_share` of each group's tokens."""
    known = np.isfinite(weights)
    own, held = group[known], weights[known]
    count = np.bincount(own, minlength=groups)
    total, squares = (np.bincount(own, weights=values, minlength=groups) for values in (held, held**2))
    return [
        float(t**2 / (n * s)) if n else None
        for t, n, s in zip(total.tolist(), count.tolist(), squares.tolist(), strict=True)
    ]


def _sign_counts(signs: Numbers, mask: Mask) -> list[int]:
    held = signs[mask]
    return [int((held > 0).sum()), int((held < 0).sum()), int((held == 0).sum())]


def _by_sign(of: Material, tokens: Tokens) -> dict[str, Any]:
    """Counted, clipped and masked tokens, in the order of `SIGNS`; what does not count has its rollout's sign."""
    if tokens.advantage is None:
        return {"counted_by_sign": None, "clipped_by_sign": None, "masked_by_sign": None}
    clipped = tokens.is_clipped
    rollout_sign = np.nan_to_num(np.sign(of.floats("advantage")))[tokens.rollout]
    return {
        "counted_by_sign": _sign_counts(tokens.advantage, tokens.counts),
        "clipped_by_sign": None if clipped is None else _sign_counts(tokens.advantage, clipped),
        "masked_by_sign": _sign_counts(rollout_sign, tokens.generated & ~tokens.counts),
    }


def _divergences(tokens: Tokens) -> dict[str, Any]:
    """Means over the counted tokens: of the two-way distribution (token, any other), and Schulman's estimators."""
    found: dict[str, Any] = {"tv_mean": None, "binary_kl_mean": None, "sampler_kl": None, "reference_kl": None}
    if tokens.policy is None:
        return found
    policy = np.where(tokens.counts, tokens.policy.astype(np.float64), np.nan)
    if tokens.sampler is not None:
        found["tv_mean"] = mean_or_none(total_variation(policy, tokens.sampler))
        found["binary_kl_mean"] = mean_or_none(binary_kl(policy, tokens.sampler))
        found["sampler_kl"] = kl_estimates(policy, tokens.sampler)
    if tokens.reference is not None:
        found["reference_kl"] = kl_estimates(policy, tokens.reference)
    return found


def total_variation(policy: Numbers, sampler: Numbers) -> Floats:
    """`|q - m|` of the sampled token's probabilities."""
    return np.abs(np.exp(policy) - np.exp(sampler.astype(np.float64)))


def binary_kl(policy: Numbers, sampler: Numbers) -> Floats:
    """`m log(m / q) + (1 - m) log((1 - m) / (1 - q))` in nats, as `training.losses.divergence_masked_loss`."""
    # Rounding may lift a probability over 1.
    m, q = (np.minimum(np.exp(nats), 1.0) for nats in (sampler.astype(np.float64), policy))
    log_ratio = np.clip(policy - sampler, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return (1 - m) * np.log((1 - m + 1e-8) / (1 - q + 1e-8)) - m * log_ratio


def kl_estimates(policy: Numbers, other: Numbers) -> list[float] | None:
    """Means of k1, k2, k3 in nats per token, as `training.divergences`; None without a finite pair."""
    k1 = policy - other
    k1 = k1[np.isfinite(k1)]
    return [float(k1.mean()), float(np.square(k1).mean() / 2), float(k3(k1).mean())] if len(k1) else None


def k3(k1: Numbers) -> Floats:
    """`exp(-x) - 1 + x` of x = log policy - log other."""
    back = np.clip(-k1, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return np.expm1(back) - back


def _gap(tokens: Tokens) -> dict[str, float | None]:
    """Trainer against sampler under the same weights, over the counted tokens, in nats."""
    if tokens.recomputed is None or tokens.sampler is None:
        return {"gap_mean": None, "gap_max": None}
    gap = np.abs(tokens.recomputed.astype(np.float64) - tokens.sampler)[tokens.counts]
    known = gap[np.isfinite(gap)]
    return {"gap_mean": mean_or_none(known), "gap_max": float(known.max()) if len(known) else None}


def version_counts(of: Material, tokens: Tokens, ratio: Floats | None) -> list[VersionCounts]:
    """By the version that sampled each generated token; by the rollout's where tokens name none."""
    versions = column(of, "token_policy_version", -1)
    if versions is None:
        own = np.array([-1 if v is None else v for v in of.narrow["policy_version"]], dtype=np.int64)
        versions = own[tokens.rollout]
    known = tokens.generated & (versions >= 0)
    names, place = np.unique(versions[known], return_inverse=True)
    holds = np.zeros((of.count, len(names)), np.bool_)
    holds[tokens.rollout[known], place] = True
    is_mixed = holds.sum(axis=1) > 1
    clipped = tokens.is_clipped
    found = []
    for column_of, version in enumerate(names.tolist()):
        here, holders = known & (versions == version), holds[:, column_of]
        counts = tokens.counts & here
        cut = 0 if clipped is None else int((clipped & here).sum())
        found.append(
            VersionCounts(
                version=int(version),
                rollouts=int(holders.sum()),
                mixing=int(is_mixed[holders].sum()),
                tokens=int(here.sum()),
                kept=int(counts.sum()) - cut,
                clipped=cut,
                dropped=int((here & ~counts).sum()),
                spread=None if ratio is None else _quantiles(ratio[counts], SPREAD_QUANTILES),
            )
        )
    return found


def _uncounted(of: Material, has_counted: Mask) -> dict[str, int]:
    """Why no token counted: what the trainer said of the rollout, else of its group, else how it ended."""
    reasons: dict[str, int] = {}
    for row in np.flatnonzero(~has_counted).tolist():
        group = of.groups[of.group_of[row]]
        reason = of.narrow["drop_reason"][row] or group.drop_reason or _own_reason(of, row)
        reasons[reason] = reasons.get(reason, 0) + 1
    return reasons


def _own_reason(of: Material, row: int) -> str:
    if not of.lengths[row]:
        return "empty completion"
    return "left out, no reason told" if not of.narrow["kept"][row] else "loss mask is empty"


# ---- histograms: what a rule with other thresholds would cut, without reading tokens again

BINS = 1024
# Bins are even in asinh(x / SCALE): about 2 % of the value wide, and a hundredth of SCALE near 0.
SCALES = {"ratio": 1e-3, "mismatch": 1e-3, "tv": 1e-4, "kl": 1e-5}
REACH = {"ratio": LOG_RATIO_LIMIT, "mismatch": LOG_RATIO_LIMIT, "tv": 1.0, "kl": LOG_RATIO_LIMIT}


def edges(kind: str) -> Floats:
    """`BINS + 1` edges: of log-ratios in nats on both sides of 0, of distances from 0."""
    reach = np.arcsinh(REACH[kind] / SCALES[kind])
    low = -reach if kind in {"ratio", "mismatch"} else 0.0
    return SCALES[kind] * np.sinh(np.linspace(low, reach, BINS + 1))


def histograms(tokens: Tokens, log_ratio: Floats | None) -> dict[str, Integers]:
    """Counted tokens by `KIND_SIGN`, in the bins of `edges`: `ratio` log policy - log anchor; `tv` and `kl` the distance
    between policy and sampler, of tokens that moved where their advantage pushes; `mismatch` log recomputed - log sampler.
    """
    if tokens.advantage is None:
        return {}
    values: dict[str, Numbers] = {} if log_ratio is None else {"ratio": log_ratio}
    if tokens.policy is not None and tokens.sampler is not None:
        moved = tokens.policy.astype(np.float64) - tokens.sampler
        is_pushed = tokens.counts & (np.sign(moved) == np.sign(tokens.advantage))
        policy = np.where(is_pushed, tokens.policy.astype(np.float64), np.nan)
        values |= {"tv": total_variation(policy, tokens.sampler), "kl": binary_kl(policy, tokens.sampler)}
    if tokens.recomputed is not None and tokens.sampler is not None:
        values["mismatch"] = np.where(tokens.counts, tokens.recomputed.astype(np.float64) - tokens.sampler, np.nan)
    signs: Mapping[str, Mask] = {"positive": tokens.advantage > 0, "negative": tokens.advantage < 0}
    return {
        f"{kind}_{sign}": _histogram(found[mask], kind)
        for kind, found in values.items()
        for sign, mask in signs.items()
    }


def _histogram(values: Numbers, kind: str) -> npt.NDArray[np.int64]:
    known = values[np.isfinite(values)]
    reach = np.arcsinh(REACH[kind] / SCALES[kind])
    low = -reach if kind in {"ratio", "mismatch"} else 0.0
    place = (np.arcsinh(known / SCALES[kind]) - low) / (reach - low) * BINS
    return np.bincount(np.clip(place.astype(np.int64), 0, BINS - 1), minlength=BINS)
