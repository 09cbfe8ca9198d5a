"""What the page of one group shows: why it taught or not, and its rollouts side by side, by the answer they gave."""

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from django.http import Http404

from rlviewer.accounts.models import User
from rlviewer.lib.diff import common_start, first_difference, words_of
from rlviewer.lib.near_duplicates import GRAM, THRESHOLD, near_duplicates
from rlviewer.lib.visible import decoded, visible_block, visible_start
from rlviewer.runs.causes import Cause, first_cause
from rlviewer.runs.models import Group, RewardPart, Rollout, Run, Step, StopReason, TokenChunk
from rlviewer.runs.queries.beside import Shown, alone, beside
from rlviewer.runs.queries.run import shown_answer
from rlviewer.runs.queries.step import TRAIN, headline, number_from
from rlviewer.runs.templatetags.show import significant
from rlviewer.runs.tokens import PackedRollout, unpack_chunk

PROMPT_LIMIT = 20_000  # characters
SHOWN_CHARS = 4_000  # of each completion, until more is asked for
WHOLE_CHARS = 2_000_000
COLUMNS = 24  # rollouts whose texts one page shows
# Tokens of all rollouts together that are compared for near-duplicates; of longer groups the beginning of each.
COMPARED_TOKENS = 400_000
TOKENS_ONLY = frozenset({"token_ids"})
# What the trainer's own reasons for leaving a group out mean.
DROPPED = {
    "not_mixed": "left out of the update; another prompt was sampled in its place",
    "single": "left out of the update: one rollout has nothing to be compared with",
    "unscored": "left out of the update: fewer than two of its rollouts were scored",
}


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
class Likeness:
    """What is alike in the group."""

    is_identical: bool
    clusters: Sequence[Sequence[int]]  # near-duplicates, as places among the rollouts
    shared_start: int  # tokens, or characters, with which all begin
    compared: int | None  # tokens of each that were compared for near-duplicates; None: all
    unit: str  # what is counted: "token", or without token ids "character" and for near-duplicates words

    @property
    def repeats(self) -> list[Sequence[int]]:
        return [cluster for cluster in self.clusters if len(cluster) > 1]

    @property
    def repeating(self) -> int:
        return sum(map(len, self.repeats))


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
    likeness = _likeness(rollouts)
    teaches = step.split == TRAIN
    cause = cause_of(group, rollouts, likeness) if teaches else None
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
        dropped="" if group.kept else DROPPED.get(group.drop_reason, group.drop_reason or "left out of the update"),
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


def cause_of(group: Group, rollouts: Sequence[Rollout], likeness: Likeness) -> Cause | None:
    return first_cause(
        group.dead_cause,
        [one.reward for one in rollouts],
        [one.stop_reason for one in rollouts],
        [one.parsed_answer for one in rollouts],
        reference=None if group.prompt.answer is None else bytes(group.prompt.answer).decode(errors="replace"),
        is_identical=likeness.is_identical,
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


def _likeness(rollouts: Sequence[Rollout]) -> Likeness:
    """One query; of each rollout its token ids, cut where the group has very many, or without them its text."""
    most = max(1, COMPARED_TOKENS // max(1, len(rollouts)))
    digests: set[bytes] = set()
    tokens: dict[int, Any] = {}
    texts: dict[int, str] = {}
    is_cut = False
    for rollout, packed in read_packed(rollouts):
        digests.add(hashlib.blake2b(packed.completion).digest())
        ids = packed.columns.get("token_ids")
        text = decoded(packed.completion[: 8 * most])
        is_cut |= (len(text) > 4 * most) if ids is None else len(ids) > most
        texts[rollout.pk] = text[: 4 * most]
        if ids is not None:
            tokens[rollout.pk] = ids[:most].copy()
    has_tokens = len(tokens) == len(rollouts)
    if has_tokens:
        sequences = [tokens[one.pk].tolist() for one in rollouts]
        starts = [first_difference(tokens[rollouts[0].pk], tokens[one.pk]) for one in rollouts]
        shared = min((start for start in starts if start is not None), default=len(sequences[0]) if sequences else 0)
    else:
        sequences = [words_of(texts.get(one.pk, "")) for one in rollouts]
        shared = min((common_start(texts[rollouts[0].pk], text) for text in texts.values()), default=0)
    return Likeness(
        is_identical=len(digests) == 1,
        clusters=near_duplicates(sequences),
        shared_start=shared,
        compared=most if is_cut else None,
        unit="token" if has_tokens else "character",
    )


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


def read_packed(rollouts: Sequence[Rollout]) -> Iterator[tuple[Rollout, PackedRollout]]:
    """Texts and token ids, chunk by chunk, so that only one lies in memory. One query."""
    members: dict[int, list[Rollout]] = defaultdict(list)
    for one in rollouts:
        members[one.chunk_id].append(one)
    chunks = TokenChunk.objects.filter(pk__in=members).order_by("pk").values_list("pk", "payload")
    for pk, payload in chunks.iterator(chunk_size=1):
        packed = unpack_chunk(payload, columns=TOKENS_ONLY).rollouts
        for one in members[pk]:
            yield one, packed[one.position]


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


def differing_place(first: PackedRollout, second: PackedRollout) -> int | None:
    """The first token that differs; without token ids the first character; None where nothing does."""
    ids = first.columns.get("token_ids"), second.columns.get("token_ids")
    if ids[0] is not None and ids[1] is not None:
        return first_difference(ids[0], ids[1])
    if first.completion == second.completion:
        return None
    return common_start(decoded(first.completion), decoded(second.completion))


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
