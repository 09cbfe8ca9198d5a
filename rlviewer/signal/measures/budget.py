"""What a step's update was spent on: the sum of abs(advantage x weight) over the tokens that count and are not clipped.

It stands for the gradient, and is not its norm: tokens that pull in opposite directions add up here.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from rlviewer.runs.models import RewardPart
from rlviewer.runs.tokens import PackedRollout
from rlviewer.signal.aggregation import PLAIN, SUM_OF, sums
from rlviewer.signal.material import Floats, Integers, Mask, Material
from rlviewer.signal.measures.tokens import (
    ENVIRONMENT,
    FEEDBACK,
    PREFIX,
    PROMPT,
    Tokens,
    counted_in,
    summed,
)

# Parts of one split that a step stores at most; the smallest become one.
MOST_PARTS = 24
OTHERS = "others"
NO_VALUE = "none"
THINK_END = b"</think>"
SPANS = ("thinking", "answer", "generated", "environment", "prefix")


@dataclass(frozen=True, slots=True)
class Part:
    """Of one split of a step: rollouts and tokens that belong to it, and the three sums of `aggregation.sums`."""

    split: str
    name: str
    rollouts: int
    tokens: int  # counted
    masses: dict[str, float]


@dataclass(frozen=True, slots=True)
class Budget:
    """Per rollout; all zero but `tokens` when the source has no advantage."""

    mass: Floats
    tokens: Integers  # counted
    heaviest: Integers  # token with the largest part, -1: none
    parts: list[Part] = field(default_factory=list)


def token_mass(tokens: Tokens, *, clipped_count: bool) -> Floats:
    """abs(advantage x weight) of each token, 0 where it has no gradient.

    Args:
        clipped_count: a clipped token keeps a bounded gradient, as under CISPO.
    """
    assert tokens.advantage is not None
    clipped = tokens.is_clipped
    has_gradient = tokens.counts if clipped is None or clipped_count else tokens.counts & ~clipped
    return np.where(has_gradient & np.isfinite(tokens.advantage), np.abs(tokens.advantage), 0.0)


def budget(of: Material, tokens: Tokens, pieces: Sequence[bytes] | None, *, clipped_count: bool) -> Budget:
    """The budget of a step; `pieces` are those of the vocabulary. One query, for the parts of the rewards."""
    counted = counted_in(tokens.rollout, tokens.counts, of.count)
    if tokens.advantage is None:
        return Budget(np.zeros(of.count), counted, np.full(of.count, -1))
    mass = token_mass(tokens, clipped_count=clipped_count)
    own = summed(tokens.rollout, mass, of.count)
    scales = sums(np.ones(of.count), counted, of.group_of)
    splitter = _Splitter(own, counted, scales)
    prompts = [of.groups[group].prompt for group in of.group_of.tolist()]
    parts = [
        *splitter.by_rollout("family", [prompt.generator or NO_VALUE for prompt in prompts]),
        *splitter.by_rollout("difficulty", [_difficulty(prompt.difficulty) for prompt in prompts]),
        *splitter.by_rollout("length", [length_bucket(length) for length in of.lengths.tolist()]),
        *splitter.by_weights("component", _components(of)),
        *splitter.by_token("span", tokens, mass, spans(of, tokens, pieces)),
        *splitter.by_token("sign", tokens, mass, _signs(tokens.advantage)),
    ]
    return Budget(own, counted, heaviest(mass, of.starts), parts)


def heaviest(values: Floats, starts: Integers) -> Integers:
    """Per rollout the position of its largest value above 0; -1 where there is none."""
    found = np.full(len(starts) - 1, -1)
    for row, (low, high) in enumerate(zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)):
        if high > low:
            place = int(values[low:high].argmax())
            found[row] = place if values[low + place] > 0 else -1
    return found


@dataclass(frozen=True, slots=True)
class _Splitter:
    mass: Floats
    counted: Integers
    scales: Mapping[str, Floats]  # of each rollout, by the name of the sum

    def by_rollout(self, split: str, names: list[str]) -> list[Part]:
        return self.by_weights(split, [{name: 1.0} for name in names])

    def by_weights(self, split: str, shares: list[dict[str, float]]) -> list[Part]:
        """Each rollout's mass goes to several parts, in shares that add up to 1."""
        masses: dict[str, Floats] = {}
        for row, own in enumerate(shares):
            for name, share in own.items():
                masses.setdefault(name, np.zeros(len(self.mass)))[row] += share
        holds = {name: share > 0 for name, share in masses.items()}
        return self._parts(
            split,
            (
                (name, share * self.mass, int(holds[name].sum()), int(self.counted[holds[name]].sum()))
                for name, share in masses.items()
            ),
        )

    def by_token(self, split: str, tokens: Tokens, mass: Floats, parts: Mapping[str, Mask]) -> list[Part]:
        rows = []
        for name, mask in parts.items():
            counted = counted_in(tokens.rollout, mask & tokens.counts, len(self.mass))
            own = summed(tokens.rollout[mask], mass[mask], len(self.mass))
            rows.append((name, own, int((counted > 0).sum()), int(counted.sum())))
        return self._parts(split, rows)

    def _parts(self, split: str, rows: Iterable[tuple[str, Floats, int, int]]) -> list[Part]:
        found = [
            Part(split, name, rollouts, counted, {of: float((own * scale).sum()) for of, scale in self.scales.items()})
            for name, own, rollouts, counted in rows
            if rollouts
        ]
        found.sort(key=lambda part: -part.masses[PLAIN])
        rest = found[MOST_PARTS - 1 :]
        if len(rest) < 2:
            return found
        masses = {of: sum(part.masses[of] for part in rest) for of in set(SUM_OF.values())}
        others = Part(split, OTHERS, sum(p.rollouts for p in rest), sum(p.tokens for p in rest), masses)
        return [*found[: MOST_PARTS - 1], others]


