"""Which groups taught nothing, and why."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlviewer.runs.causes import CAUSES, PLACE
from rlviewer.runs.models import Group, StopReason
from rlviewer.signal.material import Integers, Material

# Below this an advantage moves next to nothing. Groups are compared in units of their own spread or of the reward, both near 1.
FLAT_ADVANTAGE = 0.01


@dataclass(frozen=True, slots=True)
class GroupSignals:
    """Per group: its cause (place in `CAUSES`, None where it taught) and its tokens; and the step's numbers."""

    causes: Sequence[int | None]
    tokens: Integers
    step: dict[str, Any]  # columns of `StepSignal`


def group_signals(of: Material) -> GroupSignals:
    members = of.members()
    causes = [cause_of(group, of, rows) for group, rows in zip(of.groups, members, strict=True)]
    tokens = np.array([of.lengths[rows].sum() for rows in members], dtype=np.int64)
    advantage = np.abs(of.floats("advantage"))
    known = advantage[np.isfinite(advantage)]
    dead = np.array([-1 if cause is None else cause for cause in causes], dtype=np.int64)
    step = {
        "cause_groups": [int((dead == place).sum()) for place in range(len(CAUSES))],
        "cause_tokens": [int(tokens[dead == place].sum()) for place in range(len(CAUSES))],
        "flat_share": float((known < FLAT_ADVANTAGE).mean()) if len(known) else None,
        "abs_advantage_mean": float(known.mean()) if len(known) else None,
    }
    return GroupSignals(causes, tokens, step)


def cause_of(group: Group, of: Material, rows: Integers) -> int | None:
    """The first cause that fits a group of equal rewards; None for one that taught."""
    rewards = of.floats("reward")[rows]
    if not len(rows):
        return None
    stops = [of.narrow["stop_reason"][row] for row in rows]
    if not np.isfinite(rewards).any() or (group.dead_cause and all(stop == StopReason.ERROR for stop in stops)):
        return PLACE["failed"]
    if not group.dead_cause:
        return None
    return PLACE[_key(group, of, rows, stops)]


def _key(group: Group, of: Material, rows: Integers, stops: list[int]) -> str:
    answers = [of.narrow["parsed_answer"][row] for row in rows]
    if len(rows) == 1:
        return "single"
    if all(stop == StopReason.LENGTH for stop in stops):
        return "truncated"
    reference = group.prompt.answer
    if reference is not None:
        wanted = normalised(bytes(reference).decode(errors="replace"))
        hits = [answer is not None and normalised(answer) == wanted for answer in answers]
        if any(hits) and not all(hits):
            return "checker"
    if group.dead_cause == "all_right":
        return "solved"
    if len({of.packed[row].completion for row in rows}) == 1:
        return "identical"
    if group.dead_cause != "all_wrong":
        return "partial"
    if answers == [None] * len(rows):
        return "unread"
    return "one_wrong" if len(set(answers)) == 1 else "all_different"


def normalised(answer: str) -> str:
    """An answer without case, spaces, thousands separators, a final stop, and with `12.0` as `12`."""
    text = "".join(answer.split()).casefold().rstrip(".").replace(",", "")
    try:
        number = float(text)
    except ValueError:
        return text
    return repr(number) if np.isfinite(number) else text
