"""Numbers worked out when a batch is stored, so that no list ever has to: of rollouts, groups and steps.

NaN, infinite and missing values are left out of every mean; where nothing is left the mean is None (NaN in arrays).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rlviewer.runs.tokens import token_lengths
from training.records import CLIP_FLAGS, ORIGINS

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

CLIPPED = (CLIP_FLAGS.index("clipped_high"), CLIP_FLAGS.index("clipped_low"))
GENERATED = ORIGINS.index("generated")


@dataclass(frozen=True, slots=True)
class RolloutStatistics:
    """One entry per rollout."""

    length_tokens: Integers
    sampled_tokens: Integers  # without prefixes, inserted feedback and environment output
    counted_tokens: Integers  # where the loss mask counts
    entropy_mean: Floats  # nats per counted token
    logprob_mean: Floats  # of the sampler, nats per counted token
    clip_share: Floats


def rollout_statistics(rollouts: pa.Table) -> RolloutStatistics:
    lengths = token_lengths(rollouts)
    total = int(lengths.sum())
    mask = _scattered(rollouts.column("loss_mask"), lengths, 1)
    counted = None if mask is None else mask != 0
    origin = _scattered(rollouts.column("origin"), lengths, GENERATED)
    row_of = np.repeat(np.arange(len(lengths)), lengths)
    clip = rollouts.column("clip_flag")

    def count(tokens: Mask | None) -> Integers:
        return lengths if tokens is None else np.bincount(row_of, tokens, minlength=len(lengths)).astype(np.int64)

    def mean(values: npt.NDArray[Any] | None) -> Floats:
        if values is None or not total:
            return np.full(len(lengths), np.nan)
        used = np.isfinite(values) if counted is None else np.isfinite(values) & counted
        sums = np.bincount(row_of, np.where(used, values, 0), minlength=len(lengths))
        counts = np.bincount(row_of, used, minlength=len(lengths))
        return np.divide(sums, counts, out=np.full(len(lengths), np.nan), where=counts > 0)

    clipped = _scattered(clip, lengths, 255)
    return RolloutStatistics(
        length_tokens=lengths,
        sampled_tokens=count(None if origin is None else origin == GENERATED),
        counted_tokens=count(counted),
        entropy_mean=mean(_scattered(rollouts.column("entropy"), lengths, np.nan)),
        logprob_mean=mean(_scattered(rollouts.column("sampler_logprobs"), lengths, np.nan)),
        clip_share=mean(None if clipped is None else np.where(clipped == 255, np.nan, np.isin(clipped, CLIPPED))),
    )


def _scattered(column: pa.ChunkedArray, lengths: Integers, missing: float) -> npt.NDArray[Any] | None:
    """Flat values with `missing` for every token of a rollout that lacks them; None when all rollouts do."""
    if column.null_count == len(column):
        return None
    flat = column.combine_chunks().flatten().to_numpy()
    if not column.null_count:
        return flat
    out = np.full(int(lengths.sum()), missing, dtype=flat.dtype)
    out[np.repeat(column.is_valid().to_numpy(), lengths)] = flat
    return out


@dataclass(frozen=True, slots=True)
class Scores:
    """What the statistics of groups and steps need of each rollout."""

    reward: Floats  # NaN: not scored
    correct: Floats  # 0, 1, NaN: unknown
    kept: Mask
    is_truncated: Mask
    entropy_mean: Floats
    length_tokens: Integers


def scores(rollouts: pa.Table, statistics: RolloutStatistics) -> Scores:
    correct = rollouts.column("correct").cast(pa.int8()).cast(pa.float64())
    return Scores(
        reward=pc.fill_null(rollouts.column("reward"), np.nan).to_numpy(),
        correct=pc.fill_null(correct, np.nan).to_numpy(),
        kept=pc.fill_null(rollouts.column("kept"), True).to_numpy(),
        is_truncated=pc.fill_null(pc.equal(rollouts.column("stop_reason"), "length"), False).to_numpy(),
        entropy_mean=statistics.entropy_mean,
        length_tokens=statistics.length_tokens,
    )


def group_statistics(reward: Floats, correct: Floats) -> dict[str, Any]:
    """Of one group: `reward_mean`, `reward_std` (divides by size - 1), `success_share`, `dead_cause`."""
    scored = reward[np.isfinite(reward)]
    known = correct[~np.isnan(correct)]
    cause = ""
    if len(reward) and len(scored) == len(reward) and (scored == scored[0]).all():
        cause = "same_score"
        if len(reward) == 1:
            cause = "single"
        elif len(known) == len(reward) and (known == known[0]).all():
            cause = "all_right" if known[0] else "all_wrong"
    return {
        "reward_mean": _mean(scored),
        "reward_std": _std(scored),
        "success_share": _mean(known),
        "dead_cause": cause,
    }


def step_statistics(of: Scores, dead_causes: list[str]) -> dict[str, Any]:
    """The columns of `Step` that speak of its rollouts and groups."""
    scored = of.reward[np.isfinite(of.reward)]
    return {
        "group_count": len(dead_causes),
        "rollout_count": len(of.reward),
        "kept_count": int(of.kept.sum()),
        "reward_mean": _mean(scored),
        "reward_std": _std(scored),
        "pass_rate": _mean(of.correct[~np.isnan(of.correct)]),
        "dead_groups": sum(1 for cause in dead_causes if cause),
        "dead_right": dead_causes.count("all_right"),
        "dead_wrong": dead_causes.count("all_wrong"),
        "unscored_count": len(of.reward) - len(scored),
        "length_mean": _mean(of.length_tokens),
        "truncated_share": _mean(of.is_truncated),
        "entropy_mean": _mean(of.entropy_mean[~np.isnan(of.entropy_mean)]),
    }


def _mean(values: npt.NDArray[Any]) -> float | None:
    with np.errstate(over="ignore"):
        return float(values.mean()) if len(values) else None


def _std(values: npt.NDArray[Any]) -> float | None:
    with np.errstate(over="ignore", invalid="ignore"):
        return float(values.std(ddof=1)) if len(values) > 1 else None
