"""Rewards judged anew beside those that are stored: by step, and one step in full."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from django.urls import reverse

from rlviewer.charts import scatter
from rlviewer.charts.chart import Chart
from rlviewer.charts.scatter import Points, ScatterChart
from rlviewer.counterfactual.jobs import Question, of_step
from rlviewer.counterfactual.models import Replay, ReplayState
from rlviewer.runs.models import Group, Rollout, Run, Step
from rlviewer.runs.queries.step import TRAIN
from rlviewer.signal import sums
from training.ranks import SAME
from training.replay_frames import VERSION

LISTED = 30
SUMMED = ("reward_both", "reward_higher", "reward_lower", "reward_unscored", "correct_gained", "correct_lost", "flips")


@dataclass(frozen=True, slots=True)
class StepRow:
    """A step that was judged anew."""

    index: int
    measures: dict[str, Any]

    @property
    def woken(self) -> int:
        return len(self.measures["woken"])

    @property
    def died(self) -> int:
        return len(self.measures["died"])

    @property
    def errors(self) -> int:
        return len(self.measures["errors"])


@dataclass(frozen=True, slots=True)
class Changed:
    rollout_id: int
    group: int
    number: int
    was: float | None
    now: float | None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Rescore:
    step: Step
    replay: Replay | None
    steps: Sequence[StepRow]
    waiting: int
    totals: dict[str, int]
    chart: Chart | None
    changed: Sequence[Changed]
    changed_count: int
    errors: Sequence[Changed]
    error_count: int
    woken: Sequence[tuple[int, str]]
    died: Sequence[tuple[int, str]]

    @property
    def problem(self) -> str:
        """Why the step could not be judged, in words."""
        if self.replay is None or not self.replay.is_over:
            return ""
        said = self.replay.labels.get("advantages", ["", ""])
        return self.replay.error or (said[1] if said[0] == "cannot say" else "")


def rescore_page(run: Run, step: Step, question: Question) -> Rescore:
    """Four queries."""
    recipe, constants, rewards = question.key
    same = Replay.objects.filter(
        step__run=run, step__split=TRAIN, step__is_current=True, version=VERSION,
        recipe=recipe, constants=constants, rewards=rewards,
    )  # fmt: skip
    states = list(same.order_by("step__index").values_list("step__index", "state", "measures"))
    steps = [StepRow(index, told) for index, state, told in states if state == ReplayState.FINISHED and "flips" in told]
    replay = of_step(step).filter(recipe=recipe, constants=constants, rewards=rewards).first()
    rows = list(
        Rollout.objects.filter(group__step=step)
        .order_by("group__index", "number")
        .values_list("pk", "group__index", "number", "reward")
    )
    groups = dict(enumerate(Group.objects.filter(step=step).order_by("index").values_list("index", "pk")))
    told = replay.measures if replay is not None else {}
    now = _rewards(replay, len(rows))
    errors = [_changed(rows[int(at)], None, said) for at, said in told.get("errors", {}).items()]
    changed = []
    if now is not None:
        was = np.array([np.nan if row[3] is None else row[3] for row in rows], dtype=float)
        different = np.flatnonzero(np.abs(now - was) > SAME)
        changed = [_changed(rows[at], float(now[at])) for at in different[np.argsort(-np.abs(now - was)[different])].tolist()]  # fmt: skip

    def links(name: str) -> list[tuple[int, str]]:
        return [(groups[at][0], reverse("group-detail", args=[groups[at][1]])) for at in told.get(name, [])[:LISTED] if at in groups]  # fmt: skip

    return Rescore(
        step=step,
        replay=replay,
        steps=steps,
        waiting=sum(state in {ReplayState.QUEUED, ReplayState.RUNNING} for _, state, _ in states),
        totals={name: sum(one.measures[name] for one in steps) for name in SUMMED}
        | {name: sum(getattr(one, name) for one in steps) for name in ("woken", "died", "errors")},
        chart=None if now is None else _chart(rows, now.tolist()),
        changed=changed[:LISTED],
        changed_count=len(changed),
        errors=errors[:LISTED],
        error_count=len(errors),
        woken=links("woken"),
        died=links("died"),
    )


def _rewards(replay: Replay | None, count: int) -> Any:
    if replay is None or not replay.columns or "reward_both" not in replay.measures:
        return None
    now = sums.unpack(replay.columns).get("reward")
    return now if now is not None and len(now) == count else None


def _changed(row: tuple[int, int, int, float | None], now: float | None, error: str = "") -> Changed:
    pk, group, number, was = row
    return Changed(pk, group, number, was, now, error)


def _chart(rows: Sequence[tuple[int, int, int, float | None]], now: Sequence[float]) -> Chart:
    figure = scatter.figure(
        ScatterChart(
            "stored reward",
            "reward judged anew",
            [
                Points(
                    "rollouts",
                    [reward for *_, reward in rows],
                    now,
                    texts=[f"group {group}, rollout {number}" for _, group, number, _ in rows],
                    links=[reverse("rollout-detail", args=[pk]) for pk, *_ in rows],
                )
            ],
            has_diagonal=True,
        )
    )
    return Chart(
        "rewards",
        "Reward, stored and judged anew",
        "per rollout",
        figure,
        meaning="On the dotted line nothing changes. A rollout that is not scored on one side is left out.",
    )
