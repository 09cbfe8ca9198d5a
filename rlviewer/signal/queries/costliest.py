"""The rollouts and prompts that cost most of the gradient budget."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rlviewer.lib.visible import visible_start
from rlviewer.runs.models import Prompt, Rollout, Run
from rlviewer.signal import aggregation as factors
from rlviewer.signal import sums
from rlviewer.signal.aggregation import (
    PER_PROMPT,
    SQL_DIVISORS,
    SUM_OF,
    USUAL,
    StepCounts,
    aggregation_of,
    constant_tokens,
)
from rlviewer.signal.models import RolloutSums
from rlviewer.signal.queries.dead_groups import browse
from rlviewer.signal.steps import StepRange

LISTED = 20


@dataclass(frozen=True, slots=True)
class CostlyRollout:
    rollout: Rollout
    step: int
    share: float  # of its step's budget
    value: float
    href: str  # its page, at the token that weighs most
    step_href: str


@dataclass(frozen=True, slots=True)
class CostlyPrompt:
    text: str
    groups: int
    share: float  # of the whole budget of the steps shown
    href: str


@dataclass(frozen=True, slots=True)
class Costliest:
    rollouts: Sequence[CostlyRollout]
    prompts: Sequence[CostlyPrompt]


def costliest(run: Run, steps: StepRange, query: Mapping[str, str]) -> Costliest:
    """Prompts over all groups of the range, rollouts out of the sums of at most LISTED steps: six queries."""
    used = aggregation_of(run) or USUAL
    return Costliest(_rollouts(run, steps, used), _prompts(run, steps, used))


def _rollouts(run: Run, steps: StepRange, aggregation: str) -> list[CostlyRollout]:
    """The LISTED largest lie in the steps whose largest are largest, so no other sums are read."""
    column, constant = SUM_OF[aggregation], constant_tokens(run)
    found = steps.rows(
        run,
        f"SELECT s.id, s.index, g.counted_tokens, g.counted_rollouts, g.counted_prompts"  # noqa: S608 (our own names)
        f" FROM runs_step s JOIN signal_stepsignal g ON g.step_id = s.id WHERE IN_RANGE AND g.{column}_max > 0"
        f" ORDER BY g.{column}_max / {SQL_DIVISORS[aggregation]} DESC, s.index DESC LIMIT %(limit)s",
        constant=constant,
        limit=LISTED,
    )
    payloads = dict(RolloutSums.objects.filter(pk__in=[row[0] for row in found]).values_list("pk", "payload"))
    group_of = _groups(list(payloads)) if column == PER_PROMPT else {}
    costly = []
    for pk, index, *counts in found:
        rows = sums.unpack(payloads[pk])
        groups = np.array([group_of.get(one, one) for one in rows["rollout"].tolist()])
        factor = 1 / factors.divisor(aggregation, StepCounts(*counts), constant)
        own = factors.sums(rows["mass"], rows["counted"], groups)[column] * factor
        whole = own.sum()
        for place in own.argsort()[::-1][:LISTED].tolist():
            at = int(rows["mass_at"][place])
            costly.append((float(own[place]), int(rows["rollout"][place]), index, float(own[place] / whole), at))
    costly = sorted(costly, reverse=True)[:LISTED]
    rollouts = Rollout.objects.select_related("group").in_bulk([pk for _, pk, *_ in costly])
    return [
        CostlyRollout(
            rollouts[pk], index, share, value, f"/rollouts/{pk}/?token={max(0, at)}", browse(run, f"step:{index}")
        )
        for value, pk, index, share, at in costly
        if pk in rollouts
    ]


def _groups(steps: Sequence[int]) -> dict[int, int]:
    """The group of every rollout of these steps."""
    return dict(Rollout.objects.filter(group__step__in=steps).values_list("pk", "group_id"))


def _prompts(run: Run, steps: StepRange, aggregation: str) -> list[CostlyPrompt]:
    found = steps.rows(
        run,
        f"""
        WITH spent AS (
            SELECT o.prompt_id, count(*) AS groups, sum(gs.{SUM_OF[aggregation]} / {SQL_DIVISORS[aggregation]}) AS value
            FROM runs_step s JOIN signal_stepsignal g ON g.step_id = s.id JOIN signal_groupsignal gs ON gs.step_id = s.id
            JOIN runs_group o ON o.id = gs.group_id WHERE IN_RANGE AND gs.mass IS NOT NULL GROUP BY 1
        ) SELECT prompt_id, groups, value / nullif(sum(value) OVER (), 0) FROM spent ORDER BY value DESC, 1 LIMIT %(limit)s
        """,  # noqa: S608 (our own names)
        constant=constant_tokens(run),
        limit=LISTED,
    )
    texts = dict(Prompt.objects.filter(pk__in=[row[0] for row in found]).values_list("pk", "text"))
    return [
        CostlyPrompt(visible_start(bytes(texts[pk]), 100), groups, share, browse(run, steps.term, f"prompt:{pk}"))
        for pk, groups, share in found
        if share
    ]
