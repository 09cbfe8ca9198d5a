"""Rewards without labels: what a prompt's own completions agree on. Pure functions of parsed answers; imports no torch."""

import math
from collections.abc import Sequence

# An answer of a completion, None: none could be read.
Answers = Sequence[str | None]


def votes(answers: Answers) -> dict[str, int]:
    """Completions per answer, in the order of appearance; a completion without an answer does not vote."""
    counts: dict[str, int] = {}
    for answer in answers:
        if answer is not None:
            counts[answer] = counts.get(answer, 0) + 1
    return counts


def majority(answers: Answers) -> str | None:
    """The most frequent answer; of equally frequent ones the one that appeared first. None: nobody voted.

    Source: Zuo et al. 2025, TTRL, arXiv:2504.16084.
    """
    counts = votes(answers)
    return max(counts, key=counts.__getitem__) if counts else None


def majority_rewards(answers: Answers) -> list[float]:
    """1 for completions that give the most frequent answer, else 0."""
    label = majority(answers)
    return [float(answer is not None and answer == label) for answer in answers]


def vote_metrics(groups: Sequence[tuple[Answers, Sequence[bool]]]) -> dict[str, float]:
    """Of groups of answers and whether each was right: how united the votes are, and how often the label is right."""
    shares, accurate = [], []
    for answers, correct in groups:
        label = majority(answers)
        shares.append(votes(answers)[label] / len(answers) if label is not None else 0.0)
        accurate.append(label is not None and correct[list(answers).index(label)])
    return {"vote_share": math.fsum(shares) / len(shares), "label_accuracy": sum(accurate) / len(accurate)}


def confident_rewards(
    answers: Answers, entropies: Sequence[float], *, bonus: float, prune_below: float, eps: float = 1e-6
) -> list[float]:
    """`q(a) + bonus (1 - n/M) (1 - u)` for an answer a of n completions with mean entropy u, M votes in all.

    q is n / (u + eps), normalised over answers. Answers with q below `prune_below` are dropped, never the last one: q is
    normalised again, M counted again, and a dropped answer earns 0, as does a completion without an answer.

    Args:
        entropies: of each completion the mean over its tokens, in nats.
        bonus: what a rare and confident answer earns at most on top.
    Source: DARE, arXiv:2601.21804 (form of the bonus and the threshold unconfirmed; 1 - u is floored at 0, ours).
    """
    counts = votes(answers)
    entropy = {
        answer: math.fsum(value for one, value in zip(answers, entropies, strict=True) if one == answer) / count
        for answer, count in counts.items()
    }
    shares = _normalised({answer: count / (entropy[answer] + eps) for answer, count in counts.items()})
    kept = {answer for answer, share in shares.items() if share >= prune_below}
    if not kept and shares:
        kept = {max(shares, key=shares.__getitem__)}
    shares = _normalised({answer: shares[answer] for answer in counts if answer in kept})
    total = sum(counts[answer] for answer in shares)
    rewards = {
        answer: share + bonus * (1 - counts[answer] / total) * max(1 - entropy[answer], 0.0)
        for answer, share in shares.items()
    }
    return [0.0 if answer is None else rewards.get(answer, 0.0) for answer in answers]


def label_weights(counts: Sequence[int], size: int, *, centre: float, width: float) -> list[float]:
    """How much each answer counts as the label: a Gaussian bump of its share of the `size` completions, summing to 1.

    Source: RESTRAIN, arXiv:2510.02172 (centre and width ours).
    """
    weights = [bump(count / size, centre=centre, width=width) for count in counts]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def bump(share: float, *, centre: float, width: float) -> float:
    """`exp(-(share - centre)^2 / (2 width^2))`."""
    return math.exp(-((share - centre) ** 2) / (2 * width**2))


def _normalised(weights: dict[str, float]) -> dict[str, float]:
    total = math.fsum(weights.values())
    return {answer: weight / total for answer, weight in weights.items()}
