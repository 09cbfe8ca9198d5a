"""What a run is worth to its sweep, from stored steps."""

import math
from collections.abc import Sequence
from datetime import timedelta

from django.db.models import DurationField, ExpressionWrapper, F, QuerySet, Sum
from django.db.models.functions import Coalesce, Now

from rlviewer.runs.models import Run, Step
from rlviewer.sweeps.spec import SweepSpec

TRAIN = "train"


def curve(spec: SweepSpec, run: Run) -> dict[int, float]:
    """The objective's quantity by step."""
    steps = Step.objects.filter(run=run, is_current=True).order_by("index")
    if spec.objective == "reward":
        found = steps.filter(split=TRAIN, reward_mean__isnull=False).values_list("index", "reward_mean")
    else:
        found = steps.exclude(split=TRAIN).filter(pass_rate__isnull=False).values_list("index", "pass_rate")
    return {index: value for index, value in found if value is not None and math.isfinite(value)}


def final(spec: SweepSpec, run: Run) -> float | None:
    """The objective of a run that is over; None when it stored nothing of it."""
    values = list(curve(spec, run).values())
    last = values[-spec.last_steps :] if spec.objective == "reward" else values[-1:]
    return sum(last) / len(last) if last else None


def so_far(spec: SweepSpec, runs: Sequence[Run]) -> dict[int, float]:
    """Mean over the seeds at each step that all of them have reached; step 0 of an evaluation is the base model's."""
    curves = [curve(spec, run) for run in runs]
    shared = set.intersection(*(set(one) for one in curves)) if curves else set()
    first = 1 if spec.objective == "pass@1" else 0
    return {step: sum(one[step] for one in curves) / len(curves) for step in sorted(shared) if step >= first}


def hours(runs: QuerySet[Run]) -> float:
    """Of training, over all runs, those that still train included."""
    length = ExpressionWrapper(Coalesce(F("ended_at"), Now()) - F("started_at"), output_field=DurationField())
    total: timedelta | None = runs.filter(started_at__isnull=False).aggregate(total=Sum(length))["total"]
    return total.total_seconds() / 3600 if total else 0.0
