"""What the page of one run shows."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from django.db.models import Sum
from django.db.models.functions import Substr
from django.shortcuts import get_object_or_404

from rlviewer.accounts.models import Role, User
from rlviewer.charts.thinning import thin
from rlviewer.lib.text import bytes_from_text
from rlviewer.lib.visible import visible_end, visible_start
from rlviewer.runs import verdicts
from rlviewer.runs.measures import MEASURES
from rlviewer.runs.models import Attempt, Group, Rollout, Run, RunState, Step, StopReason, TokenChunk
from rlviewer.runs.queries.ledger import refused_count
from rlviewer.runs.queries.series import NO_SERIES, Series
from rlviewer.runs.tokens import unpack_chunk
from rlviewer.runs.verdicts import Verdict

NEWEST = 12
SPARK_POINTS = 120
TEXT_ONLY: frozenset[str] = frozenset()
STEPS_PER_PAGE = 50
PROMPT_CHARACTERS = 80


@dataclass(frozen=True, slots=True)
class RunHeader:
    """Name, state, progress and what this person may do."""

    run: Run
    attempts: Sequence[Attempt]  # newest first
    may_act: bool
    steps_done: int
    seconds_left: int | None
    refused: int  # rollouts that could not be stored

    @property
    def is_active(self) -> bool:
        return not self.run.is_over

    @property
    def can_pause(self) -> bool:
        return self.may_act and self.run.wanted == "run" and self.run.state in {RunState.RUNNING, RunState.STARTING}

    @property
    def can_continue(self) -> bool:
        return self.may_act and self.run.wanted == "pause" and self.is_active

    @property
    def can_stop(self) -> bool:
        return self.may_act and self.run.wanted != "stop" and self.is_active

    @property
    def can_resume(self) -> bool:
        # An imported run never had a lease, and its checkpoints stayed where it was trained.
        was_trained_here = bool(self.attempts) and hasattr(self.attempts[0], "lease")
        return self.may_act and was_trained_here and self.run.state in {RunState.STOPPED, RunState.FAILED}


def visible_run(user: User, run_id: int) -> Run:
    """The run, or 404 when this person may not see it. One query."""
    runs = Run.objects.visible_to(user).select_related("project", "created_by", "wanted_by")
    return get_object_or_404(runs, pk=run_id)


def may_act(user: User, run: Run) -> bool:
    """Members and admins of the project act on its runs; viewers read. At most one query."""
    return run.project.role_of(user) in {Role.MEMBER, Role.ADMIN}


def run_header(user: User, run: Run, step_seconds: Series = NO_SERIES) -> RunHeader:
    """Three queries."""
    done = 0 if run.last_step is None else run.last_step + 1
    newest = step_seconds.current.values[-20:]
    left = max(0, run.steps_planned - done)
    is_moving = run.state == RunState.RUNNING and newest and left
    return RunHeader(
        run=run,
        attempts=list(run.attempts.select_related("lease").order_by("-number")),
        may_act=may_act(user, run),
        steps_done=done,
        seconds_left=round(left * fmean(newest)) if is_moving else None,
        refused=refused_count(run),
    )


@dataclass(frozen=True, slots=True)
class Stat:
    """One number of the strip that answers "what is it learning?"."""

    key: str
    label: str
    meaning: str
    value: float | None
    is_share: bool
    unit: str
    note: str
    spark: list[float]
    verdict: Verdict
    nothing: str  # why there is no value

    @property
    def behind(self) -> str:
        """The page of the Signal tab that says more."""
        return BEHIND[self.key]


BEHIND = {
    "pass": "passes",
    "reward": "rewards",
    "dead": "dead-groups",
    "gap": "trust-region",
    "truncated": "costs",
    "entropy": "diversity",
}


def run_stats(run: Run, series: dict[str, Series]) -> list[Stat]:
    """Pass rate, reward, dead groups, sampler-policy gap, truncated share, entropy. At most one query."""

    def stat(key: str, label: str, name: str, verdict: Verdict, note: str = "", **extra: Any) -> Stat:
        found = series.get(name, NO_SERIES)
        measure = MEASURES[name]
        return Stat(
            key=key,
            label=label,
            meaning=f"{measure.meaning} Shown as it was at the newest {'evaluation' if key == 'pass' else 'step'}.",
            value=found.latest,
            is_share=measure.unit == "share",
            unit="" if measure.unit in {"share", "reward"} else measure.unit.split(" ")[0],
            note=note,
            spark=thin(found.current.steps, found.current.values, limit=SPARK_POINTS)[1],
            verdict=verdict,
            nothing="not recorded by this source" if run.last_step is not None else "no step yet",
            **extra,
        )

    def values(name: str) -> list[float]:
        return series.get(name, NO_SERIES).current.values

    below = verdicts.below
    return [
        stat(
            "pass",
            "pass@1, held-out",
            "eval_pass_at_1",
            verdicts.pass_change(values("eval_pass_at_1")),
            _pass_note(values("eval_pass_at_1")),
        ),
        stat("reward", "reward", "reward_mean", verdicts.reward_trend(values("reward_mean"))),
        stat(
            "dead",
            "dead groups",
            "dead_share",
            below(values("dead_share"), fine=0.5, watch=0.8, of="of groups"),
            dead_note(run),
        ),
        stat(
            "gap",
            "sampler-policy gap",
            "sampler_policy_gap",
            below(values("sampler_policy_gap"), fine=0.01, watch=0.1, of="nats"),
        ),
        stat(
            "truncated",
            "truncated",
            "truncated_share",
            below(values("truncated_share"), fine=0.05, watch=0.25, of="of completions"),
        ),
        stat("entropy", "entropy", "entropy", verdicts.entropy_kept(values("entropy"))),
    ]


def _pass_note(values: Sequence[float]) -> str:
    if len(values) < 2:
        return "base model" if values else ""
    return f"{100 * (values[-1] - values[0]):+.1f} points".replace("-", "−")


def dead_note(run: Run, newest_steps: int = 20) -> str:
    """The main cause of the newest dead groups. One query."""
    if run.last_step is None:
        return ""
    steps = Step.objects.filter(run=run, split="train", is_current=True, index__gt=run.last_step - newest_steps)
    sums = steps.aggregate(dead=Sum("dead_groups"), right=Sum("dead_right"), wrong=Sum("dead_wrong"))
    causes = {"all right": sums["right"] or 0, "all wrong": sums["wrong"] or 0}
    causes["equal score"] = (sums["dead"] or 0) - sum(causes.values())
    cause = max(causes, key=lambda name: causes[name])
    return f"mostly {cause}" if causes[cause] > 0 else ""


@dataclass(frozen=True, slots=True)
class RolloutLine:
    """One rollout in a list: the narrow row and the end of its text."""

    rollout: Rollout
    end: str
    answer: str | None
    prompt: str = ""  # how it begins, where the list names it

    @property
    def stop_reason(self) -> str:
        return StopReason(self.rollout.stop_reason).label

    @property
    def bar(self) -> float:
        """Length of the reward's bar."""
        reward = self.rollout.reward
        return abs(reward) if reward is not None and math.isfinite(reward) else 0.0


