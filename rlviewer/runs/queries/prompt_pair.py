"""Two completions of one prompt whose words are compared."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models import QuerySet

from rlviewer.runs.models import Prompt, Rollout, StopReason
from rlviewer.runs.queries.beside import Shown, alone, beside, differing_place, read_packed
from rlviewer.runs.queries.run import shown_answer
from rlviewer.runs.queries.visits import Visit, milestones

TEXT_CHARS = 20_000


@dataclass(frozen=True, slots=True)
class Pin:
    """One of the two rollouts whose words are compared."""

    rollout: Rollout
    answer: str | None
    shown: Shown

    @property
    def stop_reason(self) -> str:
        return StopReason(self.rollout.stop_reason).label


@dataclass(frozen=True, slots=True)
class Pair:
    a: Pin
    b: Pin
    differs_at: int | None
    unit: str
    is_chosen: bool

    @property
    def both(self) -> tuple[Pin, Pin]:
        return self.a, self.b


def pair_of(prompt: Prompt, lanes: Sequence[Sequence[Visit]], a_id: int | None, b_id: int | None) -> Pair | None:
    """The two rollouts that were asked for; where none was, those that tell most. Three queries."""
    of_prompt = Rollout.objects.filter(group__prompt=prompt).select_related("step", "group")
    asked = {one.pk: one for one in of_prompt.filter(pk__in=[pk for pk in (a_id, b_id) if pk is not None])}
    a, b = (asked.get(pk) if pk is not None else None for pk in (a_id, b_id))
    is_chosen = a is not None and b is not None
    if not is_chosen:
        proposed = _telling_pair(lanes, of_prompt)
        if proposed is None:
            return None
        a, b = a or proposed[0], b or proposed[1]
    assert a is not None and b is not None
    packed = {one.pk: found for one, found in read_packed(list({a.pk: a, b.pk: b}.values()))}
    first, second = packed[a.pk], packed[b.pk]
    texts = beside(first.completion, second.completion, limit=TEXT_CHARS)
    if a == b:
        texts = (alone(first.completion, limit=TEXT_CHARS),) * 2
    has_tokens = "token_ids" in first.columns and "token_ids" in second.columns
    pins = [
        Pin(one, None if one.parsed_answer is None else shown_answer(one.parsed_answer), text)
        for one, text in zip((a, b), texts, strict=True)
    ]
    unit = "token" if has_tokens else "character"
    return Pair(pins[0], pins[1], differing_place(first, second), unit, is_chosen)


def _telling_pair(lanes: Sequence[Sequence[Visit]], of_prompt: QuerySet[Rollout]) -> tuple[Rollout, Rollout] | None:
    """A wrong rollout of the visit before the first solved one and a right one of that; else of the first and the last visit."""
    first, last = _telling_visits(lanes)
    if first is None or last is None:
        return None
    of_visits = of_prompt.filter(group__in=[first.group.pk, last.group.pk]).order_by("group", "number")
    own: dict[int, list[Rollout]] = defaultdict(list)
    for one in of_visits:
        own[one.group_id].append(one)
    before, after = own[first.group.pk], own[last.group.pk]
    if not before or not after:
        return None
    return (
        next((one for one in before if not one.correct), before[0]),
        next((one for one in after if one.correct), after[0]),
    )


def _telling_visits(lanes: Sequence[Sequence[Visit]]) -> tuple[Visit | None, Visit | None]:
    for visits in lanes:
        solved = milestones(visits).solved
        before = [visit for visit in visits if solved is not None and visit.step < solved.step]
        if before:
            return before[-1], solved
    several = next((visits for visits in lanes if len(visits) > 1), None)
    return (None, None) if several is None else (several[0], several[-1])
