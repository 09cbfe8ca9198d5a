"""The per-token columns of a step in the forms that measures share."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rlviewer.signal.material import Floats, Integers, Mask, Material
from training.records import CLIP_FLAGS, ORIGINS

# As training.losses: exp(20) is already past any use.
LOG_RATIO_LIMIT = 20.0
KEPT, CLIPPED_HIGH, CLIPPED_LOW, MASKED = range(len(CLIP_FLAGS))
PROMPT, PREFIX, GENERATED, FEEDBACK, ENVIRONMENT = range(len(ORIGINS))

Numbers = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Tokens:
    """Flat over the rollouts of a `Material`; None where the source lacks what it is made of, NaN where a rollout does."""

    rollout: Integers  # of each token
    counts: Mask  # in the loss; without a stored mask every generated token of a rollout that was kept
    generated: Mask
    sampler: Numbers | None  # nats
    policy: Numbers | None
    anchor: Numbers | None  # what the ratio is taken against: recomputed log-probabilities, else the sampler's
    recomputed: Numbers | None
    reference: Numbers | None
    entropy: Numbers | None  # nats
    advantage: Floats | None  # times the token's weight; a rollout's own where tokens have none
    is_spread: bool  # the advantage is the rollout's own, the same for each of its tokens
    flag: npt.NDArray[np.uint8] | None  # place in CLIP_FLAGS
    origin: npt.NDArray[np.uint8] | None  # place in ORIGINS

    @property
    def log_ratio(self) -> Floats | None:
        """log policy - log anchor in nats, clamped; NaN where the token does not count or one of them is not finite."""
        if self.policy is None or self.anchor is None:
            return None
        difference = self.policy.astype(np.float64) - self.anchor
        known = self.counts & np.isfinite(difference)
        return np.where(known, np.clip(difference, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT), np.nan)

    @property
    def is_clipped(self) -> Mask | None:
        if self.flag is None:
            return None
        return self.counts & ((self.flag == CLIPPED_HIGH) | (self.flag == CLIPPED_LOW))


def tokens_of(of: Material) -> Tokens:
    """The columns of a step; about 100 bytes a token."""
    rollout = of.rollout_of
    origin = column(of, "origin", GENERATED)
    generated = np.ones(len(rollout), np.bool_) if origin is None else origin == GENERATED
    kept = np.array(of.narrow["kept"], dtype=np.bool_)
    mask = column(of, "loss_mask", 1)
    counts = generated & kept[rollout] if mask is None else mask != 0
    sampler, recomputed = column(of, "sampler_logprobs"), column(of, "recomputed_logprobs")
    advantage, is_spread = _advantage(of, rollout)
    return Tokens(
        rollout=rollout,
        counts=counts,
        generated=generated,
        sampler=sampler,
        policy=column(of, "policy_logprobs"),
        anchor=sampler if recomputed is None else recomputed,
        recomputed=recomputed,
        reference=column(of, "ref_logprobs"),
        entropy=column(of, "entropy"),
        advantage=advantage,
        is_spread=is_spread,
        flag=column(of, "clip_flag", KEPT),
        origin=origin,
    )


def column(of: Material, name: str, missing: float = np.nan) -> Numbers | None:
    """A per-token column, `missing` at the rollouts that lack it; None when all do."""
    if name in of.columns:
        return of.columns[name]
    if name not in of.partial:
        return None
    kind = next(rollout.columns[name].dtype for rollout in of.packed if name in rollout.columns)
    return np.concatenate(
        [
            rollout.columns[name] if name in rollout.columns else np.full(length, missing, kind)
            for rollout, length in zip(of.packed, of.lengths.tolist(), strict=True)
        ]
    )


def _advantage(of: Material, rollout: Integers) -> tuple[Floats | None, bool]:
    given = column(of, "token_advantages")
    weights = column(of, "token_weights")
    if given is None:
        own = of.floats("advantage")
        if not np.isfinite(own).any():
            return None, True
        found, is_spread = own[rollout], True
    else:
        found, is_spread = given.astype(np.float64), False
    return (found if weights is None else found * weights), is_spread


def summed(by: Integers, values: Numbers, size: int) -> Floats:
    """Sum of the finite values of each owner."""
    return np.bincount(by, weights=np.where(np.isfinite(values), values, 0), minlength=size).astype(
        np.float64, copy=False
    )


def counted_in(by: Integers, mask: Mask, size: int) -> Integers:
    """How many of each owner's tokens the mask holds."""
    return np.bincount(by[mask], minlength=size)


def mean_or_none(values: Numbers) -> float | None:
    """Mean of the finite values; None where there is none."""
    known = values[np.isfinite(values)]
    return float(known.mean(dtype=np.float64)) if len(known) else None
