"""Rollouts side by side."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rlviewer.accounts.models import User
from rlviewer.lib.visible import visible_block
from rlviewer.runs.models import Rollout, Run, StopReason
from rlviewer.runs.queries.beside import Shown, alone, beside, differing_place, read_packed
from rlviewer.runs.queries.run import shown_answer

SHOWN_CHARS = 20_000


@dataclass(frozen=True, slots=True)
class Side:
    """One rollout. `differs_at` is its first token, or without token ids its first character, that is not the first rollout's."""

    rollout: Rollout
    prompt: str
    answer: str | None
    shown: Shown
    differs_at: int | None
    unit: str

    @property
    def stop_reason(self) -> str:
        return StopReason(self.rollout.stop_reason).label


def side_by_side(user: User, ids: Sequence[int]) -> list[Side]:
    """Those of `ids` that the person may see, in this order, each compared with the first. Two queries."""
    seen = Rollout.objects.filter(pk__in=ids, step__run__in=Run.objects.visible_to(user))
    stored = {row.pk: row for row in seen.select_related("step__run__project", "group__prompt")}
    rollouts = [stored[pk] for pk in ids if pk in stored]
    packed = {rollout.pk: found for rollout, found in read_packed(rollouts)}
    sides = []
    for rollout in rollouts:
        first, own = packed[rollouts[0].pk], packed[rollout.pk]
        has_tokens = "token_ids" in first.columns and "token_ids" in own.columns
        sides.append(
            Side(
                rollout,
                visible_block(bytes(rollout.group.prompt.text), 2000)[0],
                None if rollout.parsed_answer is None else shown_answer(rollout.parsed_answer),
                beside(first.completion, own.completion, limit=SHOWN_CHARS)[1],
                differing_place(first, own),
                "token" if has_tokens else "character",
            )
        )
    if len(sides) == 2:
        both = (packed[rollout.pk].completion for rollout in rollouts)
        sides[0] = replace(sides[0], shown=beside(*both, limit=SHOWN_CHARS)[0])
    elif sides:
        start = min(side.shown.before for side in sides[1:]) if sides[1:] else 0
        text = packed[rollouts[0].pk].completion
        sides[0] = replace(sides[0], shown=alone(text, limit=SHOWN_CHARS, start=start))
    return sides
