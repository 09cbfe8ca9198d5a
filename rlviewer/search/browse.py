"""Which rollouts a filter finds, in which order: the one door of the list, its total, exports and the API.

Pages go by key: (sorted value, id) of the last row, never by a number of rows to skip. Where texts must be read, narrow
rows are taken in windows of the same order and their texts asked, until enough is found or the time is up; what comes back
then says where to go on.
"""

import json
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

from django.db import connection, transaction
from django.db.models import BigIntegerField, F, Func, Lookup, Max, Min, Q, QuerySet, Sum, Value
from django.db.models.fields.tuple_lookups import Tuple, TupleGreaterThan, TupleLessThan

from rlviewer.accounts.models import Project
from rlviewer.runs.models import Prompt, Rollout, Run, Step
from rlviewer.search.compile import Conditions, compile_filter
from rlviewer.search.fields import FIELDS, Field
from rlviewer.search.language import parse
from rlviewer.search.tree import All, Comparison, Node

FIRST_WINDOW, LAST_WINDOW = 500, 4000
# Up to this many rollouts of the steps or words asked for are gathered through their index and sorted. More are met soon
# enough on the way through the order.
GATHERED = 100_000
# Counting stops nowhere. Of more rollouts with the words asked for, Postgres would read every text of the run for it.
COUNTED_AT_ONCE = 2_000
IDS_AT_ONCE = 50_000  # of an export
# Runs of a project whose own indexes are merged; of more the rows are sorted.
MERGED_RUNS = 32
ANY_RUN = -(2**62)  # stands for the id of each of them in turn
INDEXED = {"reward", "advantage", "length"}
# Of few different values, none beside the rollout: a page asks value by value, each in the order of ids.
FEW_VALUES, MOST_VALUES = {"task"}, 20
STEP_PATHS = {"step": "index", "split": "split", "run": "run_id"}  # as Step spells them
SCAN_SECONDS = 0.15  # of one request; the page asks again where it stopped
NAN = math.nan


