"""The list of a run's rollouts: filters from the address, a page by key, the exact total."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from django.contrib.postgres.search import SearchQuery, SearchVector
from django.db.models import F, Q, QuerySet, Sum
from django.db.models.functions import Coalesce

from rlviewer.lib.text import bytes_from_str, text_from_bytes
from rlviewer.runs.models import Rollout, Run, Step, StopReason
from rlviewer.runs.queries.run import RolloutLine, rollout_lines, with_prompts
from rlviewer.runs.queries.step import number_from
from rlviewer.runs.templatetags.show import split_name

PER_PAGE = 100
STOPS = {reason.label: reason for reason in StopReason}
CORRECT = {"yes": True, "no": False}


@dataclass(frozen=True, slots=True)
class RolloutFilters:
    """Which rollouts of the run: state of the address."""

    split: str = ""  # empty: every split
    step_from: int | None = None
    step_to: int | None = None
    correct: str = ""  # "yes", "no" or empty
    stop: str = ""
    words: str = ""
    before: int | None = None  # keyset: rollouts with a smaller id

    @classmethod
    def from_query(cls, query: Mapping[str, str]) -> Self:
        """Unreadable values are left out: a mistyped address still shows rollouts."""
        correct, stop, before = query.get("correct", ""), query.get("stop", ""), query.get("before", "")
        return cls(
            split=query.get("split", "").replace("\x00", "")[:40],
            step_from=number_from(query.get("from")),
            step_to=number_from(query.get("to")),
            correct=correct if correct in CORRECT else "",
            stop=stop if stop in STOPS else "",
            words=query.get("words", "").replace("\x00", "").strip()[:200],
            before=int(before) if before.isascii() and before.isdecimal() and len(before) <= 18 else None,
        )

    @property
    def narrows(self) -> bool:
        return bool(self.correct or self.stop or self.words or self.narrows_steps)

    @property
    def narrows_steps(self) -> bool:
        return bool(self.split) or self.step_from is not None or self.step_to is not None

    @property
    def meaning(self) -> str:
        """The filter in plain words."""
        kinds = [{"yes": "correct", "no": "wrong"}.get(self.correct, ""), "rollouts"]
        parts = [" ".join(kind for kind in kinds if kind)]
        if self.split:
            parts.append("of training" if self.split == "train" else f"of the {split_name(self.split)} evaluation")
        if self.step_from is not None and self.step_to is not None:
            parts.append(f"from step {self.step_from} to {self.step_to}")
        elif self.step_from is not None:
            parts.append(f"from step {self.step_from} on")
        elif self.step_to is not None:
            parts.append(f"up to step {self.step_to}")
        if self.stop:
            endings = {
                "stop": "that ended by themselves",
                "length": "cut at the token limit",
                "error": "ended by an error",
            }
            parts.append(endings[self.stop])
        if self.words:
            parts.append(f"with the words “{self.words}”")
        text = " ".join(parts)
        return f"{text[0].upper()}{text[1:]}, newest first"


@dataclass(frozen=True, slots=True)
class RolloutPage:
    filters: RolloutFilters
    lines: Sequence[RolloutLine]
    total: int
    next_before: int | None
    splits: Sequence[str]
    superseded: int  # stored under attempts that a later one replaced, in the unfiltered list; not listed
    unindexed: int | None  # rollouts whose words cannot be found yet; None when no words are searched


def rollout_page(run: Run, filters: RolloutFilters) -> RolloutPage:
    """Rollouts of current attempts. Six queries, two more when words are searched."""
    steps = _steps(run, filters)
    total = _total(run, steps, filters)
    rows = _filtered(run, steps, filters).select_related("step", "group")
    if filters.before is not None:
        rows = rows.filter(pk__lt=filters.before)
    found = list(rows.order_by("-pk")[: PER_PAGE + 1])
    page = found[:PER_PAGE]
    return RolloutPage(
        filters=filters,
        lines=with_prompts(rollout_lines(page)),
        total=total,
        superseded=0 if filters.narrows else max(0, run.rollout_count - total),
        next_before=page[-1].pk if len(found) > PER_PAGE else None,
        splits=sorted(Step.objects.filter(run=run).values_list("split", flat=True).distinct()),
        unindexed=_unindexed(steps) if filters.words else None,
    )


def _steps(run: Run, filters: RolloutFilters) -> QuerySet[Step]:
    steps = Step.objects.filter(run=run, is_current=True)
    if filters.split:
        steps = steps.filter(split=filters.split)
    if filters.step_from is not None:
        steps = steps.filter(index__gte=filters.step_from)
    if filters.step_to is not None:
        steps = steps.filter(index__lte=filters.step_to)
    return steps


def _filtered(run: Run, steps: QuerySet[Step], filters: RolloutFilters) -> QuerySet[Rollout]:
    wanted = Q(run_id=run.pk, step__in=steps.values("pk"))
    if filters.correct:
        wanted &= Q(correct=CORRECT[filters.correct])
    if filters.stop:
        wanted &= Q(stop_reason=STOPS[filters.stop])
    rows = Rollout.objects.filter(wanted)
    if filters.words:
        # Exactly the indexed expression, and an inner join, else Postgres reads every text.
        vector = SearchVector("rollouttext__completion", config="simple")
        # Escaped as the texts are. "exact words", -not and or, as people know them from the web.
        words = text_from_bytes(bytes_from_str(filters.words))
        query = SearchQuery(words, config="simple", search_type="websearch")
        rows = rows.filter(rollouttext__isnull=False).annotate(found=vector).filter(found=query)
    return rows


def _total(run: Run, steps: QuerySet[Step], filters: RolloutFilters) -> int:
    """Exact. Counted from the steps' own counts where the filter names only steps."""
    if filters.correct or filters.stop or filters.words:
        return _filtered(run, steps, filters).count()
    return steps.aggregate(total=Sum("rollout_count"))["total"] or 0


def _unindexed(steps: QuerySet[Step]) -> int:
    indexed = Coalesce("indexedstep__rollout_count", 0)
    return steps.aggregate(total=Sum(F("rollout_count") - indexed))["total"] or 0
