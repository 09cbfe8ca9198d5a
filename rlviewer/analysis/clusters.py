"""Clusters of vectors and the words that set each apart: plain numbers and texts in, the same answer every time.

Spherical k-means: it needs one number that a person can turn, gives each cluster a centre and so an example, and takes a tenth
of a second for 2,000 rollouts. A hierarchy by a similarity threshold would leave most rollouts alone or all in one cluster, since
completions of one task lie near each other at a different distance in every run.
"""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

SEED = 0
RESTARTS, ROUNDS = 6, 40
SAME = 1e-6  # cosine distance below which two vectors count as one
WORD = re.compile(r"\w{2,40}")
WORDS = 5
COMMON = 0.1  # share of a cluster's texts that a word must be in
APART = 1.5  # how many times more often it must be here than elsewhere


@dataclass(frozen=True, slots=True)
class Cluster:
    """`members` are row numbers, the nearest to the centre first."""

    members: list[int]
    tightness: float  # mean cosine similarity to the centre


def clusters(vectors: np.ndarray, count: int) -> list[Cluster]:
    """At most `count` clusters of vectors of length 1 (rows), the largest first; fewer where fewer differ."""
    rng = np.random.default_rng(SEED)
    best_labels, best_centres, best = np.zeros(0, int), np.zeros((0, vectors.shape[1])), -math.inf
    for _ in range(RESTARTS if len(vectors) else 0):
        centres = _begin(vectors, count, rng)
        labels = np.full(len(vectors), -1)
        for _ in range(ROUNDS):
            moved = (vectors @ centres.T).argmax(1)
            if (moved == labels).all():
                break
            labels = moved
            sums = np.eye(len(centres), dtype=vectors.dtype)[labels].T @ vectors
            lengths = np.linalg.norm(sums, axis=1, keepdims=True)
            # A centre that nobody is nearest to stays where it was.
            centres = np.where(lengths > SAME, sums / np.maximum(lengths, SAME), centres)
        quality = float((vectors * centres[labels]).sum())
        if quality > best:
            best_labels, best_centres, best = labels, centres, quality
    found = [_cluster(vectors, np.flatnonzero(best_labels == n), centre) for n, centre in enumerate(best_centres)]
    return sorted((one for one in found if one.members), key=lambda one: (-len(one.members), min(one.members)))


def _begin(vectors: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """k-means++: each further centre is a vector far from those chosen, by chance."""
    centres = [vectors[rng.integers(len(vectors))]]
    distance = 1 - (vectors @ centres[0]).astype(np.float64)
    while len(centres) < count:
        weight = np.where(distance > SAME, distance, 0)
        if not weight.any():
            break  # no other vector differs from all of them
        centres.append(vectors[rng.choice(len(vectors), p=weight / weight.sum())])
        distance = np.minimum(distance, 1 - vectors @ centres[-1])
    return np.stack(centres)


def _cluster(vectors: np.ndarray, rows: np.ndarray, centre: np.ndarray) -> Cluster:
    near = vectors[rows] @ centre
    members = rows[np.argsort(-near, kind="stable")]
    return Cluster(members.tolist(), float(near.mean()) if len(rows) else math.nan)


@dataclass(frozen=True, slots=True)
class Word:
    """In which share of a cluster's texts a word is, and of all others."""

    text: str
    here: float
    elsewhere: float

    @property
    def told(self) -> str:
        return f"in {self.here:.0%} of these, in {self.elsewhere:.0%} of the others".replace("%", " %")


def telling_words(texts: Sequence[Mapping[int, str]]) -> list[list[Word]]:
    """Of each cluster the words that are in many of its texts and few of the others, most telling first.

    A word's weight is its share here times the logarithm of how many times more often it is here than elsewhere.
    """
    counts = [Counter(word for text in cluster.values() for word in set(words(text))) for cluster in texts]
    everywhere = sum(counts, Counter())
    total = sum(map(len, texts))
    told = []
    for cluster, counted in zip(texts, counts, strict=True):
        here, others = len(cluster), total - len(cluster)
        scored = []
        for word, number in counted.items():
            share = number / here
            # As if one more text elsewhere had half of it: a word of one text is not infinitely telling.
            elsewhere = (everywhere[word] - number + 0.5) / (others + 1)
            weight = share * math.log(share / elsewhere)
            if share >= COMMON and share > APART * elsewhere and (number > 1 or here == 1):
                exact = (everywhere[word] - number) / others if others else 0.0
                scored.append((-weight, word, Word(word, share, exact)))
        told.append([word for _, _, word in sorted(scored)[:WORDS]])
    return told


def words(text: str) -> list[str]:
    """The words of a text, in small letters: names, numbers of two digits and more, any script."""
    return WORD.findall(text.casefold())
