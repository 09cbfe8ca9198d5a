"""What the page of one step shows: its rollouts as groups."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from django.db.models import Q
from django.http import Http404

from rlviewer.lib.visible import visible_start
from rlviewer.runs.models import Attempt, Group, Rollout, Run, Step, StopReason
from rlviewer.runs.queries.run import RolloutLine, rollout_lines, shown_answer

# About as much as a person scrolls through; a page always holds at least one whole group.
ROLLOUTS_PER_PAGE = 192
TRAIN = "train"
KINDS = ("all", "dead", "live", "kept", "dropped")


@dataclass(frozen=True, slots=True)
class StepFilters:
    """Which groups of the step: state of the address."""

    kind: str = "all"
    attempt: int | None = None  # None: the current one
    after: int = -1  # keyset: groups with a larger index

    @classmethod
    def from_query(cls, query: Mapping[str, str]) -> Self:
        """Unreadable values fall back to the default: a mistyped address still shows the step."""
        kind = query.get("kind", "all")
        return cls(
            kind if kind in KINDS else "all",
            number_from(query.get("attempt")),
            -1 if (after := number_from(query.get("after"))) is None else after,
        )


def number_from(text: str | None) -> int | None:
    """A whole number that fits the database, else None."""
    return int(text) if text and text.isascii() and text.isdecimal() and len(text) <= 9 else None


@dataclass(frozen=True, slots=True)
class AnswerCluster:
    """Equal parsed answers of a group."""

    answer: str | None
    count: int
    correct: bool | None


@dataclass(frozen=True, slots=True)
class GroupCard:
    group: Group
    prompt: str
    reference: str | None
    headline: str
    lines: Sequence[RolloutLine]
    clusters: Sequence[AnswerCluster]
    reward_scale: float  # largest absolute reward, for the bars
    is_dead: bool


@dataclass(frozen=True, slots=True)
class StepPage:
    step: Step
    filters: StepFilters
    cards: Sequence[GroupCard]
    next_after: int | None
    attempts: Sequence[Attempt]  # that stored this step, newest first
    previous_index: int | None
    next_index: int | None

    @property
    def live_groups(self) -> int:
        return self.step.group_count - self.step.dead_groups


def step_page(run: Run, split: str, index: int, filters: StepFilters) -> StepPage:
    """Six queries, whatever the number of groups."""
    if "\0" in split:
        raise Http404("no stored name holds a NUL")
    stored = (
        Step.objects.filter(run=run, split=split, index=index).select_related("attempt").order_by("-attempt__number")
    )
    steps = list(stored)
    wanted = [s for s in steps if (s.is_current if filters.attempt is None else s.attempt.number == filters.attempt)]
    if not wanted:
        raise Http404(f"no step {index} of {split}")
    step = wanted[0]
    groups, next_after = _groups(step, filters)
    neighbours = Step.objects.filter(run=run, split=split, is_current=True)
    previous = neighbours.filter(index__lt=index).order_by("-index").values_list("index", flat=True).first()
    following = neighbours.filter(index__gt=index).order_by("index").values_list("index", flat=True).first()
    return StepPage(
        step=step,
        filters=filters,
        cards=_cards(groups, teaches=split == TRAIN),
        next_after=next_after,
        attempts=[s.attempt for s in steps],
        previous_index=previous,
        next_index=following,
    )


def _groups(step: Step, filters: StepFilters) -> tuple[list[Group], int | None]:
    kinds = {
        "all": Q(),
        "dead": ~Q(dead_cause=""),
        "live": Q(dead_cause=""),
        "kept": Q(kept=True),
        "dropped": Q(kept=False),
    }
    size = max(1, -(-step.rollout_count // max(1, step.group_count)))
    per_page = max(1, ROLLOUTS_PER_PAGE // size)
    rows = list(
        step.groups.filter(kinds[filters.kind], index__gt=filters.after)
        .select_related("prompt")
        .defer("prompt__oracle_trace", "prompt__parameters")
        .order_by("index")[: per_page + 1]
    )
    page = rows[:per_page]
    return page, page[-1].index if len(rows) > per_page else None


def _cards(groups: Sequence[Group], *, teaches: bool) -> list[GroupCard]:
    by_group: dict[int, list[RolloutLine]] = {group.pk: [] for group in groups}
    rollouts = list(Rollout.objects.filter(group__in=groups).order_by("group", "number"))
    for line in rollout_lines(rollouts):
        by_group[line.rollout.group_id].append(line)
    return [group_card(group, by_group[group.pk], teaches=teaches) for group in groups]


def group_card(group: Group, lines: Sequence[RolloutLine], *, teaches: bool) -> GroupCard:
    rewards = [abs(line.rollout.reward) for line in lines if line.rollout.reward is not None]
    finite = [reward for reward in rewards if reward < float("inf")]
    return GroupCard(
        group=group,
        prompt=visible_start(bytes(group.prompt.text), 240),
        reference=None if group.prompt.answer is None else visible_start(bytes(group.prompt.answer), 80),
        headline=headline(group, [line.rollout for line in lines], teaches=teaches),
        lines=lines,
        clusters=clusters([line.rollout for line in lines]),
        reward_scale=max(finite, default=0.0),
        is_dead=teaches and bool(group.dead_cause),
    )


def headline(group: Group, rollouts: Sequence[Rollout], *, teaches: bool) -> str:
    """Why this group did or did not teach, in one line; of an evaluation (not `teaches`) what came out."""
    count = f"{sum(bool(r.correct) for r in rollouts)} of {len(rollouts)} correct"
    if not rollouts:
        return "No rollout of this group is stored"
    if not teaches:
        return count
    if not group.dead_cause:
        if not group.kept:
            return f"{count}, left out of the update"
        # Without a baseline in the group equal rewards teach as well.
        differ = len({r.reward for r in rollouts}) > 1
        return f"{count}: the rewards differ, so it taught" if differ else f"{count}: it taught by its reward alone"
    if group.dead_cause == "single":
        return "One rollout only: nothing to compare it with"
    if group.dead_cause == "all_right":
        return "All right: nothing left to learn here"
    if all(r.stop_reason == StopReason.ERROR for r in rollouts):
        return "No signal: every rollout ended in an error"
    if all(r.stop_reason == StopReason.LENGTH for r in rollouts):
        return "No signal: every rollout was cut at the token limit"
    answers = {r.parsed_answer for r in rollouts}
    if group.dead_cause == "all_wrong" and answers == {None}:
        return "All wrong: no answer could be read"
    if group.dead_cause == "all_wrong" and len(answers) == 1:
        return f"All wrong: one wrong answer {len(rollouts)} times"
    if group.dead_cause == "all_wrong":
        return f"All wrong: {len(answers - {None})} different answers"
    return "No signal: every rollout got the same partial reward"


def clusters(rollouts: Sequence[Rollout]) -> list[AnswerCluster]:
    """Equal answers with their counts, most frequent first; unreadable ones last."""
    counts = Counter(r.parsed_answer for r in rollouts)
    correct = {r.parsed_answer: r.correct for r in rollouts}
    ordered = sorted(counts, key=lambda answer: (answer is None, -counts[answer], answer or ""))
    return [
        AnswerCluster(None if answer is None else shown_answer(answer), counts[answer], correct[answer])
        for answer in ordered
    ]