@contextmanager
def time_limit(milliseconds: int) -> Iterator[None]:
    """Postgres stops each statement within after this time, with an OperationalError."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT set_config('statement_timeout', %s, true)", [str(milliseconds)])
        yield


@dataclass(frozen=True)
class Scope:
    """The rollouts of a run, or without one of all runs of a project. Whoever makes one has asked what the person may see."""

    project: Project | None
    run: Run | None = None
    every_attempt: bool = False

    @property
    def owner(self) -> tuple[str, int]:
        """`run` or `project`, and its number."""
        if self.run:
            return "run", self.run.pk
        assert self.project is not None
        return "project", self.project.pk

    def steps(self) -> QuerySet[Step]:
        steps = Step.objects.filter(run=self.run) if self.run else Step.objects.filter(run__project=self.project)
        return steps if self.every_attempt else steps.filter(is_current=True)

    def rollouts(self) -> QuerySet[Rollout]:
        """At most two queries, the first time; superseded steps are few, so they are named rather than joined."""
        rows = Rollout.objects.filter(run_id__in=self.runs)
        return rows if self.every_attempt or not self._replaced else rows.exclude(step_id__in=self._replaced)

    @cached_property
    def _replaced(self) -> list[int]:
        return list(Step.objects.filter(run__in=self.runs, is_current=False).values_list("pk", flat=True))

    @cached_property
    def runs(self) -> list[int]:
        if self.run:
            return [self.run.pk]
        return list(Run.objects.filter(project=self.project).values_list("pk", flat=True))


@dataclass(frozen=True, slots=True)
class Sort:
    """Order by a field, ties by id in the same direction. Missing values come last, after NaN, either way."""

    field: Field
    is_descending: bool = False
    seed: int | None = None  # by chance instead: the same order for the same seed

    @classmethod
    def from_text(cls, text: str) -> Self:
        """`reward`, `-reward`, `random:7`; newest first for anything else."""
        name, _, seed = text.partition(":")
        if name == "random" and seed.isascii() and seed.isdecimal() and len(seed) <= 9:
            return cls(FIELDS["id"], seed=int(seed))
        found = FIELDS.get(text.removeprefix("-"))
        if found is None or not found.is_column:
            return cls(FIELDS["id"], is_descending=True)
        return cls(found, text.startswith("-"))

    def __str__(self) -> str:
        if self.seed is not None:
            return f"random:{self.seed}"
        return f"{'-' if self.is_descending else ''}{self.field.name}"

    @property
    def is_by_id(self) -> bool:
        return self.seed is None and self.field.name == "id"

    @property
    def key(self) -> Any:
        if self.seed is None:
            return F(self.field.path)
        return Func(F("pk"), Value(self.seed), function="hashint8extended", output_field=BigIntegerField())

    def phases(self) -> list[tuple[str, Q]]:
        """Parts of the order, one after another, each a range of the index."""
        path = self.field.path
        if self.seed is not None or not (self.field.nullable or self.field.kind == "float"):
            return [("", Q())]
        missing = ("missing", Q(**{f"{path}__isnull": True}))
        if self.field.kind != "float":
            return [("", Q(**{f"{path}__isnull": False})), missing]
        return [("", Q(**{f"{path}__lt": NAN})), ("nan", Q(**{path: NAN})), missing]


@dataclass(frozen=True, slots=True)
class Place:
    """A row in an order: its sorted value and id. As text it is part of an address."""

    value: Any  # None where nothing is stored
    id: int

    def __str__(self) -> str:
        return (
            f"missing~{self.id}"
            if self.value is None
            else f"={self.value!r}~{self.id}"
            if isinstance(self.value, float)
            else f"={self.value}~{self.id}"
        )

    @classmethod
    def from_text(cls, text: str, sort: Sort) -> Self | None:
        """None when it is no place of this order."""
        written, _, number = text.rpartition("~")
        if not (number.isascii() and number.isdecimal() and len(number) <= 18 and written and "\0" not in text):
            return None
        if written == "missing":
            return cls(None, int(number))
        value = _value_of(written.removeprefix("="), sort)
        return None if value is None or not written.startswith("=") else cls(value, int(number))

    @property
    def phase(self) -> str:
        if self.value is None:
            return "missing"
        return "nan" if isinstance(self.value, float) and math.isnan(self.value) else ""


def _value_of(text: str, sort: Sort) -> Any:
    kind = "int" if sort.seed is not None else sort.field.kind
    try:
        if kind == "float":
            return float(text)
        if kind in {"int", "choice"}:
            return int(text) if len(text) <= 20 and abs(int(text)) < 2**63 else None
    except ValueError:
        return None
    return {"True": True, "False": False}.get(text) if kind == "bool" else text


@dataclass(frozen=True, slots=True)
class Found:
    """Rows in their order. `resume`: where a scan stopped before it had enough."""

    places: Sequence[Place]
    has_more: bool
    resume: Place | None = None
    scanned: int = 0

    @property
    def ids(self) -> list[int]:
        return [place.id for place in self.places]


@dataclass(frozen=True)
class Search:
    """A filter over a scope.

    Raises:
        FilterError: the filter cannot be read.
    """

    scope: Scope
    text: str = ""
    extra: Sequence[Node] = ()  # conditions that are not written in the filter
    tree: All = field(init=False)
    conditions: Conditions = field(init=False)

    def __post_init__(self) -> None:
        tree = All((*parse(self.text).parts, *self.extra))
        object.__setattr__(self, "tree", tree)
        object.__setattr__(self, "conditions", compile_filter(tree))

    def stored(self) -> QuerySet[Rollout]:
        """All that stored values leave; texts are not asked yet."""
        return self.scope.rollouts().filter(self.conditions.stored)

    def rows(self) -> QuerySet[Rollout]:
        """All that stored values and the index of words leave; where `scans`, texts are not read yet."""
        return self.stored().filter(self._words or Q())

    @cached_property
    def _words(self) -> Q | None:
        """The words, near the run: the index knows those of every run. One query where words are asked of a run."""
        words, run = self.conditions.words, self.scope.run
        if words is None or run is None:
            return words
        ends = Rollout.objects.filter(run_id=run.pk).aggregate(first=Min("pk"), last=Max("pk"))
        return words & Q(rollouttext__rollout__gte=ends["first"] or 0, rollouttext__rollout__lte=ends["last"] or 0)

    @property
    def scans(self) -> bool:
        return self.conditions.scanned is not None

    @property
    def reads_text(self) -> bool:
        return self.scans or self.conditions.words is not None

    @cached_property
    def way(self) -> "Way":
        """How to get at the rows in an order. At most three queries, none of which reads a rollout."""
        words, scanned, narrow = self.conditions.words, self.conditions.scanned, self._is_narrow
        if words is None:
            return Way(self.stored(), self.scope.runs, narrow, scanned)
        if narrow or expected(self.rows()) <= GATHERED:
            return Way(self.rows(), self.scope.runs, True, scanned)
        return Way(self.stored(), self.scope.runs, False, words & (scanned or Q()))

    @cached_property
    def _is_narrow(self) -> bool:
        """Whether what it asks of stored values leaves few enough rollouts to gather."""
        steps, _ = self._steps()
        if steps is not None and (steps.aggregate(n=Sum("rollout_count"))["n"] or 0) <= GATHERED:
            return True
        return any(
            (part.field.name == "prompt" and part.op == "=")
            or (part.field.is_label and not {None, False} & set(part.values))
            for part in self._comparisons()
        )

    @cached_property
    def counting(self) -> "Way":
        """How to get at all of the rows: text by text where words are many. One query."""
        words = self.conditions.words
        if words is None or self.way.scanned is not None or expected(self.rows()) <= COUNTED_AT_ONCE:
            return self.way
        return Way(self.stored(), self.scope.runs, self._is_narrow, words)

    def find(
        self,
        sort: Sort,
        *,
        after: Place | None = None,
        backwards: bool = False,
        limit: int = 100,
        seconds: float | None = None,
        way: "Way | None" = None,
    ) -> Found:
        """The next `limit` rows after a place; `backwards` those before it, the last ones without a place.

        Rows come in the order of `sort` either way. A scan ends after about `seconds`, SCAN_SECONDS by default.
        """
        way = way or self.way
        if way.scanned is None:
            found = ordered(way, sort, after=after, backwards=backwards, limit=limit + 1)
            page = found[:limit]
            return Found(page[::-1] if backwards else page, len(found) > limit)
        return self._scan(way, sort, after, backwards, limit, seconds)

    def _scan(
        self,
        way: "Way",
        sort: Sort,
        after: Place | None,
        backwards: bool,
        limit: int,
        seconds: float | None,
    ) -> Found:
        hits: list[Place] = []
        place, scanned, window = after, 0, FIRST_WINDOW
        begin = time.monotonic()
        deadline = begin + (SCAN_SECONDS if seconds is None else seconds)
        is_over = False
        while len(hits) <= limit and not is_over and (not scanned or time.monotonic() < deadline):
            places = ordered(way, sort, after=place, backwards=backwards, limit=window)
            is_over = len(places) < window
            matching = way.matching([found.id for found in places])
            hits += [found for found in places if found.id in matching]
            scanned += len(places)
            place = places[-1] if places else place
            # As many as the time that is left will do at the rate so far.
            spent, left = time.monotonic() - begin, deadline - time.monotonic()
            fitting = max(FIRST_WINDOW, scanned * left / max(spent, 1e-6))
            window = int(min(LAST_WINDOW, 2 * window, fitting))
        page = hits[:limit]
        resume = None if is_over or len(hits) > limit else place
        return Found(page[::-1] if backwards else page, len(hits) > limit, resume, scanned)

    def batches(self, sort: Sort, *, size: int) -> Iterator[list[int]]:
        """Ids of all rollouts that it finds now, in order, at most `size` at a time."""
        newest = self.scope.rollouts().order_by("-pk").values_list("pk", flat=True).first()
        way = replace(self.way, rows=self.way.rows.filter(pk__lte=newest or 0))
        place: Place | None = None
        # Many ids a query: what is gathered or sorted is so anew for each.
        while places := ordered(way, sort, after=place, backwards=False, limit=IDS_AT_ONCE):
            place = places[-1]
            for start in range(0, len(places), size):
                ids = [found.id for found in places[start : start + size]]
                if way.scanned is not None:
                    matching = way.matching(ids)
                    ids = [pk for pk in ids if pk in matching]
                if ids:
                    yield ids

    def _comparisons(self) -> list[Comparison]:
        return [part for part in self.tree.parts if isinstance(part, Comparison)]

    def _steps(self) -> tuple[QuerySet[Step] | None, bool]:
        """The steps that are asked for, None when the filter names none; and whether it asks for nothing else."""
        named = [part for part in self._comparisons() if part.field.name in STEP_PATHS]
        steps = self.scope.steps()
        for part in named:
            moved = replace(part, field=replace(part.field, path=STEP_PATHS[part.field.name]))
            steps = steps.filter(compile_filter(All((moved,))).stored)
        return steps if named else None, len(named) == len(self.tree.parts)

    def total(self) -> int:
        """How many rollouts stored values and words leave; exact. From the steps' own counts where it asks only for steps."""
        steps = self.whole_steps()
        return self.rows().count() if steps is None else steps.aggregate(total=Sum("rollout_count"))["total"] or 0

    def whole_steps(self) -> QuerySet[Step] | None:
        """The steps whose rollouts it finds, all of them and no others; None when it asks for more than steps."""
        steps, is_all = self._steps()
        return None if not is_all else self.scope.steps() if steps is None else steps


