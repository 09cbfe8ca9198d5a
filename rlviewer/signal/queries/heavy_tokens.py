"""The tokens that weigh most in a metric, of a few rollouts whose arrays are read."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlviewer.lib.visible import visible_start
from rlviewer.runs.models import Rollout, Run, TokenChunk
from rlviewer.runs.queries.rollout import vocabulary_pieces
from rlviewer.runs.tokens import unpack_chunk
from rlviewer.signal.measures.tokens import CLIPPED_HIGH, CLIPPED_LOW, KEPT
from rlviewer.signal.measures.trust import k3

LISTED = 12
Columns = dict[str, Any]


@dataclass(frozen=True, slots=True)
class HeavyToken:
    rollout: int
    position: int
    text: str  # its id where the run's tokens have no texts
    value: float

    @property
    def href(self) -> str:
        return f"/rollouts/{self.rollout}/?token={self.position}"


def _kl(other: str) -> Callable[[Columns], Any]:
    return lambda own: k3(own["policy_logprobs"].astype(np.float64) - own[other])


def _clipped(own: Columns) -> Any:
    return ((own["clip_flag"] == CLIPPED_HIGH) | (own["clip_flag"] == CLIPPED_LOW)).astype(np.float64)


def _mass(own: Columns) -> Any:
    size = np.abs(own["token_advantages"] * own.get("token_weights", 1.0))
    return np.where(own["clip_flag"] == KEPT, size, 0.0) if "clip_flag" in own else size


# What a token adds, by the column of `RolloutSums`; a rollout that lacks a column has none to show.
VALUES: dict[str, Callable[[Columns], Any]] = {
    "kl_k3": _kl("sampler_logprobs"),
    "ref_kl_k3": _kl("ref_logprobs"),
    "entropy": lambda own: own["entropy"].astype(np.float64),
    "clipped": _clipped,
    "mass": _mass,
}


def heavy_tokens(run: Run, name: str | None, rollouts: Sequence[int]) -> list[HeavyToken]:
    """The LISTED largest of these rollouts, largest first. Two queries."""
    if name is None:
        return []
    places = Rollout.objects.filter(pk__in=rollouts).values_list("pk", "chunk_id", "position")
    held = {pk: (chunk, position) for pk, chunk, position in places}
    payloads = TokenChunk.objects.filter(pk__in={chunk for chunk, _ in held.values()}).values_list("pk", "payload")
    chunks = {pk: unpack_chunk(payload) for pk, payload in payloads}
    pieces = vocabulary_pieces(run.vocabulary_id) if run.vocabulary_id is not None else None
    found: list[HeavyToken] = []
    for pk, (chunk, position) in held.items():
        own = chunks[chunk].rollouts[position].columns
        try:
            values = VALUES[name](own)
        except KeyError:
            continue
        counted = own["loss_mask"] != 0 if "loss_mask" in own else np.ones(len(values), np.bool_)
        values = np.where(counted & np.isfinite(values), values, 0.0)
        for place in np.argsort(-values)[:LISTED].tolist():
            if values[place] > 0:
                found.append(HeavyToken(pk, place, token_text(own, place, pieces), float(values[place])))
    return sorted(found, key=lambda token: -token.value)[:LISTED]


def token_text(own: Columns, place: int, pieces: Sequence[bytes] | None) -> str:
    if "token_ids" not in own:
        return "not recorded"
    token = int(own["token_ids"][place])
    return visible_start(pieces[token], 40) if pieces is not None and 0 <= token < len(pieces) else f"id {token}"
