"""Which steps of a run a page of the Signal tab speaks of: state of its address."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from django.db import connection
from django.db.models import QuerySet

from rlviewer.runs.models import Run, Step
from rlviewer.runs.queries.step import TRAIN, number_from
from rlviewer.signal.lag import PENDING

LAST = 2**31 - 1
IN_RANGE = """s.run_id = %(run)s AND s.split = %(split)s AND s.is_current
    AND s.index >= %(first)s AND s.index <= %(last)s"""


@dataclass(frozen=True, slots=True)
class StepRange:
    """Both ends included; None is open."""

    first: int | None = None
    last: int | None = None

    @classmethod
    def from_query(cls, query: Mapping[str, str]) -> Self:
        """Unreadable values fall back to open: a mistyped address still shows the run."""
        first, last = number_from(query.get("from")), number_from(query.get("to"))
        return cls(first, last) if first is None or last is None or first <= last else cls(last, first)

    @property
    def is_open(self) -> bool:
        return self.first is None and self.last is None

    @property
    def term(self) -> str:
        """The same range in the language of filters; empty when open."""
        return "" if self.is_open else f"step:{_number(self.first)}..{_number(self.last)}"

    def of(self, run: Run, split: str = TRAIN) -> QuerySet[Step]:
        """The current steps of the range, in order."""
        bounds = {"index__gte": self.first, "index__lte": self.last}
        wanted = {name: value for name, value in bounds.items() if value is not None}
        return Step.objects.filter(run=run, split=split, is_current=True, **wanted).order_by("index")

    def rows(self, run: Run, sql: str, *, split: str = TRAIN, **parameters: Any) -> list[Any]:
        """What `sql` finds, where `IN_RANGE` stands for the same steps of `runs_step s`."""
        bounds: dict[str, Any] = {
            "run": run.pk,
            "split": split,
            "first": 0 if self.first is None else self.first,
            "last": LAST if self.last is None else self.last,
        }
        with connection.cursor() as cursor:
            cursor.execute(sql.replace("IN_RANGE", IN_RANGE), bounds | parameters)
            return list(cursor.fetchall())


def _number(value: int | None) -> str:
    return "" if value is None else str(value)


def waiting_steps(run: Run) -> int:
    """Stored steps of the run that are not worked out yet."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT count(*) {PENDING} AND s.run_id = %s", [run.pk])
        return int(cursor.fetchone()[0])
