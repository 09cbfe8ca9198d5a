"""How many rollouts a filter finds, and how they spread over the value that orders them: requests of their own."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from django.db.models import Count, F, FloatField, Func, Q, Sum, Value
from django.db.models.functions import Coalesce

from rlviewer.search.browse import Place, Search, Sort, ordered

BY_ID = Sort.from_text("-id")
COUNT_SECONDS = 0.4
BARS = 48


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
    if not search.scans:
        replaced = 0
        total = search.total()
        if not search.tree.parts and search.scope.run:
            replaced = max(0, search.scope.run.rollout_count - total)
        return Counted(total, replaced=replaced, unindexed=_unindexed(search))
    of = so_far.of or search.total_stored()
    found = search.find(BY_ID, after=so_far.place, limit=10**9, seconds=COUNT_SECONDS)
    total, scanned = so_far.total + len(found.places), so_far.scanned + found.scanned
    return Counted(total, scanned, found.resume, found.resume is not None, of, unindexed=_unindexed(search))


def _unindexed(search: Search) -> int:
    if not search.conditions.has_text:
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
    """By stored values alone. None where no value is stored, or they are all equal."""
    if not sort.field.is_number or sort.seed is not None:
        return None
    rows = search.rows()
    up = Sort(sort.field)
    ends = [
        ordered(rows, up, after=None, backwards=False, limit=1),
        ordered(_finite(rows, sort), Sort(sort.field, True), after=None, backwards=False, limit=1),
    ]
    if not all(ends) or any(end[0].phase for end in ends):
        return None
    low, high = (float(end[0].value) for end in ends)
    if not low < high or math.isinf(low) or math.isinf(high):
        return None
    bucket = Func(
        F(sort.field.path), Value(low), Value(high), Value(BARS), function="width_bucket", output_field=FloatField()
    )
    counts = dict(_finite(rows, sort).annotate(bucket=bucket).values_list("bucket").annotate(n=Count("pk")))
    heights = [
        counts.get(number, 0) + (counts.get(BARS + 1, 0) if number == BARS else 0) for number in range(1, BARS + 1)
    ]
    top = max(heights) or 1
    begins = high if sort.is_descending else low
    if at is not None and not at.phase:
        begins = min(high, max(low, float(at.value)))
    is_whole = sort.field.kind == "int"
    if is_whole:
        low, high, begins = int(low), int(high), int(begins)
    return Spread(low, high, [height / top for height in heights], begins, is_whole)


def _finite(rows: Any, sort: Sort) -> Any:
    path = sort.field.path
    return rows.filter(
        Q(**{f"{path}__lt": math.nan}) if sort.field.kind == "float" else Q(**{f"{path}__isnull": False})
    )
