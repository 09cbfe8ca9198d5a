"""Replays from asking to their end. Light to import, so that an idle worker can ask what waits."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.db import connection, transaction
from django.db.models import QuerySet
from django.db.models.functions import Now

from rlviewer.accounts.models import User
from rlviewer.counterfactual.models import Replay, ReplayState
from rlviewer.runs.models import Step
from training import own
from training.replay_frames import VERSION

# A worker that has not been heard of for this long lost its work to whoever asks next.
LOST_SECONDS = 30
# Workers that may end over one replay before it is given up.
TRIES = 3

LOST = "(state = 'running' AND heartbeat_at < now() - make_interval(secs => %s))"
WAITING = f"(state = 'queued' OR {LOST})"


@dataclass(frozen=True, slots=True)
class Question:
    """A recipe with moved knobs; "" is the run's own. `rewards` are judged anew, none: as they are stored."""

    recipe: str = ""
    constants: Mapping[str, Any] = field(default_factory=dict)
    rewards: Sequence[str] = ()

    @property
    def key(self) -> tuple[str, str, str]:
        """As the table holds it."""
        return self.recipe, json.dumps(dict(self.constants), sort_keys=True), json.dumps(list(self.rewards))


def known(step: Step, questions: Iterable[Question]) -> dict[tuple[str, str, str], Replay]:
    """What was asked already of the step as it is, by the key of its question."""
    keys = {question.key for question in questions}
    rows = of_step(step).filter(recipe__in={recipe for recipe, _, _ in keys})
    return {key: row for row in rows if (key := (row.recipe, row.constants, row.rewards)) in keys}


def of_step(step: Step) -> QuerySet[Replay]:
    return Replay.objects.filter(step=step, version=VERSION, rollout_count=step.rollout_count)


def ask(user: User, step: Step, questions: Iterable[Question]) -> None:
    """Ask a worker; what waits or is known already stays as it is. Tried again is what failed, and what code of others judged,
    which may have changed since.
    """
    questions = list(questions)
    rows = [
        Replay(
            step=step,
            recipe=recipe,
            constants=constants,
            rewards=rewards,
            version=VERSION,
            rollout_count=step.rollout_count,
            asked_by=user,
        )
        for recipe, constants, rewards in {question.key: None for question in questions}
    ]
    with transaction.atomic():
        Replay.objects.bulk_create(rows, ignore_conflicts=True)
        failed = of_step(step).filter(state=ReplayState.FAILED, recipe__in=[row.recipe for row in rows])
        failed.update(state=ReplayState.QUEUED, error="", fence=0)
        for question in questions:
            if any(map(own.is_own, question.rewards)):
                recipe, constants, rewards = question.key
                known_ones = of_step(step).filter(recipe=recipe, constants=constants, rewards=rewards)
                known_ones.filter(state=ReplayState.FINISHED).update(state=ReplayState.QUEUED, fence=0)


# What a worker does.


def is_waiting() -> bool:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT EXISTS (SELECT FROM counterfactual_replay WHERE {WAITING})", [LOST_SECONDS])  # noqa: S608
        return bool(cursor.fetchone()[0])


def take() -> list[Replay]:
    """All that waits for the step that has waited longest, now the caller's: their fence is shown with what is written."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(
            "UPDATE counterfactual_replay SET state = 'failed', ended_at = now(),"  # noqa: S608
            " error = 'given up: its worker ended ' || fence || ' times while it was worked out'"
            f" WHERE {LOST} AND fence >= %s",
            [LOST_SECONDS, TRIES],
        )
        cursor.execute(
            "UPDATE counterfactual_replay SET state = 'running', fence = fence + 1, heartbeat_at = now()"  # noqa: S608
            f" WHERE id IN (SELECT id FROM counterfactual_replay WHERE {WAITING} AND step_id ="
            f" (SELECT step_id FROM counterfactual_replay WHERE {WAITING} ORDER BY id LIMIT 1)"
            " ORDER BY id FOR UPDATE SKIP LOCKED) RETURNING id",
            [LOST_SECONDS, LOST_SECONDS],
        )
        ids = [row[0] for row in cursor.fetchall()]
    return list(Replay.objects.select_related("step__run__vocabulary").filter(pk__in=ids).order_by("pk"))


def write(replay: Replay, **changes: object) -> bool:
    """Say that its worker lives, and what has changed. False: it is another worker's, or its step is gone."""
    mine = Replay.objects.filter(pk=replay.pk, fence=replay.fence, state=ReplayState.RUNNING)
    return mine.update(heartbeat_at=Now(), **changes) == 1


def put_back(replays: Iterable[Replay]) -> None:
    """Leave them to another worker."""
    for replay in replays:
        write(replay, state=ReplayState.QUEUED)
