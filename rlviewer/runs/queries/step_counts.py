"""Of how many rollouts or groups the values of a run's steps are the mean."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.db.models import F, Max, Min

from rlviewer.runs.models import Run, Step

COLUMNS = {
    "rollouts": F("rollout_count"),
    "scored rollouts": F("rollout_count") - F("unscored_count"),
    "groups": F("group_count"),
}


@dataclass(frozen=True, slots=True)
class Counts:
    """`by_step` is filled only where the steps differ."""

    same: dict[str, int]
    by_step: dict[int, dict[str, int]] = field(default_factory=dict)

    def at(self, counted: str, steps: Sequence[int]) -> list[int]:
        """The count of each step; empty where one of them is not known."""
        if counted in self.same:
            return [self.same[counted]] * len(steps)
        found = [self.by_step[step][counted] for step in steps if step in self.by_step]
        return found if len(found) == len(steps) else []


def step_counts(runs: Iterable[Run], splits: Sequence[str]) -> dict[tuple[int, str], Counts]:
    """By run and split. One query; a second one for runs whose steps are of different sizes."""
    stored = Step.objects.filter(run__in=list(runs), split__in=splits, is_current=True)
    bounds = {"low": Min, "high": Max}
    reach = {
        f"{bound}_{number}": aggregate(column)
        for number, column in enumerate(COLUMNS.values())
        for bound, aggregate in bounds.items()
    }
    found = {}
    uneven = set()
    rows: Any = stored.order_by().values("run_id", "split").annotate(**reach)
    for row in rows:
        same = {name: row[f"low_{n}"] for n, name in enumerate(COLUMNS) if row[f"low_{n}"] == row[f"high_{n}"]}
        found[row["run_id"], row["split"]] = Counts(same)
        if len(same) < len(COLUMNS):
            uneven.add(row["run_id"])
    if uneven:
        counted = stored.filter(run__in=uneven).annotate(scored=COLUMNS["scored rollouts"])
        for run, split, step, *numbers in counted.values_list(
            "run_id", "split", "index", "rollout_count", "scored", "group_count"
        ):
            found[run, split].by_step[step] = dict(zip(COLUMNS, numbers, strict=True))
    return found
