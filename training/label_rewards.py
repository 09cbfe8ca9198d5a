"""H4 without an answer key, or with more than one: votes, and the oracle's steps. Imports no torch."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from training import voting
from training.spans import Completion, RewardSpan, Scored, checked
from training.tasks.base import STEP_END, Task, TaskFamily


def majority_vote(
    family: TaskFamily, task: Task, completions: Sequence[Completion], params: Mapping[str, Any]
) -> list[Scored]:
    """All completions vote; of the group the first `trained_votes` are rewarded and train."""
    verdicts = [checked(family, task, one) for one in completions]
    answers = [one.parsed_answer for one in verdicts]
    counts, label = voting.votes(answers), voting.majority(answers)
    trained = params["trained_votes"] or max(len(completions) // 2, 2)
    told = f"Voted: {label} with {counts[label]} of {len(answers)} votes." if label is not None else "Nobody voted."
    out = _rewarded(verdicts, completions, voting.majority_rewards(answers), "majority_vote", told)
    return [
        one if number < trained else replace(one, spans=(), drop_reason="vote_only") for number, one in enumerate(out)
    ]


def confident_vote(
    family: TaskFamily, task: Task, completions: Sequence[Completion], params: Mapping[str, Any]
) -> list[Scored]:
    verdicts = [checked(family, task, one) for one in completions]
    if any(math.isnan(one.mean_entropy) for one, verdict in zip(completions, verdicts, strict=True) if verdict.spans):
        raise ValueError("confident_vote needs the sampler's entropy, which this engine does not give; take torch")
    values = voting.confident_rewards(
        [one.parsed_answer for one in verdicts],
        [one.mean_entropy for one in completions],
        bonus=params["rarity_bonus"],
        prune_below=params["prune_below"],
    )
    return _rewarded(verdicts, completions, values, "confident_vote")


def soft_labels(
    family: TaskFamily, task: Task, completions: Sequence[Completion], params: Mapping[str, Any]
) -> list[Scored]:
    """A completion earns the weight of its answer as the label; all 0 where no answer has votes enough."""
    verdicts = [checked(family, task, one) for one in completions]
    counts = voting.votes([one.parsed_answer for one in verdicts])
    size = max(sum(bool(one.spans) for one in verdicts), 1)
    weights = voting.label_weights(
        list(counts.values()), size, centre=params["label_centre"], width=params["label_width"]
    )
    is_trusted = max(counts.values(), default=0) >= params["least_share"] * size
    earned = dict(zip(counts, weights, strict=True)) if is_trusted else {}
    values = [0.0 if one.parsed_answer is None else earned.get(one.parsed_answer, 0.0) for one in verdicts]
    return _rewarded(verdicts, completions, values, "soft_labels", "" if is_trusted else "No answer has votes enough.")


def _rewarded(
    verdicts: Sequence[Scored],
    completions: Sequence[Completion],
    values: Sequence[float],
    name: str,
    told: str = "",
) -> list[Scored]:
    """The verdicts with other rewards: `values` at the last tokens. What is right is kept for the eye only."""
    return [
        replace(
            verdict,
            spans=(RewardSpan(one.token_count - 1, one.token_count, value, "outcome", name),),
            feedback=f"{told} {verdict.feedback}".strip(),
        )
        if verdict.spans
        else verdict
        for verdict, one, value in zip(verdicts, completions, values, strict=True)
    ]


def unparsable_penalty(
    family: TaskFamily, task: Task, completions: Sequence[Completion], params: Mapping[str, Any]
) -> list[Scored]:
    """-1 for a completion whose answer cannot be read."""
    return [
        Scored(spans=(RewardSpan(one.token_count - 1, one.token_count, -1.0, "format", "unparsable"),))
        if verdict.spans and verdict.parsed_answer is None
        else Scored()
        for one, verdict in ((one, checked(family, task, one)) for one in completions)
    ]


def step_labels(
    family: TaskFamily, task: Task, completions: Sequence[Completion], params: Mapping[str, Any]
) -> list[Scored]:
    """A span for every shown step, and one for the answer, which is the last step.

    Of `steps_weight` a step earns an equal part if it is one of the oracle's, in whatever order, each once; any other earns
    `-wrong_step_penalty` times that part. The answer earns what is left of 1 if it is right. In a boolean DAG the steps are
    the values of its nodes.
    """
    known = [step.text.strip() for step in task.oracle if step.text.endswith(STEP_END)]
    part = params["steps_weight"] / max(len(known), 1)
    return [_labelled(family, task, completion, known, part, params) for completion in completions]


def _labelled(
    family: TaskFamily,
    task: Task,
    completion: Completion,
    known: Sequence[str],
    part: float,
    params: Mapping[str, Any],
) -> Scored:
    verdict = checked(family, task, completion)
    if not verdict.spans:
        return verdict
    left, spans, start = Counter(known), [], 0
    for text, end in shown_steps(completion):
        value = part if left[text] > 0 else -params["wrong_step_penalty"] * part
        left[text] -= 1
        # Two steps may end in one token.
        spans.append(RewardSpan(min(start, end - 1), end, value, "process", "step"))
        start = end
    last = completion.token_count
    answer = (1 - params["steps_weight"] if known else 1.0) * verdict.reward
    spans.append(RewardSpan(min(start, last - 1), last, answer, "process", "answer"))
    return Scored(
        spans=tuple(spans),
        correct=verdict.correct,
        parsed_answer=verdict.parsed_answer,
        feedback=verdict.feedback,
    )


def shown_steps(completion: Completion) -> list[tuple[str, int]]:
    """Every step with its end mark, and the position after the token that holds the mark."""
    found, start, token = [], 0, 0
    ends = completion.token_ends
    for position, byte in enumerate(completion.raw):
        if byte == STEP_END.encode()[0]:
            while ends[token] <= position:
                token += 1
            found.append((completion.raw[start : position + 1].decode("utf-8", "replace").strip(), token + 1))
            start = position + 1
    return found
