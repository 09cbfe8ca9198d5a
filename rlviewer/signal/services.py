"""Works out what stored steps taught, a transaction a step; the sweep of every worker calls it."""

import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from django.db import connection, transaction

from rlviewer.outbox.services import announce
from rlviewer.runs.models import Step
from rlviewer.runs.queries.rollout import loss_rule, vocabulary_pieces
from rlviewer.signal import aggregation, sums
from rlviewer.signal.lag import PENDING, VERSION
from rlviewer.signal.material import Material, read_step
from rlviewer.signal.measures.audit import audit, means_dead
from rlviewer.signal.measures.budget import budget
from rlviewer.signal.measures.coverage import coverage
from rlviewer.signal.measures.diversity import diversity
from rlviewer.signal.measures.groups import group_signals
from rlviewer.signal.measures.outcomes import outcomes
from rlviewer.signal.measures.shares import rollout_shares
from rlviewer.signal.measures.tokens import tokens_of
from rlviewer.signal.measures.trust import trust_signals
from rlviewer.signal.models import GroupSignal, RolloutSums, StepHistograms, StepPart, StepSignal, VersionSignal
from rlviewer.signal.names import SPLIT_PLACE


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
        store(step, measured(read_step(step)))
        announce(f"run:{step.run_id}", "signal-computed", step=step.index, split=step.split)
    return True


@dataclass(frozen=True, slots=True)
class Measured:
    """What one step's rollouts say."""

    step: dict[str, Any]  # columns of `StepSignal`
    groups: list[GroupSignal]
    parts: list[StepPart]
    versions: list[VersionSignal]
    sums: dict[str, npt.NDArray[Any]]
    histograms: dict[str, npt.NDArray[Any]]


def measured(of: Material) -> Measured:
    """Everything that is worked out of a step; about a microsecond a token."""
    run, tokens = of.step.run, tokens_of(of)
    pieces = None if run.vocabulary_id is None else vocabulary_pieces(run.vocabulary_id)
    causes, trust, different = group_signals(of), trust_signals(of, tokens), diversity(of, tokens)
    came_out = outcomes(of)
    spent = budget(of, tokens, pieces, clipped_count=loss_rule(run)["loss"] == "detached_clip")
    checks = audit(of, tokens, pieces, dead_is_meant=means_dead(run))
    has_budget = tokens.advantage is not None
    masses = aggregation.sums(spent.mass, spent.tokens, of.group_of)
    of_groups = {
        name: np.bincount(of.group_of, weights=own, minlength=len(of.groups)).tolist() for name, own in masses.items()
    }
    largest = {f"{name}_max": float(own.max(initial=0)) if has_budget else None for name, own in masses.items()}
    return Measured(
        step={
            **causes.step,
            **trust.step,
            **different.step,
            **came_out.step,
            **largest,
            "is_spread": tokens.is_spread,
            "audit_checked": checks.checked,
            "audit_failed": checks.failed,
            "recorded": coverage(of),
        },
        groups=[
            GroupSignal(
                group=group,
                step=of.step,
                cause=causes.causes[place],
                tokens=int(causes.tokens[place]),
                ess_share=trust.group_ess[place],
                reward_max=came_out.reward_max[place],
                abs_advantage=came_out.abs_advantage[place],
                **{name: own[place] if has_budget else None for name, own in of_groups.items()},
                **asdict(different.groups[place]),
            )
            for place, group in enumerate(of.groups)
        ],
        parts=[
            *(_part(of.step, part.split, part.name, part.rollouts, part.tokens, part.masses) for part in spent.parts),
            *(_part(of.step, "uncounted", reason, count, 0, {}) for reason, count in trust.uncounted.items()),
        ],
        versions=[
            VersionSignal(
                step=of.step, policy_version=one.version, **{k: v for k, v in asdict(one).items() if k != "version"}
            )
            for one in trust.versions
        ],
        sums=rollout_shares(of, tokens, spent)
        | {f"audit_{key}": at.astype(np.int32) for key, at in checks.failed_at.items()},
        histograms=trust.histograms,
    )


def _part(step: Step, split: str, name: str, rollouts: int, tokens: int, masses: dict[str, float]) -> StepPart:
    length = StepPart._meta.get_field("name").max_length
    return StepPart(step=step, split=SPLIT_PLACE[split], name=name[:length], rollouts=rollouts, tokens=tokens, **masses)


def store(step: Step, found: Measured) -> None:
    """In place of what was there of the step."""
    now = {"rollout_count": step.rollout_count, "version": VERSION}
    StepSignal.objects.update_or_create(step=step, defaults={**found.step, **now})
    tables: list[tuple[Any, list[Any]]] = [
        (GroupSignal.objects, found.groups),
        (StepPart.objects, found.parts),
        (VersionSignal.objects, found.versions),
    ]
    for table, rows in tables:
        table.filter(step=step).delete()
        table.bulk_create(rows)
    for packed, columns in ((RolloutSums, found.sums), (StepHistograms, found.histograms)):
        packed.objects.update_or_create(step=step, defaults={"payload": sums.pack(columns)})
