"""Which of several sequences of tokens nearly repeat each other."""

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence

import numpy as np
import numpy.typing as npt

GRAM = 3  # tokens
THRESHOLD = 0.8
TOLERANCE = 1e-9  # of similarities that are equal but for rounding

Integers = npt.NDArray[np.int64]


def jaccard(first: Integers, second: Integers) -> float:
    """Shared entries over all entries of two sets of sorted distinct numbers; two empty sets are the same."""
    shared = len(np.intersect1d(first, second, assume_unique=True))
    together = len(first) + len(second) - shared
    return shared / together if together else 1.0


def near_duplicates(
    sequences: Sequence[Sequence[Hashable]], *, gram: int = GRAM, threshold: float = THRESHOLD
) -> list[list[int]]:
    """Places of the sequences in clusters, each in order, by their first; most have one member.

    Two sequences belong together when the Jaccard similarity of their sets of `gram` neighbouring tokens is at least
    `threshold`, and so does what a chain of such pairs connects. A sequence shorter than `gram` is one gram by itself.

    Exact: two sets that similar share one of their rarest grams (Chaudhuri et al. 2006, "A primitive operator for similarity
    joins in data cleaning"), so only sequences that do are compared.
    """
    if not 0 < threshold <= 1:
        raise ValueError(f"threshold must be above 0 and at most 1, got {threshold}")
    sets = _rarest_first(sequences, gram)
    # Sets of places are whole numbers: bit i stands for sequence i.
    cluster = [1 << place for place in range(len(sets))]
    holders: dict[int, int] = defaultdict(int)  # of a gram among the rarest of theirs
    for place in sorted(range(len(sets)), key=lambda place: len(sets[place])):
        own = sets[place]
        rarest = own[: len(own) - math.ceil(threshold * len(own) - TOLERANCE) + 1].tolist()
        candidates, joined = 0, cluster[place]
        for name in rarest:
            candidates |= holders[name]
            holders[name] |= 1 << place
        while candidates:
            other = candidates.bit_length() - 1
            is_alike = jaccard(sets[other], own) >= threshold - TOLERANCE
            joined |= cluster[other] if is_alike else 0
            candidates &= ~(cluster[other] if is_alike else 1 << other)
        for member in _places(joined):
            cluster[member] = joined
    return [_places(one) for one in dict.fromkeys(cluster)]


def _places(bits: int) -> list[int]:
    return [place for place, digit in enumerate(reversed(f"{bits:b}")) if digit == "1"]


def _rarest_first(sequences: Sequence[Sequence[Hashable]], gram: int) -> list[Integers]:
    """The distinct grams of each sequence as sorted numbers; a gram that fewer sequences hold has a smaller one."""
    names: dict[tuple[Hashable, ...], int] = {}
    sets = []
    for sequence in sequences:
        # Of one shorter than a gram all tokens; an empty one has one gram without any.
        tokens = list(sequence)
        grams = (
            zip(*(tokens[shift:] for shift in range(gram)), strict=False) if len(tokens) >= gram else [tuple(tokens)]
        )
        sets.append(np.unique(np.array([names.setdefault(one, len(names)) for one in grams], dtype=np.int64)))
    counts = np.bincount(np.concatenate(sets), minlength=len(names)) if sets else np.zeros(0, dtype=np.int64)
    rank = np.empty(len(counts), dtype=np.int64)
    rank[np.argsort(counts, kind="stable")] = np.arange(len(counts))
    return [np.sort(rank[one]) for one in sets]
