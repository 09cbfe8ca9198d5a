"""A batch's place: its step, which attempt is current there, and what earlier batches put into the same step."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from django.db.models import F, OuterRef, Subquery
from django.utils import timezone

from rlviewer.ingest.statistics import Scores, group_statistics, step_statistics
from rlviewer.ingest.validation import written_at
from rlviewer.runs.models import Attempt, Group, Rollout, Run, Step, StopReason, TokenChunk
from training.records import BatchHeader

TRAIN = "train"
HELDOUT = "heldout"


@dataclass(slots=True)
class EarlierGroup:
    """A group that an earlier batch of the step began."""

    id: int
    prompt_id: int
    parts: int = 0
    numbers: set[int] = field(default_factory=set)


def open_step(attempt: Attempt, header: BatchHeader, notes: list[dict[str, Any]]) -> tuple[Step, bool]:
    """The step of a batch and whether it is new. Needs the run's row lock.

    The newest attempt that stored a step is current there, in whichever order the batches arrive.
    """
    step = Step.objects.filter(attempt=attempt, split=header.split, index=header.step).first()
    if step is not None:
        return step, False
    current = Step.objects.filter(run_id=attempt.run_id, split=header.split, index=header.step, is_current=True)
    is_newest = not current.filter(attempt__number__gt=attempt.number).exists()
    if is_newest:
        current.update(is_current=False)
    step = Step(
        run_id=attempt.run_id,
        attempt=attempt,
        index=header.step,
        split=header.split,
        is_current=is_newest,
        phase_seconds=header.phase_seconds,
        events=[*header.events, *notes],
        written_at=written_at(header),
        stored_at=timezone.now(),
    )
    step.save(force_insert=True)
    return step, True


def earlier_groups(step: Step) -> dict[int, EarlierGroup]:
    """By index: what the step already holds."""
    groups = {
        index: EarlierGroup(group_id, prompt_id)
        for group_id, index, prompt_id in Group.objects.filter(step=step).values_list("id", "index", "prompt_id")
    }
    by_id = {group.id: group for group in groups.values()}
    for group_id in TokenChunk.objects.filter(group__in=by_id, kind="sampled").values_list("group_id", flat=True):
        by_id[group_id].parts += 1
    for group_id, number in Rollout.objects.filter(group__in=by_id).values_list("group_id", "number"):
        by_id[group_id].numbers.add(number)
    return groups


def stored_scores(rollouts: Any) -> tuple[Scores, Any]:
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


def recount(step: Step, grown: set[int]) -> dict[str, Any]:
    """Work out again the groups (ids) that a later batch added to; returns the step's statistics as a whole."""
    of, group_ids = stored_scores(Rollout.objects.filter(group__step=step))
    for group_id in sorted(grown):
        rows = group_ids == group_id
        statistics = group_statistics(of.reward[rows], of.correct[rows])
        Group.objects.filter(pk=group_id).update(size_got=int(rows.sum()), **statistics)
    causes = list(Group.objects.filter(step=step).values_list("dead_cause", flat=True))
    return step_statistics(of, causes)


def summarise_run(run_id: int, *, more_rollouts: int, more_tokens: int) -> None:
    """Bring the run's summary columns up to date. Needs its row lock."""
    Run.objects.filter(pk=run_id).update(
        rollout_count=F("rollout_count") + more_rollouts,
        token_count=F("token_count") + more_tokens,
        **summary_of_steps(),
    )


def summary_of_steps() -> dict[str, Any]:
    """Expressions for the summary columns of `Run` that follow from its current steps."""
    current = Step.objects.filter(run=OuterRef("pk"), is_current=True)
    train = current.filter(split=TRAIN).order_by("-index")
    heldout = current.filter(split=HELDOUT)
    dead_share = F("dead_groups") * 1.0 / F("group_count")
    return {
        "last_step": Subquery(train.values("index")[:1]),
        "latest_reward": Subquery(train.values("reward_mean")[:1]),
        "latest_dead_share": Subquery(train.filter(group_count__gt=0).annotate(share=dead_share).values("share")[:1]),
        "base_pass": Subquery(heldout.filter(index=0).values("pass_rate")[:1]),
        "latest_pass": Subquery(heldout.order_by("-index").values("pass_rate")[:1]),
    }
