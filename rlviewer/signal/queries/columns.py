"""Columns of the steps of a page: one narrow row a step, whatever the step held."""

from collections.abc import Sequence
from typing import Any

from rlviewer.runs.models import Run
from rlviewer.signal.models import StepSignal
from rlviewer.signal.steps import StepRange

Column = list[Any]
Values = list[float | None]


def step_columns(run: Run, steps: StepRange, *names: str, stored: Sequence[str] = ()) -> dict[str, Column]:
    """By name: `index` of every step, the columns `names` of `StepSignal`, and the columns `stored` of the step itself. One
    query; a value is None where the step is not worked out yet or the source lacks what it is made of.
    """
    known = {field.name for field in StepSignal._meta.get_fields()}
    assert known.issuperset(names), set(names) - known
    wanted = ", ".join(["s.index", *(f"g.{name}" for name in names), *(f"s.{name}" for name in stored)])
    rows = steps.rows(
        run,
        f"SELECT {wanted} FROM runs_step s LEFT JOIN signal_stepsignal g ON g.step_id = s.id"  # noqa: S608 (our own names)
        " WHERE IN_RANGE ORDER BY s.index",
    )
    columns = zip(*rows, strict=True) if rows else [()] * (1 + len(names) + len(stored))
    return dict(zip(("index", *names, *stored), map(list, columns), strict=True))


def item(values: Column, place: int) -> Values:
    """One place of a column of arrays, for a curve."""
    return [None if value is None else float(value[place]) for value in values]


def has_any(values: Column) -> bool:
    return any(value is not None for value in values)


def shares(parts: Column, wholes: Column) -> Values:
    """One column as a share of another, None where there is no whole."""
    return [part / whole if part is not None and whole else None for part, whole in zip(parts, wholes, strict=True)]
