"""What the page of one group shows: why it taught or not, and its rollouts side by side, by the answer they gave."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np
from django.http import Http404

from rlviewer.accounts.models import User
from rlviewer.lib.near_duplicates import GRAM, THRESHOLD
from rlviewer.lib.visible import visible_block, visible_start
from rlviewer.runs.causes import Cause
from rlviewer.runs.models import Group, RewardPart, Rollout, Run, Step, StopReason
from rlviewer.runs.queries.beside import Shown, alone, beside, differing_place, read_packed
from rlviewer.runs.queries.group_words import cause_of, dropped_words, why
from rlviewer.runs.queries.likeness import Likeness, likeness_of
from rlviewer.runs.queries.run import shown_answer
from rlviewer.runs.queries.step import TRAIN, number_from

PROMPT_LIMIT = 20_000  # characters
SHOWN_CHARS = 4_000  # of each completion, until more is asked for
WHOLE_CHARS = 2_000_000
COLUMNS = 24  # rollouts whose texts one page shows


@dataclass(frozen=True, slots=True)
class GroupFilters:
    """State of the address."""

    reference: int | None = None  # number of the rollout that the others are compared with; None: the best rewarded
    shows_all: bool = False  # near-duplicates as well
    after: int = 0  # columns before this page

    @classmethod
    def from_query(cls, query: Mapping[str, str]) -> Self:
        return cls(number_from(query.get("ref")), query.get("near") == "all", number_from(query.get("after")) or 0)


@dataclass(frozen=True, slots=True)
class Column:
    """One rollout. `differs_at` is the first token, or without token ids the first character, that is not the reference's."""

    rollout: Rollout
    answer: str | None
    shown: Shown
    differs_at: int | None
    parts: Sequence[RewardPart]
    alike: Sequence[Rollout]  # near-duplicates with the same answer that are folded under it

    @property
    def stop_reason(self) -> str:
        return StopReason(self.rollout.stop_reason).label

    @property
    def bar(self) -> float:
        reward = self.rollout.reward
        return abs(reward) if reward is not None and np.isfinite(reward) else 0.0


@dataclass(frozen=True, slots=True)
class AnswerColumns:
    """Rollouts that gave the same answer; `columns` are those of this page."""

    answer: str | None
    count: int
    correct: bool | None
    columns: Sequence[Column]


@dataclass(frozen=True, slots=True)
class GroupPage:
    group: Group
    run: Run
    step: Step
    filters: GroupFilters
    headline: str
    cause: Cause | None  # why it taught nothing
    dropped: str
    prompt: str
    prompt_is_cut: bool
    reference_answer: str | None
    rollouts: Sequence[Rollout]
    reference: Column | None
    is_chosen: bool  # the reference, by the address
    answers: Sequence[AnswerColumns]
    likeness: Likeness
    reward_scale: float
    next_after: int | None
    previous: Group | None
    next: Group | None
    newer: Step | None  # the attempt's that replaced this one
    gram: int = field(default=GRAM)
    threshold: float = field(default=THRESHOLD)


def visible_group(user: User, group_id: int) -> Group:
    """The group with its step, run and prompt, or 404 when this person may not see it. One query."""
    rows = Group.objects.filter(step__run__in=Run.objects.visible_to(user))
    group = rows.select_related("step__run__project", "step__attempt", "prompt").filter(pk=group_id).first()
    if group is None:
        raise Http404(f"no group {group_id}")
    return group


def group_page(group: Group, filters: GroupFilters) -> GroupPage:
    """At most nine queries, whatever the group's size; texts of one chunk at a time in memory."""
    step = group.step
    rollouts = list(Rollout.objects.filter(group=group).order_by("number"))
    likeness = likeness_of(rollouts)
    teaches = step.split == TRAIN
    cause = cause_of(group, rollouts, is_identical=likeness.is_identical) if teaches else None
    chosen = next((one for one in rollouts if one.number == filters.reference), None)
    reference = chosen or best_rewarded(rollouts)
    answers = by_answer(rollouts)
    folded = {} if filters.shows_all else _folded(rollouts, answers, likeness.clusters, reference)
    hidden = {one.pk for alike in folded.values() for one in alike}
    order = [one for members in answers for one in members if one.pk not in hidden and one != reference]
    page = order[filters.after : filters.after + COLUMNS]
    columns = {one.rollout.pk: one for one in _columns(page, reference, folded)}
    rewards = [abs(one.reward) for one in rollouts if one.reward is not None and np.isfinite(one.reward)]
    prompt, prompt_is_cut = visible_block(bytes(group.prompt.text), PROMPT_LIMIT)
    return GroupPage(
        group=group,
        run=step.run,
        step=step,
        filters=filters,
        headline=why(group, rollouts, teaches=teaches, cause=cause),
        cause=cause,
        dropped=dropped_words(group),
        prompt=prompt,
        prompt_is_cut=prompt_is_cut,
        reference_answer=None if group.prompt.answer is None else visible_start(bytes(group.prompt.answer), 200),
        rollouts=rollouts,
        reference=columns.get(reference.pk) if reference else None,
        is_chosen=chosen is not None,
        answers=[
            AnswerColumns(
                None if members[0].parsed_answer is None else shown_answer(members[0].parsed_answer),
                len(members),
                members[0].correct,
                [columns[one.pk] for one in members if one.pk in columns and one != reference],
            )
            for members in answers
        ],
        likeness=likeness,
        reward_scale=max(rewards, default=0.0),
        next_after=filters.after + COLUMNS if len(order) > filters.after + COLUMNS else None,
        previous=_neighbour(group, step, forward=False),
        next=_neighbour(group, step, forward=True),
        newer=None
        if step.is_current
        else Step.objects.filter(run=step.run_id, split=step.split, index=step.index, is_current=True)
        .select_related("attempt")
        .first(),
    )


