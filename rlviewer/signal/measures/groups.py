"""Which groups taught nothing, and why."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlviewer.runs.causes import CAUSES, PLACE, first_cause
from rlviewer.runs.models import Group
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
    """Place in `CAUSES` of the first cause that fits; None for a group that taught."""
    answer = group.prompt.answer
    cause = first_cause(
        group.dead_cause,
        of.floats("reward")[rows].tolist(),
        [of.narrow["stop_reason"][row] for row in rows],
        [of.narrow["parsed_answer"][row] for row in rows],
        reference=None if answer is None else bytes(answer).decode(errors="replace"),
        is_identical=len({of.packed[row].completion for row in rows}) == 1,
    )
    return None if cause is None else PLACE[cause.key]
