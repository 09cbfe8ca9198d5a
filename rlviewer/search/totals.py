"""Numbers beside the list: how many rollouts a filter finds, how they spread over a value, which values there are."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from django.db.models import Aggregate, Count, F, Func, IntegerField, QuerySet, Sum, Value
from django.db.models.functions import Coalesce

from rlviewer.review.queries import offered_names
from rlviewer.search.browse import Place, Scope, Search, Sort, ordered

BY_ID = Sort.from_text("-id")
COUNT_SECONDS = 0.4
BARS = 48
NEWEST = 500


@dataclass(frozen=True, slots=True)
class Counted:
    """`total` found; while texts are still read, up to `place`, `goes_on`."""

    total: int = 0
    scanned: int = 0
    place: Place | None = None
    goes_on: bool = False
    of: int = 0  # rollouts whose texts must be read
    replaced: int = 0  # stored by attempts that a later one replaced, of an unfiltered run
    unindexed: int = 0  # rollouts whose text cannot be found yet

    @classmethod
    def from_query(cls, query: Mapping[str, str]) -> Self:
        """Where the request before stopped."""
        numbers = [query.get(name, "") for name in ("counted", "scanned", "of")]
        place = Place.from_text(query.get("counted_to", ""), BY_ID)
        if place is None or not all(n.isascii() and n.isdecimal() and len(n) <= 12 for n in numbers):
            return cls()
        return cls(int(numbers[0]), int(numbers[1]), place, of=int(numbers[2]))

    def as_query(self) -> dict[str, Any]:
        return {"counted": self.total, "scanned": self.scanned, "of": self.of, "counted_to": self.place}


def count(search: Search, so_far: Counted) -> Counted:
    """Exact for stored values. Where texts are read as far as the time allows, from where it stopped before."""
    if search.counting.scanned is None:
        replaced = 0
        total = search.total()
        if not search.tree.parts and search.scope.run:
            replaced = max(0, search.scope.run.rollout_count - total)
        return Counted(total, replaced=replaced, unindexed=_unindexed(search))
    of = so_far.of or search.counting.rows.count()
    found = search.find(BY_ID, after=so_far.place, limit=10**9, seconds=COUNT_SECONDS, way=search.counting)
    total, scanned = so_far.total + len(found.places), so_far.scanned + found.scanned
    return Counted(total, scanned, found.resume, found.resume is not None, of, unindexed=_unindexed(search))


def _unindexed(search: Search) -> int:
    if not search.reads_text:
        return 0
    indexed = Coalesce("indexedstep__rollout_count", 0)
    return search.scope.steps().aggregate(total=Sum(F("rollout_count") - indexed))["total"] or 0


@dataclass(frozen=True, slots=True)
class Spread:
    """Least and largest value of what is found, and how many rollouts lie in each of equal ranges between them."""

    low: float
    high: float
    bars: list[float]  # heights, 0 to 1
    at: float  # where the list begins
    is_whole: bool

    @property
    def path(self) -> str:
        """The bars as an SVG path, a unit wide each; what holds anything can be seen."""
        return "".join(f"M{n} 1v{-max(bar, 0.06):.3f}h.9V1z" for n, bar in enumerate(self.bars) if bar)


def spread(search: Search, sort: Sort, at: Place | None) -> Spread | None:
    """By stored values and words. None where no number is stored, or all are equal."""
    if not sort.field.is_number or sort.seed is not None:
        return None
    ends = [
        ordered(search.way, Sort(sort.field, is_descending), after=None, backwards=False, limit=1)
        for is_descending in (False, True)
    ]
    if not all(ends) or any(end[0].phase for end in ends):
        return None
    low, high = (end[0].value for end in ends)
    if not low < high or math.isinf(low) or math.isinf(high):
        return None
    begins = high if sort.is_descending else low
    if at is not None and not at.phase:
        begins = min(high, max(low, at.value))
    return Spread(low, high, _bars(search, sort, low, high), begins, sort.field.kind == "int")


def _bars(search: Search, sort: Sort, low: float, high: float) -> list[float]:
    """How many lie in each range, the fullest as 1. Ids are left out: they lie evenly."""
    if sort.is_by_id:
        return [0.0] * BARS
    rows: QuerySet[Any]
    number: Aggregate
    path, rows, number = sort.field.path, search.rows(), Count("pk")
    if sort.field.name == "step" and (steps := search.whole_steps()) is not None:
        path, rows, number = "index", steps, Sum("rollout_count")
    bounds = Value(low), Value(high), Value(BARS)
    bucket = Func(F(path), *bounds, function="width_bucket", output_field=IntegerField())
    finite = rows.filter(**{f"{path}__lte": high})  # neither null nor NaN
    counts = dict(finite.annotate(bucket=bucket).order_by().values_list("bucket").annotate(number=number))
    # The largest value itself lies behind the last range.
    counts[BARS] = counts.get(BARS, 0) + counts.pop(BARS + 1, 0)
    top = max(counts.values())
    return [counts.get(number, 0) / top for number in range(1, BARS + 1)]


def known_values(scope: Scope) -> dict[str, list[str]]:
    """What the completion offers: every split, the tasks of the newest rollouts, the project's labels. Three queries."""
    newest = scope.rollouts().order_by("-pk").values_list("group__prompt__generator", flat=True)[:NEWEST]
    splits = scope.steps().order_by().values_list("split", flat=True).distinct()
    project = scope.run.project if scope.run else scope.project
    names = [f"'{name}'" if " " in name else name for name in offered_names(project)] if project else []
    return {"split": sorted(splits), "task": sorted(set(newest)), "label": names}