def _difficulty(value: float | None) -> str:
    return NO_VALUE if value is None else f"{value:.3g}"


def length_bucket(tokens: int) -> str:
    """`33-64`: up to a power of two; `0` for an empty completion."""
    if tokens < 1:
        return "0"
    top = 1 << (tokens - 1).bit_length()
    return f"{top // 2 + 1}-{top}" if top > 2 else str(tokens)


def _components(of: Material) -> list[dict[str, float]]:
    """Per rollout the shares of its reward's parts, by their size; one query."""
    row_of = {pk: row for row, pk in enumerate(of.narrow["id"])}
    sizes: list[dict[str, float]] = [{} for _ in row_of]
    parts = RewardPart.objects.filter(rollout_id__in=list(row_of)).values_list("rollout_id", "name", "kind", "value")
    for pk, name, kind, value in parts:
        own = sizes[row_of[pk]]
        key = name or kind
        own[key] = own.get(key, 0.0) + (abs(value) if np.isfinite(value) else 0.0)
    return [_shares(own) for own in sizes]


def _shares(sizes: dict[str, float]) -> dict[str, float]:
    """Parts that are all 0 share alike: their absence is what taught."""
    if not sizes:
        return {NO_VALUE: 1.0}
    total = sum(sizes.values())
    return {name: size / total if total else 1 / len(sizes) for name, size in sizes.items()}


def spans(of: Material, tokens: Tokens, pieces: Sequence[bytes] | None) -> dict[str, Mask]:
    """Which tokens belong to which of `SPANS`; `generated` where thinking and answer cannot be told apart."""
    origin = tokens.origin
    environment = np.zeros(len(tokens.rollout), np.bool_)
    prefix = environment
    if origin is not None:
        environment = (origin == ENVIRONMENT) | (origin == FEEDBACK)
        prefix = (origin == PROMPT) | (origin == PREFIX)
    answer_from = np.array([_answer_start(one, pieces) for one in of.packed], dtype=np.int64)
    place = np.arange(len(tokens.rollout)) - of.starts[tokens.rollout]
    start = answer_from[tokens.rollout]
    free = ~environment & ~prefix
    return {
        "thinking": free & (start >= 0) & (place < start),
        "answer": free & (start >= 0) & (place >= start),
        "generated": free & (start < 0),
        "environment": environment,
        "prefix": prefix,
    }


def _answer_start(one: PackedRollout, pieces: Sequence[bytes] | None) -> int:
    """First token behind the thinking: behind its closing tag, else behind the last step of shown work; -1: not told."""
    ids = one.columns.get("token_ids")
    end = one.completion.rfind(THINK_END)
    if end >= 0 and pieces is not None and ids is not None:
        sizes = [len(pieces[token]) if 0 <= token < len(pieces) else 0 for token in ids.tolist()]
        return int(np.searchsorted(np.cumsum(sizes), end + len(THINK_END))) + 1
    boundaries = one.details.get("step_boundaries")
    return int(max(boundaries)) if boundaries is not None and len(boundaries) else -1


def _signs(advantage: Floats) -> dict[str, Mask]:
    return {"positive": advantage > 0, "negative": advantage < 0}
