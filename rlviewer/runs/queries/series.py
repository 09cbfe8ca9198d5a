"""Metric curves of a run, its attempts merged: a step's value is that of the newest attempt that stored it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from django.db.models import Q

from rlviewer.runs.measures import PASS_AT_K_PREFIX
from rlviewer.runs.models import MetricChunk


@dataclass(frozen=True, slots=True)
class Points:
    steps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Series:
    """One metric. `superseded` holds, by attempt number, the points that a later attempt replaced."""

    current: Points
    superseded: dict[int, Points] = field(default_factory=dict)

    @property
    def latest(self) -> float | None:
        return self.current.values[-1] if self.current.values else None


NO_SERIES = Series(Points())


def metric_series(run_id: int, names: Iterable[str]) -> dict[str, Series]:
    """Each named metric that the run has, and every pass@k. One query."""
    return metric_series_of([run_id], names)[run_id]


def metric_series_of(run_ids: Iterable[int], names: Iterable[str]) -> dict[int, dict[str, Series]]:
    """The same of several runs, by run; of one that has none of them nothing. One query."""
    found: dict[int, dict[str, list[tuple[int, Sequence[int], Sequence[float]]]]] = {pk: {} for pk in run_ids}
    rows = (
        MetricChunk.objects.filter(Q(name__in=list(names)) | Q(name__startswith=PASS_AT_K_PREFIX), run__in=list(found))
        .order_by("run", "name", "attempt__number", "part")
        .values_list("run_id", "name", "attempt__number", "steps", "values")
    )
    for run, name, attempt, steps, values in rows:
        found[run].setdefault(name, []).append((attempt, steps, values))
    return {run: {name: merged(chunks) for name, chunks in own.items()} for run, own in found.items()}


def merged(chunks: Iterable[tuple[int, Sequence[int], Sequence[float]]]) -> Series:
    """Chunks of (attempt number, steps, values), older attempts first, as one series in the order of steps."""
    newest: dict[int, tuple[int, float]] = {}
    superseded: dict[int, Points] = {}
    for attempt, steps, values in chunks:
        for step, value in zip(steps, values, strict=True):
            if step in newest and newest[step][0] != attempt:
                older, old_value = newest[step]
                points = superseded.setdefault(older, Points())
                points.steps.append(step)
                points.values.append(old_value)
            newest[step] = (attempt, value)
    ordered = sorted(newest)
    return Series(Points(ordered, [newest[step][1] for step in ordered]), superseded)


def pass_at_k_name(series: dict[str, Series]) -> str | None:
    """The stored pass@k with the largest k above 1."""
    ks = [name.removeprefix(PASS_AT_K_PREFIX) for name in series if name.startswith(PASS_AT_K_PREFIX)]
    numbers = [int(k) for k in ks if k.isdecimal() and int(k) > 1]
    return f"{PASS_AT_K_PREFIX}{max(numbers)}" if numbers else None
