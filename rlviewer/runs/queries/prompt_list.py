"""The prompts of one run, ranked by how far their success swung; one pass over the run's groups, whatever the page."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from django.db import connection
from django.db.models import F
from django.db.models.functions import Substr

from rlviewer.lib.visible import visible_start
from rlviewer.runs.models import Group, Prompt, PromptTracker, Run
from rlviewer.runs.queries.step import TRAIN, number_from

PER_PAGE = 50
PROMPT_CHARS = 120
KINDS = {
    "all": "true",
    "swinging": "swing > 0",
    "forgotten": "is_forgotten",
    "never": "best = 0",
    "solved": "first_solved IS NOT NULL",
}
# What a list can be ordered by: head, whether high values come first, and what it means.
SORTS = {
    "swing": ("swing", True, "Best less worst success over the visits, in points"),
    "visits": ("visits", True, "Steps of training that held it"),
    "worst": ("worst", False, "Lowest success of a visit"),
    "best": ("best", True, "Highest success of a visit"),
    "first_solved": ("first solved", False, "First step with a right rollout"),
    "last_seen": ("last seen", True, "Newest step that held it"),
}


@dataclass(frozen=True, slots=True)
class PromptListFilters:
    """State of the address."""

    kind: str = "all"
    sort: str = "swing"
    is_down: bool = True
    first: int | None = None  # bounds of the step at which it was first solved
    last: int | None = None
    after: tuple[float | None, int] | None = None  # value and prompt of the last row of the page before

    @classmethod
    def from_query(cls, query: Mapping[str, str]) -> Self:
        kind, sort = query.get("kind", ""), query.get("sort", "").removeprefix("-")
        sort = sort if sort in SORTS else "swing"
        is_down = query["sort"].startswith("-") if query.get("sort") else SORTS[sort][1]
        return cls(
            kind if kind in KINDS else "all",
            sort,
            is_down,
            number_from(query.get("from")),
            number_from(query.get("to")),
            _place(query.get("after", "")),
        )


def _place(text: str) -> tuple[float | None, int] | None:
    value, _, prompt = text.partition("_")
    if not (prompt.isascii() and prompt.isdecimal() and len(prompt) <= 18):
        return None
    try:
        return None if value == "" else float(value) if value != "none" else None, int(prompt)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class PromptLine:
    """One prompt as this run met it. Successes are shares of judged rollouts; None where no visit was judged."""

    prompt_id: int
    text: str
    visits: int
    worst: float | None
    best: float | None
    swing: float | None  # None: fewer than two judged visits
    first_solved: int | None
    last_seen: int
    is_forgotten: bool
    course: Sequence[float | None]  # success of each visit
    base_pass_rate: float | None
    base_samples: int | None


@dataclass(frozen=True, slots=True)
class PromptList:
    filters: PromptListFilters
    lines: Sequence[PromptLine]
    counts: Mapping[str, int]  # of each kind
    seen_once: int
    next_after: str

    @property
    def total(self) -> int:
        return self.counts["all"]


def prompt_list(run: Run, filters: PromptListFilters) -> PromptList:
    """Four queries. The first reads every group of the run's training once: 0.1 to 0.2 s at 125 thousand."""
    rows, counts, seen_once = _ranked(run, filters)
    page = rows[:PER_PAGE]
    ids = [row["prompt_id"] for row in page]
    begins = dict(Prompt.objects.filter(pk__in=ids).values_list("pk", Substr("text", 1, 4 * PROMPT_CHARS + 4)))
    base = {one.prompt_id: one for one in PromptTracker.objects.filter(run=run, prompt_id__in=ids)}
    courses: dict[int, list[float | None]] = defaultdict(list)
    visits = Group.objects.filter(prompt_id__in=ids, step__run=run, step__split=TRAIN, step__is_current=True)
    for prompt_id, success in visits.order_by(F("step__index"), "index").values_list("prompt_id", "success_share"):
        courses[prompt_id].append(success)
    lines = [
        PromptLine(
            **row,
            text=visible_start(bytes(begins[row["prompt_id"]]), PROMPT_CHARS),
            course=courses[row["prompt_id"]],
            base_pass_rate=base[row["prompt_id"]].base_pass_rate if row["prompt_id"] in base else None,
            base_samples=base[row["prompt_id"]].base_samples if row["prompt_id"] in base else None,
        )
        for row in page
    ]
    has_more = len(rows) > PER_PAGE
    last = page[-1][filters.sort] if page else None
    next_after = f"{'none' if last is None else last}_{ids[-1]}" if has_more else ""
    return PromptList(filters, lines, counts, seen_once, next_after)


COLUMNS = ("prompt_id", "visits", "worst", "best", "swing", "first_solved", "last_seen", "is_forgotten")


def _ranked(run: Run, filters: PromptListFilters) -> tuple[list[dict[str, Any]], dict[str, int], int]:
    """A page of prompts and one more, how many there are of each kind, and how many were seen once. One query."""
    where, params = [KINDS[filters.kind]], []
    for bound, way in ((filters.first, ">="), (filters.last, "<=")):
        if bound is not None:
            where.append(f"first_solved {way} %s")
            params.append(bound)
    if filters.after is not None:
        condition, values = _behind(filters, *filters.after)
        where.append(condition)
        params += values
    kinds = ", ".join(f"count(*) FILTER (WHERE {condition}) AS count_{kind}" for kind, condition in KINDS.items())
    order = f"{filters.sort} {'DESC' if filters.is_down else 'ASC'} NULLS LAST, prompt_id"
    # Every name in the text is one of ours.
    sql = f"""
        WITH met AS (
            SELECT g.prompt_id, count(*) AS visits, min(g.success_share) AS worst, max(g.success_share) AS best,
                count(g.success_share) AS judged, max(s.index) AS last_seen,
                min(s.index) FILTER (WHERE g.success_share > 0) AS first_solved,
                max(s.index) FILTER (WHERE g.success_share = 0) AS last_failed
            FROM runs_step s JOIN runs_group g ON g.step_id = s.id
            WHERE s.run_id = %s AND s.split = %s AND s.is_current
            GROUP BY g.prompt_id
        ), told AS MATERIALIZED (
            SELECT *, CASE WHEN judged > 1 THEN best - worst END AS swing,
                coalesce(last_failed > first_solved, false) AS is_forgotten
            FROM met
        )
        SELECT totals.*, page.* FROM
            (SELECT {kinds}, count(*) FILTER (WHERE visits = 1) AS seen_once FROM told) AS totals
            LEFT JOIN (SELECT {", ".join(COLUMNS)} FROM told WHERE {" AND ".join(where)} ORDER BY {order} LIMIT %s) AS page ON true
            ORDER BY {order}
    """  # noqa: S608
    with connection.cursor() as cursor:
        cursor.execute(sql, [run.pk, TRAIN, *params, PER_PAGE + 1])
        rows = cursor.fetchall()
    counts = dict(zip(KINDS, rows[0], strict=False))
    found = [dict(zip(COLUMNS, row[len(KINDS) + 1 :], strict=True)) for row in rows]
    return [row for row in found if row["prompt_id"] is not None], counts, rows[0][len(KINDS)]


def _behind(filters: PromptListFilters, value: float | None, prompt_id: int) -> tuple[str, list[Any]]:
    """What follows a row in the order: missing values come last, equal ones by prompt."""
    name = filters.sort
    if value is None:
        return f"({name} IS NULL AND prompt_id > %s)", [prompt_id]
    way = "<" if filters.is_down else ">"
    return f"({name} {way} %s OR ({name} = %s AND prompt_id > %s) OR {name} IS NULL)", [value, value, prompt_id]