def best_rewarded(rollouts: Sequence[Rollout]) -> Rollout | None:
    """The first of the highest reward: what the others should have been like."""

    def reward(one: Rollout) -> float:
        return one.reward if one.reward is not None and one.reward == one.reward else -np.inf

    return max(rollouts, key=reward, default=None)


def by_answer(rollouts: Sequence[Rollout]) -> list[list[Rollout]]:
    """Rollouts of equal answers together: right ones first, then frequent ones, those without an answer last."""
    together: dict[str | None, list[Rollout]] = defaultdict(list)
    for one in rollouts:
        together[one.parsed_answer].append(one)
    return sorted(together.values(), key=lambda own: (own[0].parsed_answer is None, not own[0].correct, -len(own)))


def _folded(
    rollouts: Sequence[Rollout],
    answers: Sequence[Sequence[Rollout]],
    clusters: Sequence[Sequence[int]],
    reference: Rollout | None,
) -> dict[int, list[Rollout]]:
    """Of each rollout that stands for near-duplicates with its answer: those. What differs in its answer is never hidden."""
    answer_of = {one.pk: place for place, members in enumerate(answers) for one in members}
    folded = {}
    for cluster in clusters:
        together: dict[int, list[Rollout]] = defaultdict(list)
        for place in cluster:
            together[answer_of[rollouts[place].pk]].append(rollouts[place])
        for members in together.values():
            first = reference if reference in members else members[0]
            folded[first.pk] = [one for one in members if one != first]
    return folded


def _columns(
    page: Sequence[Rollout], reference: Rollout | None, folded: Mapping[int, list[Rollout]]
) -> Iterator[Column]:
    """The reference and the rollouts of the page, each with what is told of it. Three queries."""
    if reference is None:
        return
    packed = {one.pk: found for one, found in read_packed([reference])}
    original = packed[reference.pk]
    parts: dict[int, list[RewardPart]] = defaultdict(list)
    shown = [reference, *page]
    for part in RewardPart.objects.filter(rollout__in=shown).order_by("rollout", "part"):
        parts[part.rollout_id].append(part)

    def column(one: Rollout, text: Shown, differs_at: int | None) -> Column:
        answer = None if one.parsed_answer is None else shown_answer(one.parsed_answer)
        return Column(one, answer, text, differs_at, parts[one.pk], folded.get(one.pk, []))

    starts = []
    for one, found in read_packed(page):
        _, text = beside(original.completion, found.completion, limit=SHOWN_CHARS)
        starts.append(text.before)
        yield column(one, text, differing_place(original, found))
    yield column(reference, alone(original.completion, limit=SHOWN_CHARS, start=min(starts, default=0)), None)


def whole_text(group: Group, number: int, reference: int | None) -> Shown:
    """One completion as far as a page can hold it, compared with the reference. Two queries."""
    rollouts = list(Rollout.objects.filter(group=group).order_by("number"))
    own = next((one for one in rollouts if one.number == number), None)
    if own is None:
        raise Http404(f"no rollout {number} in this group")
    other = next((one for one in rollouts if one.number == reference), None) or best_rewarded(rollouts)
    packed = {one.pk: found.completion for one, found in read_packed([own] if other is None else [own, other])}
    if other is None or other == own:
        return alone(packed[own.pk], limit=WHOLE_CHARS)
    return beside(packed[other.pk], packed[own.pk], limit=WHOLE_CHARS)[1]


def _neighbour(group: Group, step: Step, *, forward: bool) -> Group | None:
    """The next or previous group of the step, else the first or last one of the step beside it. At most two queries."""
    way, order = ("gt", "index") if forward else ("lt", "-index")
    own = Group.objects.filter(step=step, **{f"index__{way}": group.index}).order_by(order).first()
    if own is not None:
        return own
    steps = Step.objects.filter(run=step.run_id, split=step.split, is_current=True, group_count__gt=0)
    beyond = steps.filter(**{f"index__{way}": step.index}).order_by(order).first()
    return None if beyond is None else Group.objects.filter(step=beyond).order_by(order).first()