def rollout_lines(rollouts: Sequence[Rollout], limit: int = 120) -> list[RolloutLine]:
    """The rollouts with the ends of their completions. One query, for their chunks."""
    payloads = TokenChunk.objects.filter(pk__in={r.chunk_id for r in rollouts}).values_list("pk", "payload")
    chunks = {pk: unpack_chunk(payload, columns=TEXT_ONLY) for pk, payload in payloads}
    lines = []
    for rollout in rollouts:
        chunk = chunks.get(rollout.chunk_id)
        completion = chunk.rollouts[rollout.position].completion if chunk else b""
        answer = None if rollout.parsed_answer is None else shown_answer(rollout.parsed_answer)
        lines.append(RolloutLine(rollout, visible_end(completion, limit), answer))
    return lines


def with_prompts(lines: Sequence[RolloutLine]) -> list[RolloutLine]:
    """The lines, each naming its prompt. One query; of a long prompt only the beginning is read."""
    begins = Substr("prompt__text", 1, 4 * PROMPT_CHARACTERS + 4)
    groups = Group.objects.filter(pk__in={line.rollout.group_id for line in lines}).values_list("pk", begins)
    prompts = {pk: visible_start(bytes(text), PROMPT_CHARACTERS) for pk, text in groups}
    return [replace(line, prompt=prompts.get(line.rollout.group_id, "")) for line in lines]


def shown_answer(answer: str) -> str:
    """A parsed answer, stored escaped by lib.text, for one line of a page."""
    return visible_start(bytes_from_text(answer), 60)


def newest_rollouts(run: Run, limit: int = NEWEST) -> list[RolloutLine]:
    """The rollouts stored last, of training and evaluation. Three queries."""
    rows = Rollout.objects.filter(run_id=run.pk).select_related("step", "group").order_by("-id")[:limit]
    return with_prompts(rollout_lines(list(rows)))


@dataclass(frozen=True, slots=True)
class StepRows:
    steps: Sequence[Step]
    next_before: int | None


def step_rows(run: Run, split: str, before: int | None) -> StepRows:
    """Current steps of a split, newest first, before index `before`. One query."""
    steps = Step.objects.filter(run=run, split=split, is_current=True).select_related("attempt").order_by("-index")
    if before is not None:
        steps = steps.filter(index__lt=before)
    rows = list(steps[: STEPS_PER_PAGE + 1])
    page = rows[:STEPS_PER_PAGE]
    return StepRows(page, page[-1].index if len(rows) > STEPS_PER_PAGE else None)
