"""A batch's place: its step, which attempt is current there, and what earlier batches put into the same step."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from django.db.backends.utils import CursorWrapper
from django.db.models import QuerySet

from rlviewer.ingest.statistics import Scores, group_statistics, step_statistics
from rlviewer.ingest.validation import CheckedBatch, written_at
from rlviewer.runs.models import Group, Rollout, StopReason, TokenChunk
from training.records import BatchHeader

TRAIN = "train"
HELDOUT = "heldout"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a batch belongs."""

    project_id: int
    run_id: int
    attempt_id: int


@dataclass(frozen=True, slots=True)
class OpenStep:
    id: int
    is_new: bool


@dataclass(slots=True)
class EarlierGroup:
    """A group that an earlier batch of the step began."""

    id: int
    prompt_id: int
    parts: int = 0
    numbers: set[int] = field(default_factory=set)


def open_step(cursor: CursorWrapper, place: Place, header: BatchHeader, checked: CheckedBatch) -> OpenStep:
    """The step of a batch, made if it is new. Needs the run's row lock.

    The newest attempt that stored a step is current there, in whichever order the batches arrive.
    """
    key: dict[str, Any] = {"run": place.run_id, "attempt": place.attempt_id, "number": header.attempt, "split": header.split,
           "index": header.step}  # fmt: skip
    cursor.execute(
        "SELECT id FROM runs_step WHERE attempt_id = %(attempt)s AND split = %(split)s AND index = %(index)s", key
    )
    if found := cursor.fetchone():
        return OpenStep(found[0], is_new=False)
    cursor.execute(
        """
        SELECT coalesce(bool_and(a.number < %(number)s), true) FROM runs_step s JOIN runs_attempt a ON a.id = s.attempt_id
        WHERE s.run_id = %(run)s AND s.split = %(split)s AND s.index = %(index)s AND s.is_current
        """,
        key,
    )
    (is_newest,) = cursor.fetchone()
    if is_newest:
        cursor.execute(
            "UPDATE runs_step SET is_current = false"
            " WHERE run_id = %(run)s AND split = %(split)s AND index = %(index)s AND is_current",
            key,
        )
    # The statistics follow when the rows are in; the columns without a default in the database are named here.
    cursor.execute(
        """
        INSERT INTO runs_step (run_id, attempt_id, index, split, is_current, group_count, rollout_count, kept_count,
            dead_groups, dead_right, dead_wrong, unscored_count, tokens_sampled, tokens_trained, phase_seconds, events,
            written_at, stored_at)
        VALUES (%(run)s, %(attempt)s, %(index)s, %(split)s, %(newest)s, 0, 0, 0, 0, 0, 0, 0, 0, 0, %(seconds)s,
            %(events)s, %(written)s, now())
        RETURNING id
        """,
        key
        | {
            "newest": is_newest,
            "seconds": checked.phase_seconds,
            "events": checked.events,
            "written": written_at(header),
        },
    )
    return OpenStep(cursor.fetchone()[0], is_new=True)


def earlier_groups(step_id: int) -> dict[int, EarlierGroup]:
    """By index: what the step already holds."""
    groups = {
        index: EarlierGroup(group_id, prompt_id)
        for group_id, index, prompt_id in Group.objects.filter(step=step_id).values_list("id", "index", "prompt_id")
    }
    by_id = {group.id: group for group in groups.values()}
    for group_id in TokenChunk.objects.filter(group__in=by_id, kind="sampled").values_list("group_id", flat=True):
        by_id[group_id].parts += 1
    for group_id, number in Rollout.objects.filter(group__in=by_id).values_list("group_id", "number"):
        by_id[group_id].numbers.add(number)
    return groups


def stored_scores(rollouts: QuerySet[Rollout]) -> tuple[Scores, Any]:
    """The scores of a queryset of rollouts as they are in the database, and each one's group id."""
    names = ("reward", "correct", "entropy_mean", "kept", "stop_reason", "length_tokens", "group_id")
    rows = rollouts.values_list(*names)
    columns = dict(zip(names, zip(*rows, strict=True), strict=True)) if rows else dict.fromkeys(names, ())
    of = Scores(
        reward=np.array(columns["reward"], dtype=np.float64),
        correct=np.array(columns["correct"], dtype=np.float64),
        entropy_mean=np.array(columns["entropy_mean"], dtype=np.float64),
        kept=np.array(columns["kept"], dtype=bool),
        is_truncated=np.array(columns["stop_reason"]) == StopReason.LENGTH,
        length_tokens=np.array(columns["length_tokens"], dtype=np.int64),
    )
    return of, np.array(columns["group_id"], dtype=np.int64)


def recount(step_id: int, grown: set[int]) -> dict[str, Any]:
    """Work out again the groups (ids) that a later batch added to; returns the step's statistics as a whole."""
    of, group_ids = stored_scores(Rollout.objects.filter(group__step=step_id))
    for group_id in sorted(grown):
        rows = group_ids == group_id
        statistics = group_statistics(of.reward[rows], of.correct[rows])
        Group.objects.filter(pk=group_id).update(size_got=int(rows.sum()), **statistics)
    causes = list(Group.objects.filter(step=step_id).values_list("dead_cause", flat=True))
    return step_statistics(of, causes)


def write_statistics(
    cursor: CursorWrapper, step_id: int, values: dict[str, Any], *, tokens_sampled: int, tokens_trained: int
) -> None:
    """Set the step's statistics; tokens are added to what earlier batches brought."""
    columns = ", ".join(f"{name} = %({name})s" for name in values)
    cursor.execute(
        f"UPDATE runs_step SET {columns}, tokens_sampled = tokens_sampled + %(sampled)s,"  # noqa: S608 (our own names)
        " tokens_trained = tokens_trained + %(trained)s WHERE id = %(step)s",
        {**values, "sampled": tokens_sampled, "trained": tokens_trained, "step": step_id},
    )


# The summary columns of `Run` that follow from its current steps; fsck asks the same.
SUMMARY = f"""
    SELECT last.index AS last_step, last.reward_mean AS latest_reward,
           last.dead_groups::float8 / nullif(last.group_count, 0) AS latest_dead_share,
           base.pass_rate AS base_pass, newest.pass_rate AS latest_pass
    FROM (SELECT 1) AS one
    LEFT JOIN LATERAL (SELECT * FROM runs_step WHERE run_id = %(run)s AND is_current AND split = '{TRAIN}'
                       ORDER BY index DESC LIMIT 1) AS last ON true
    LEFT JOIN runs_step AS base
        ON base.run_id = %(run)s AND base.is_current AND base.split = '{HELDOUT}' AND base.index = 0
    LEFT JOIN LATERAL (SELECT * FROM runs_step WHERE run_id = %(run)s AND is_current AND split = '{HELDOUT}'
                       ORDER BY index DESC LIMIT 1) AS newest ON true
"""  # noqa: S608 (our own constants)


def summarise_run(cursor: CursorWrapper, run_id: int, *, more_rollouts: int, more_tokens: int) -> None:
    """Bring the run's summary columns up to date. Needs its row lock."""
    cursor.execute(
        f"""
        UPDATE runs_run SET rollout_count = rollout_count + %(rollouts)s, token_count = token_count + %(tokens)s,
            (last_step, latest_reward, latest_dead_share, base_pass, latest_pass) = ({SUMMARY})
        WHERE id = %(run)s
        """,  # noqa: S608 (our own constants)
        {"run": run_id, "rollouts": more_rollouts, "tokens": more_tokens},
    )