class Among(Lookup):  # type: ignore[type-arg]
    """One of these ids: one parameter, however many there are."""

    lookup_name = "among"
    prepare_rhs = False

    def as_sql(self, compiler: Any, connection: Any) -> tuple[str, tuple[Any, ...]]:
        left, params = self.process_lhs(compiler, connection)
        return f"{left} = ANY(%s::bigint[])", (*params, list(self.rhs))


@dataclass(frozen=True, slots=True)
class Way:
    """How rows are got at: gathered through the index of what is asked for, then sorted; else along the order."""

    rows: QuerySet[Rollout]
    runs: Sequence[int]
    is_gathered: bool
    scanned: Q | None  # what their texts must be asked

    def matching(self, ids: Sequence[int]) -> set[int]:
        """Those of `ids` whose texts match."""
        rows = Rollout.objects.filter(Among(F("pk"), ids)).filter(self.scanned or Q())
        return set(rows.values_list("pk", flat=True))

    def is_merged(self, sort: Sort) -> bool:
        """Whether the runs are few and an index of each knows the order."""
        is_indexed = sort.seed is None and sort.field.name in INDEXED
        return is_indexed and not self.is_gathered and 1 < len(self.runs) <= MERGED_RUNS


def expected(rows: QuerySet[Rollout]) -> int:
    """How many rows Postgres expects."""
    return json.loads(rows.order_by().values("pk").explain(format="json"))[0]["Plan"]["Plan Rows"]


