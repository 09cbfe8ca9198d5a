"""Whether the policy still tries different things: spread of its tokens, of its answers and of its ways to a right one."""

import math
import re
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlviewer.lib.near_duplicates import near_duplicates
from rlviewer.runs.causes import normalised
from rlviewer.signal.material import Floats, Integers, Material
from rlviewer.signal.measures.tokens import Tokens

# Rollouts of a group, and tokens of each, that are compared with each other: the cost grows with the square of the first.
MOST_COMPARED = 16
MOST_TOKENS = 1024
MOST_COPIES = 128  # looked through for near repeats
BLEU_ORDER = 4
GRAM = 3
_NUMBER = re.compile(rb"\d+(?:[.,]\d+)*")
_SPACE = re.compile(rb"\s+")


@dataclass(frozen=True, slots=True)
class GroupDiversity:
    """Of one group; None where nothing can be said of it."""

    semantic_entropy: float | None  # nats, over the clusters of its answers
    distinct_answers: int | None
    distinct_forms: int | None  # of right completions, numbers and spaces put aside
    right_similarity: float | None  # mean Jaccard of n-gram sets over pairs of right completions
    self_bleu: float | None  # mean over its completions, each against the others
    repeats: int  # completions that nearly repeat an earlier one


@dataclass(frozen=True, slots=True)
class Diversity:
    groups: list[GroupDiversity]
    step: dict[str, Any]  # columns of `StepSignal`


def diversity(of: Material, tokens: Tokens) -> Diversity:
    correct = of.floats("correct")
    found = [_of_group(of, rows, correct) for rows in of.members()]
    right, wrong = (_entropy(tokens, correct == kind) for kind in (1, 0))
    sizes = [len(rows) for rows in of.members() if len(rows)]
    k = min(sizes, default=0)
    step = {
        "entropy_right": right,
        "entropy_wrong": wrong,
        "semantic_entropy": _mean([one.semantic_entropy for one in found]),
        "distinct_answers": _mean([one.distinct_answers for one in found]),
        "distinct_forms": _mean([one.distinct_forms for one in found]),
        "right_similarity": _mean([one.right_similarity for one in found]),
        "self_bleu": _mean([one.self_bleu for one in found]),
        "repeat_share": sum(one.repeats for one in found) / of.count if of.count else None,
        "pass_k": k if k > 1 else None,
        "pass_at_k": _pass_at(of, correct, k) if k > 1 else None,
    }
    return Diversity(found, step)


def _of_group(of: Material, rows: Integers, correct: Floats) -> GroupDiversity:
    clusters = answer_clusters(of, rows)
    sequences = [_tokens(of, row) for row in rows.tolist()]
    compared = sequences[:MOST_COMPARED]
    right = [row for row in rows.tolist() if correct[row] == 1]
    right_compared = [sequences[row - int(rows[0])] for row in right[:MOST_COMPARED]]
    copies = near_duplicates([one.tolist() for one in sequences[:MOST_COPIES]]) if len(rows) > 1 else []
    return GroupDiversity(
        semantic_entropy=entropy(clusters) if len(clusters) > 1 else None,
        distinct_answers=len(set(clusters)) if clusters else None,
        distinct_forms=len({form(of.packed[row].completion) for row in right}) if right else None,
        right_similarity=mean_similarity(right_compared) if len(right) > 1 else None,
        self_bleu=self_bleu(compared) if len(compared) > 1 else None,
        repeats=sum(len(cluster) - 1 for cluster in copies),
    )


def _tokens(of: Material, row: int) -> Integers:
    """Token ids, or bytes of the text where none are stored."""
    ids = of.packed[row].columns.get("token_ids")
    found = np.frombuffer(of.packed[row].completion, np.uint8) if ids is None else ids
    return found[:MOST_TOKENS].astype(np.int64)


def answer_clusters(of: Material, rows: Integers) -> list[Hashable]:
    """Which answers are the same, as the source says, else as read; a rollout without an answer is left out."""
    stored = [of.narrow["answer_cluster"][row] for row in rows.tolist()]
    if any(cluster is not None for cluster in stored):
        return [cluster for cluster in stored if cluster is not None]
    answers = [of.narrow["parsed_answer"][row] for row in rows.tolist()]
    return [normalised(answer) for answer in answers if answer is not None]


def entropy(clusters: Sequence[Hashable]) -> float:
    """Of the distribution of answers over their clusters, in nats."""
    total = len(clusters)
    return sum(-n / total * math.log(n / total) for n in Counter(clusters).values())


