"""Works out what stored steps taught, a transaction a step; the sweep of every worker calls it."""

import time
from typing import Any

import numpy as np
import numpy.typing as npt
from django.db import connection, transaction

from rlviewer.outbox.services import announce
from rlviewer.runs.models import Step
from rlviewer.signal import sums
from rlviewer.signal.lag import PENDING, VERSION
from rlviewer.signal.material import Material, read_step
from rlviewer.signal.measures.groups import group_signals
from rlviewer.signal.models import GroupSignal, RolloutSums, StepSignal


def compute_pending(limit: int = 50, *, seconds: float = 5.0) -> int:
    """Work out up to `limit` steps, newest first so that open pages move; returns how many were done.

    No step is begun after `seconds`, so that a caller with other duties gets back to them.
    """
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT s.id {PENDING} ORDER BY s.id DESC LIMIT %s", [limit])
        step_ids = [row[0] for row in cursor.fetchall()]
    deadline, done = time.monotonic() + seconds, 0
    for step_id in step_ids:
        if time.monotonic() > deadline:
            break
        done += compute_step(step_id)
    return done


def compute_step(step_id: int) -> bool:
    """Work out one step anew; False when another worker has it in hand, or it is gone."""
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_try_advisory_xact_lock(hashtext('signal_stepsignal'), %s)", [step_id % 2**31])
            is_mine = cursor.fetchone()[0]
        # The share lock keeps a later batch of the same step out until this one is told.
        step = Step.objects.select_for_update(no_key=True, of=("self",)).filter(pk=step_id).first()
        if not is_mine or step is None:
            return False
        material = read_step(step)
        groups = group_signals(material)
        values: dict[str, Any] = {**groups.step}
        StepSignal.objects.update_or_create(
            step=step, defaults={**values, "rollout_count": step.rollout_count, "version": VERSION}
        )
        GroupSignal.objects.filter(step=step).delete()
        GroupSignal.objects.bulk_create(
            GroupSignal(group=group, step=step, cause=cause, tokens=tokens)
            for group, cause, tokens in zip(material.groups, groups.causes, groups.tokens.tolist(), strict=True)
        )
        payload = sums.pack(rollout_sums(material))
        RolloutSums.objects.update_or_create(step=step, defaults={"payload": payload})
        announce(f"run:{step.run_id}", "signal-computed", step=step.index, split=step.split)
    return True


def rollout_sums(of: Material) -> dict[str, npt.NDArray[Any]]:
    """What is kept of every rollout, by its number."""
    return {"rollout": np.array(of.narrow["id"], dtype=np.int64)}
