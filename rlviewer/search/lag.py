"""How far the full-text index is behind. Light to import, so that an idle worker can ask."""

from dataclasses import dataclass

from django.db import connection

# Steps that hold rollouts whose texts are not indexed yet.
PENDING = """
    FROM runs_step s LEFT JOIN search_indexedstep i ON i.step_id = s.id
    WHERE s.rollout_count > coalesce(i.rollout_count, 0)
"""


@dataclass(frozen=True, slots=True)
class SearchLag:
    """What is stored and cannot be found by its words yet."""

    steps: int
    rollouts: int
    seconds: float  # since the oldest of these steps was stored


def search_lag() -> SearchLag:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*), coalesce(sum(s.rollout_count - coalesce(i.rollout_count, 0)), 0),"  # noqa: S608 (a constant)
            " coalesce(extract(epoch FROM now() - min(s.stored_at)), 0)" + PENDING
        )
        steps, rollouts, seconds = cursor.fetchone()
    return SearchLag(steps, int(rollouts), float(seconds))