def form(completion: bytes) -> bytes:
    """A text with every number and every space alike."""
    return _SPACE.sub(b" ", _NUMBER.sub(b"0", completion)).strip().lower()


def gram_counts(sequences: Sequence[Integers], order: int) -> Integers:
    """`[sequence, gram]`: how often each holds every run of `order` tokens that one of them holds."""
    _, places = np.unique(np.concatenate(sequences), return_inverse=True)
    size = int(places.max(initial=0)) + 1
    bounds = np.cumsum([len(one) for one in sequences])[:-1]
    names: list[Integers] = []
    for own in np.split(places.astype(np.int64), bounds):
        count = max(0, len(own) - order + 1)
        grams = np.zeros(count, np.int64)
        for shift in range(order):
            # A product that overflows only names two grams alike, one in 2**64.
            grams = grams * size + own[shift : shift + count]
        names.append(grams)
    distinct, where = np.unique(np.concatenate(names), return_inverse=True)
    owner = np.repeat(np.arange(len(sequences)), [len(grams) for grams in names])
    width = max(1, len(distinct))
    return np.bincount(owner * width + where, minlength=len(sequences) * width).reshape(len(sequences), width)


def mean_similarity(sequences: Sequence[Integers]) -> float:
    """Mean Jaccard similarity of the sets of `GRAM` neighbouring tokens over all pairs; two too short for one are alike."""
    held = (gram_counts(sequences, GRAM) > 0).astype(np.float64)
    shared = held @ held.T
    sizes = held.sum(axis=1)
    together = sizes[:, None] + sizes[None, :] - shared
    similar = np.divide(shared, together, out=np.ones_like(shared), where=together > 0)
    pairs = np.triu_indices(len(sequences), 1)
    return float(similar[pairs].mean())


def self_bleu(sequences: Sequence[Integers]) -> float:
    """Mean BLEU of each against all others as references: 1 when every one repeats another.

    Orders 1 to 4, as far as a completion is long; counts of higher orders are smoothed by one (Lin and Och 2004). Source: Zhu et
    al. 2018, "Texygen", arXiv:1802.01886.
    """
    lengths = np.array([len(one) for one in sequences])
    logs, orders = np.zeros(len(sequences)), np.zeros(len(sequences))
    for order in range(1, BLEU_ORDER + 1):
        counts = gram_counts(sequences, order)
        top = np.sort(counts, axis=0)[-2:]
        # The most that any other one holds: the largest, or the second where it is one's own.
        others = np.where((counts == top[1]) & ((counts == top[1]).sum(axis=0) == 1), top[0], top[1])
        matched, total = np.minimum(counts, others).sum(axis=1), counts.sum(axis=1)
        smooth = order > 1
        is_long = total > 0
        share = (matched + smooth) / np.maximum(total + smooth, 1)
        logs += np.where(is_long & (share > 0), np.log(np.maximum(share, 1e-300)), np.where(is_long, -np.inf, 0))
        orders += is_long
    closest = _closest_lengths(lengths)
    brevity = np.where(lengths < closest, np.exp(1 - closest / np.maximum(lengths, 1)), 1.0)
    return float((brevity * np.exp(logs / np.maximum(orders, 1)) * (orders > 0)).mean())


def _closest_lengths(lengths: Integers) -> Floats:
    """Of each, the length among the others that is nearest; the shorter of two."""
    gaps = np.abs(lengths[:, None] - lengths[None, :]).astype(np.float64) + (lengths[None, :] > lengths[:, None]) * 0.5
    np.fill_diagonal(gaps, np.inf)
    return lengths[gaps.argmin(axis=1)].astype(np.float64)


def _entropy(tokens: Tokens, is_wanted: Any) -> float | None:
    """Mean over the sampled tokens of these rollouts, nats; kept or not, so that dead groups speak too."""
    if tokens.entropy is None:
        return None
    mask = tokens.generated & is_wanted[tokens.rollout] & np.isfinite(tokens.entropy)
    return float(tokens.entropy[mask].mean(dtype=np.float64)) if mask.any() else None


def _pass_at(of: Material, correct: Floats, k: int) -> float | None:
    """Unbiased pass@k of the step's prompts (Chen et al. 2021, eq. 1), over groups judged whole."""
    chances = []
    for rows in of.members():
        known = correct[rows][np.isfinite(correct[rows])]
        if len(known) >= k:
            chances.append(1 - math.comb(len(known) - int(known.sum()), k) / math.comb(len(known), k))
    return sum(chances) / len(chances) if chances else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