def ordered(way: Way, sort: Sort, *, after: Place | None, backwards: bool, limit: int) -> list[Place]:
    """The next rows after a place, nearest first. A query for each part of the order that is needed."""
    phases = sort.phases()[::-1] if backwards else sort.phases()
    names = [name for name, _ in phases]
    start = names.index(after.phase) if after and after.phase in names else 0
    is_descending = sort.is_descending != backwards
    found: list[Place] = []
    if sort.field.name in FEW_VALUES and not way.is_gathered and (values := _values(way, after, is_descending)):
        return _value_by_value(way, sort, values, after, is_descending, limit)
    for name, condition in phases[start:]:
        if after and name == after.phase:
            condition &= _beyond(sort, after, is_descending)
        keys = _keys(sort, is_plain=not name, is_gathered=way.is_gathered)
        order = [key.desc() if is_descending else key.asc() for key in keys]
        wanted = limit - len(found)
        asked = way.rows.filter(condition).order_by(*order).values_list("pk", sort.key)
        rows = _of_each_run(asked, way.runs, wanted) if way.is_merged(sort) else asked[:wanted]
        places = [Place(value, pk) for pk, value in rows]
        if way.is_merged(sort):
            places.sort(key=lambda place: place.id if name else (place.value, place.id), reverse=is_descending)
        found += places[:wanted]
        if len(found) >= limit:
            break
    return found


