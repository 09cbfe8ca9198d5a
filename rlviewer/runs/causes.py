"""Why a group taught nothing: the first cause that fits, with what to do about it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlviewer.runs.models import StopReason


@dataclass(frozen=True, slots=True)
class Remedy:
    """A change to the run's configuration that a launch form can be opened with; without `changes` it is advice only.

    A change is a value, or a number with which the run's own value is multiplied (`scale`).
    """

    text: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    scale: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Cause:
    """`key` never changes: stored rows name a cause by its place in `CAUSES`."""

    key: str
    title: str
    meaning: str
    remedies: tuple[Remedy, ...]


_DROP = Remedy("Replace dead groups by new ones (DAPO)", {"algorithm": "dapo"})

# In the order in which they are tried. Add at the end only.
CAUSES = (
    Cause(
        "failed",
        "environment or checker failed",
        "No rollout of the group was scored, or every one ended in an error.",
        (Remedy("Repair the environment or the checker; the log and the checker's text say where it failed."),),
    ),
    Cause(
        "truncated",
        "all cut at the limit",
        "Every completion was cut at the token limit before it could answer.",
        (
            Remedy("Double the token limit", scale={"sampling.max_new_tokens": 2}),
            Remedy("Reward shorter completions, so that answers come before the limit."),
        ),
    ),
    Cause(
        "checker",
        "checker suspect",
        "Some answers equal the reference once case, spaces and number format are put aside, others do not, yet all got one"
        " reward.",
        (Remedy("Read these and repair the checker: right answers are lost, or wrong ones paid."),),
    ),
    Cause(
        "solved",
        "all solved",
        "Every rollout is right: the prompt has nothing left to teach.",
        (_DROP, Remedy("Make the task harder: raise its difficulty, or drop these prompts.")),
    ),
    Cause(
        "identical",
        "identical completions",
        "Every rollout is the same text, token by token.",
        (Remedy("Sample at a higher temperature", scale={"sampling.temperature": 1.25}), _DROP),
    ),
    Cause(
        "one_wrong",
        "one wrong answer every time",
        "Every rollout gives the same wrong answer: the policy is sure of a mistake.",
        (
            Remedy("Sample at a higher temperature", scale={"sampling.temperature": 1.25}),
            Remedy("Help with hints or worked steps for these prompts; more samples alone repeat the mistake."),
        ),
    ),
    Cause(
        "all_different",
        "all failed in different ways",
        "Every rollout is wrong and the answers differ: the prompt is out of reach.",
        (
            Remedy("Sample larger groups, so that one may succeed", scale={"sampling.group_size": 2}),
            Remedy("Make the task easier, or keep these prompts for later."),
        ),
    ),
    Cause(
        "partial",
        "equal partial reward",
        "Every rollout got the same reward, neither all right nor all wrong.",
        (Remedy("Use a finer reward: one that tells these rollouts apart."), _DROP),
    ),
    Cause(
        "single",
        "group of one",
        "One rollout only, so there is nothing to compare it with.",
        (Remedy("Sample groups of eight", {"sampling.group_size": 8}),),
    ),
    Cause(
        "unread",
        "no answer could be read",
        "Every rollout is wrong, and from none an answer could be read.",
        (Remedy("Show the wanted form in the prompt, or reward the form by itself."),),
    ),
)
PLACE = {cause.key: place for place, cause in enumerate(CAUSES)}


def first_cause(
    dead_cause: str,
    rewards: Sequence[float | None],
    stops: Sequence[int],
    answers: Sequence[str | None],
    *,
    reference: str | None,
    is_identical: bool,
) -> Cause | None:
    """The first cause that fits a group; None for one that taught. `dead_cause` is the group's, each list has an entry a rollout."""
    if not rewards:
        return None
    is_scored = any(reward is not None and math.isfinite(reward) for reward in rewards)
    if not is_scored or (dead_cause and all(stop == StopReason.ERROR for stop in stops)):
        return CAUSES[PLACE["failed"]]
    if not dead_cause:
        return None
    return CAUSES[PLACE[_dead_key(dead_cause, stops, answers, reference, is_identical)]]


def _dead_key(
    dead_cause: str, stops: Sequence[int], answers: Sequence[str | None], reference: str | None, is_identical: bool
) -> str:
    if len(answers) == 1:
        return "single"
    if all(stop == StopReason.LENGTH for stop in stops):
        return "truncated"
    if reference is not None:
        wanted = normalised(reference)
        hits = [answer is not None and normalised(answer) == wanted for answer in answers]
        if any(hits) and not all(hits):
            return "checker"
    if dead_cause == "all_right":
        return "solved"
    if is_identical:
        return "identical"
    if dead_cause != "all_wrong":
        return "partial"
    if all(answer is None for answer in answers):
        return "unread"
    return "one_wrong" if len(set(answers)) == 1 else "all_different"


def normalised(answer: str) -> str:
    """An answer without case, spaces, thousands separators, a final stop, and with `12.0` as `12`."""
    text = "".join(answer.split()).casefold().rstrip(".").replace(",", "")
    try:
        number = float(text)
    except ValueError:
        return text
    return repr(number) if math.isfinite(number) else text
