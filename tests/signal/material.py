"""A step small enough to work out by hand, without a database."""

from typing import Any

import numpy as np

from rlviewer.runs.models import Group, Prompt, Step, StopReason
from rlviewer.runs.tokens import PackedRollout
from rlviewer.signal.material import NARROW, Material
from training.records import TOKEN_COLUMNS


def material(rollouts: list[dict[str, Any]], *, index: int = 0, dead: tuple[str, ...] = ()) -> Material:
    """Of each rollout: columns of `NARROW`, per-token columns, `group` (0), `completion`, `details`, `prompt_ids`.

    `dead` is the cause of each group. A column given to some rollouts only is partial.
    """
    group_of = [one.get("group", 0) for one in rollouts]
    groups = []
    for place in range(max(group_of) + 1):
        prompt = Prompt(pk=100 + place, generator=f"family {place}", difficulty=float(place))
        groups.append(Group(pk=place, index=place, prompt=prompt, dead_cause=dead[place] if place < len(dead) else ""))
    packed = [_packed(one) for one in rollouts]
    lengths = [max([len(values) for values in one.columns.values()], default=0) for one in packed]
    defaults = {"kept": True, "drop_reason": "", "stop_reason": StopReason.STOP}
    narrow = {name: [one.get(name, defaults.get(name)) for one in rollouts] for name in NARROW}
    narrow["id"] = list(range(len(rollouts)))
    narrow["length_tokens"] = lengths
    names = [name for name in TOKEN_COLUMNS if any(name in one.columns for one in packed)]
    whole = [name for name in names if all(name in one.columns for one in packed)]
    return Material(
        step=Step(index=index),
        groups=groups,
        group_of=np.array(group_of),
        narrow=narrow,
        packed=packed,
        prompt_ids=[one.get("prompt_ids") for one in rollouts],
        starts=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        columns={name: np.concatenate([one.columns[name] for one in packed]) for name in whole},
        partial=frozenset(names) - frozenset(whole),
    )


def _packed(one: dict[str, Any]) -> PackedRollout:
    columns = {
        name: np.array(one[name], dtype=kind.to_pandas_dtype()) for name, kind in TOKEN_COLUMNS.items() if name in one
    }
    return PackedRollout(one.get("completion", b""), columns, one.get("details", {}))