def _of_each_run(rows: QuerySet[Rollout, tuple[Any, ...]], runs: Sequence[int], limit: int) -> list[tuple[Any, ...]]:
    """The first rows of each run in one statement. It is put together from one part, for to write each anew takes long."""
    sql, params = rows.filter(run_id=ANY_RUN)[:limit].query.sql_with_params()
    with connection.cursor() as cursor:
        each = [run if param == ANY_RUN else param for run in runs for param in params]
        cursor.execute(" UNION ALL ".join([f"({sql})"] * len(runs)), each)
        return cursor.fetchall()


def _values(way: Way, after: Place | None, is_descending: bool) -> list[str]:
    """The tasks from this place on, in their order; none when there are too many to ask one by one."""
    prompts = Prompt.objects.filter(project__in=Run.objects.filter(pk__in=way.runs).values("project"))
    if after:
        prompts = prompts.filter(**{f"generator__{'lte' if is_descending else 'gte'}": after.value})
    prompts = prompts.order_by("-generator" if is_descending else "generator")
    values = list(prompts.values_list("generator", flat=True).distinct()[: MOST_VALUES + 1])
    return values if len(values) <= MOST_VALUES else []


def _value_by_value(
    way: Way, sort: Sort, values: Sequence[str], after: Place | None, is_descending: bool, limit: int
) -> list[Place]:
    """As `ordered`. Two queries for each value that is needed; the rows of a rare one are gathered."""
    found: list[Place] = []
    for value in values:
        rows = way.rows.filter(**{sort.field.path: value})
        key = F("pk") + 0 if expected(rows) <= GATHERED else F("pk")
        if after and value == after.value:
            rows = rows.filter(pk__lt=after.id) if is_descending else rows.filter(pk__gt=after.id)
        ids = rows.order_by(key.desc() if is_descending else key.asc()).values_list("pk", flat=True)
        found += [Place(value, pk) for pk in ids[: limit - len(found)]]
        if len(found) >= limit:
            break
    return found


def _keys(sort: Sort, *, is_plain: bool, is_gathered: bool) -> list[Any]:
    """What to order by. In a part of equal values only the id orders; naming the value would keep the index from it."""
    keys = [sort.key] if is_plain and not sort.is_by_id else []
    # Adding nothing hides the order from the indexes: Postgres would go along it and throw away nearly every row.
    hidden = [key + 0 if is_gathered and sort.field.is_number else key for key in keys]
    return [*hidden, F("pk") + 0 if is_gathered else F("pk")]


def _beyond(sort: Sort, place: Place, is_descending: bool) -> Q:
    if place.phase or sort.is_by_id:
        return Q(pk__lt=place.id) if is_descending else Q(pk__gt=place.id)
    # A comparison of rows is one range of the index, however many values are equal.
    lookup = TupleLessThan if is_descending else TupleGreaterThan
    beyond = Q(lookup(Tuple(sort.key, F("pk")), (place.value, place.id)))
    if "__" in sort.field.path and sort.seed is None:
        # Implied, but it lets a scan of the other table begin at the value.
        beyond &= Q(**{f"{sort.field.path}__{'lte' if is_descending else 'gte'}": place.value})
    return beyond
