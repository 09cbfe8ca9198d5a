"""Why one group taught or not, in words."""

from collections.abc import Sequence

import numpy as np

from rlviewer.lib.text import bytes_from_text
from rlviewer.lib.visible import visible
from rlviewer.runs.causes import Cause, first_cause
from rlviewer.runs.models import Group, Rollout
from rlviewer.runs.queries.step import headline
from rlviewer.runs.templatetags.show import significant

# What the trainer's own reasons for leaving a group out mean.
DROPPED = {
    "not_mixed": "left out of the update; another prompt was sampled in its place",
    "single": "left out of the update: one rollout has nothing to be compared with",
    "unscored": "left out of the update: fewer than two of its rollouts were scored",
}


def dropped_words(group: Group) -> str:
    """Why the group stayed out of the update; empty for one that entered it."""
    if group.kept:
        return ""
    told = visible(bytes_from_text(group.drop_reason))
    return DROPPED.get(group.drop_reason) or f"left out of the update{f': {told}' if told else ''}"


def cause_of(group: Group, rollouts: Sequence[Rollout], *, is_identical: bool) -> Cause | None:
    """Why a group of training taught nothing."""
    return first_cause(
        group.dead_cause,
        [one.reward for one in rollouts],
        [one.stop_reason for one in rollouts],
        [one.parsed_answer for one in rollouts],
        reference=None if group.prompt.answer is None else bytes(group.prompt.answer).decode(errors="replace"),
        is_identical=is_identical,
    )


# What a group says that taught nothing, by its cause.
DEAD = {
    "failed": "No signal: no rollout was scored, or every one ended in an error",
    "truncated": "No signal: every rollout was cut at the token limit",
    "checker": "No signal, and the checker is suspect: some answers equal the reference, yet all got one reward",
    "solved": "All right: nothing left to learn here",
    "identical": "No signal: the same completion {count} times",
    "one_wrong": "All wrong: one wrong answer {count} times",
    "all_different": "All wrong: {answers} different answers",
    "partial": "No signal: every rollout got the same partial reward",
    "single": "One rollout, so no baseline inside the group: advantage 0 by rule.",
    "unread": "All wrong: no answer could be read",
}


def why(group: Group, rollouts: Sequence[Rollout], *, teaches: bool, cause: Cause | None) -> str:
    """Why this group did or did not teach, with the numbers that say so; of an evaluation (not `teaches`) what came out."""
    if not teaches or not rollouts:
        return headline(group, rollouts, teaches=teaches)
    if cause is not None:
        answers = len({one.parsed_answer for one in rollouts} - {None})
        return DEAD[cause.key].format(count=len(rollouts), answers=answers)
    if not group.kept:
        return f"{_outcome(rollouts)}, left out of the update"
    differ = len({one.reward for one in rollouts}) > 1
    return f"Teaches{'' if differ else ' by its reward alone'}: {_outcome(rollouts)}{_advantages(rollouts)}"


def _outcome(rollouts: Sequence[Rollout]) -> str:
    judged = [one.correct for one in rollouts if one.correct is not None]
    if judged:
        return f"{sum(judged)} right of {len(judged)}"
    rewards = [one.reward for one in rollouts if one.reward is not None and np.isfinite(one.reward)]
    if not rewards:
        return "no reward is a number"
    ends = dict.fromkeys((min(rewards), max(rewards)))
    return "rewards " + " to ".join(significant(end) for end in ends)


def _advantages(rollouts: Sequence[Rollout]) -> str:
    known = [one.advantage for one in rollouts if one.advantage is not None and np.isfinite(one.advantage)]
    if not known:
        return ""
    ends = dict.fromkeys((max(known), min(known)))
    return ", advantages " + " / ".join(f"{'+' if end > 0 else ''}{significant(end, 2)}" for end in ends)
