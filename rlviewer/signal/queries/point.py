"""What made one point of a curve: its value, and its change since an earlier step, over rollouts, prompts, families and tokens."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rlviewer.charts import curves
from rlviewer.charts.chart import Chart
from rlviewer.charts.curves import Curve, CurveChart
from rlviewer.lib.visible import visible_start
from rlviewer.runs.measures import MADE_OF_ROLLOUTS, MEASURES, Measure
from rlviewer.runs.models import Prompt, Rollout, Run, Step, StopReason
from rlviewer.runs.queries.series import NO_SERIES, metric_series
from rlviewer.runs.queries.step import TRAIN, number_from
from rlviewer.signal import aggregation, sums
from rlviewer.signal.aggregation import USUAL, StepCounts
from rlviewer.signal.decompose import (
    Concentration,
    KeyChange,
    Weighed,
    concentration,
    contributions,
    split_change,
    weighed,
)
from rlviewer.signal.material import Floats, Integers
from rlviewer.signal.models import RolloutSums
from rlviewer.signal.queries.dead_groups import browse, quoted
from rlviewer.signal.queries.heavy_tokens import HeavyToken, heavy_tokens
from rlviewer.signal.steps import StepRange

LISTED, LISTED_KEYS = 20, 10
TOKENS_OF = 5  # rollouts whose tokens are read
# Metrics whose rollouts' sums are stored, and the token's share in it: the name of the column of `RolloutSums`.
SUMMED = {
    "kl_k3": "kl_k3",
    "ref_kl_k3": "ref_kl_k3",
    "entropy": "entropy",
    "clip_fraction": "clipped",
    "grad_norm": "mass",
}

Head = tuple[str, Measure, Mapping[str, str], int | None, int | None, int | None]  # how a `Point` begins


@dataclass(frozen=True, slots=True)
class Side:
    """One step, its rollouts in order and what each adds to the metric."""

    step: Step
    rollouts: Integers
    prompts: Integers
    families: Sequence[str]
    places: Sequence[tuple[int, int]]  # group and number of each
    heaviest: Integers  # token, -1: none
    weighed: Weighed


@dataclass(frozen=True, slots=True)
class RolloutRow:
    rollout: int
    group: int
    number: int
    prompt: str
    own: float | None  # its own mean
    part: float  # of the value or of the change
    reached: float  # share of all parts, by size, with those above it
    href: str


@dataclass(frozen=True, slots=True)
class KeyRow:
    """One prompt or family: what it adds to the value, or by mix and within to the change."""

    name: str
    now: float | None
    before: float | None
    part: float
    mix: float
    within: float
    href: str


@dataclass(frozen=True, slots=True)
class Keys:
    title: str
    rows: Sequence[KeyRow]
    total: int
    shared: int  # keys of both steps
    mix: float
    within: float


@dataclass(frozen=True, slots=True)
class Point:
    """`problem` says why there is nothing to split; then only the fields above it are set."""

    metric: str
    measure: Measure
    metrics: Mapping[str, str]  # that can be split, with their titles
    step: int | None
    against: int | None
    last: int | None  # newest step of the run
    problem: str = ""
    is_proxy: bool = False
    value: float | None = None
    before: float | None = None
    recorded: float | None = None  # as the trainer says
    spread: Concentration | None = None
    rows: Sequence[RolloutRow] = ()
    keys: Sequence[Keys] = ()
    tokens: Sequence[HeavyToken] = ()
    chart: Chart | None = None

    @property
    def title(self) -> str:
        return self.metrics[self.metric]

    @property
    def change(self) -> float | None:
        return None if self.value is None or self.before is None else self.value - self.before


def point(run: Run, _steps: StepRange, query: Mapping[str, str]) -> Point:
    """About ten queries, on two steps; tokens are read of TOKENS_OF rollouts."""
    metric = query.get("metric", "")
    metric = metric if metric in MADE_OF_ROLLOUTS else "reward_mean"
    asked = number_from(query.get("step"))
    index = run.last_step if asked is None else asked
    steps = Step.objects.filter(run=run, split=TRAIN, is_current=True)
    step = steps.filter(index=index).first() if index is not None else None
    against = query.get("against")
    earlier = number_from(against)
    if against is None and step is not None:
        earlier = steps.filter(index__lt=step.index).order_by("-index").values_list("index", flat=True).first()
    other = steps.filter(index=earlier).first() if earlier is not None else None
    head = (metric, MEASURES[metric], MADE_OF_ROLLOUTS, index, earlier, run.last_step)
    if step is None:
        return Point(*head, problem="no step" if run.last_step is None else "no such step")
    if earlier is not None and other is None:
        return Point(*head, problem="no earlier step")
    sides = [read_side(run, one, metric) for one in (step, other) if one is not None]
    if any(side is None for side in sides):
        return Point(*head, problem="waiting")
    now, before = sides[0], sides[1] if other is not None else None
    if now is None or now.weighed.value is None:
        return Point(*head, problem="not recorded")
    return _split(run, head, now, before)


def _split(run: Run, head: Head, now: Side, before: Side | None) -> Point:
    start = None if before is None else before.weighed.value
    parts = contributions(now.weighed, start)
    order = np.argsort(-np.abs(parts), kind="stable")
    whole = np.abs(parts).sum()
    reached = np.cumsum(np.abs(parts[order])) / whole if whole else np.ones(len(order))
    recorded = metric_series(run.pk, [head[0]]).get(head[0], NO_SERIES).current
    told = dict(zip(recorded.steps, recorded.values, strict=True))
    tokens = heavy_tokens(run, SUMMED.get(head[0]), now.rollouts[order[:TOKENS_OF]].tolist())
    return Point(
        *head,
        is_proxy=head[0] == "grad_norm",
        value=now.weighed.value,
        before=start,
        recorded=told.get(now.step.index),
        spread=concentration(parts),
        rows=_rows(now, parts, order[:LISTED], reached),
        keys=[
            _prompts(run, now, before, parts),
            _families(run, now, before, parts),
        ],
        tokens=tokens,
        chart=_curve(now, order, reached),
    )


def read_side(run: Run, step: Step, metric: str) -> Side | None:
    """What each rollout of a step adds to a metric; None when the step is not worked out yet. Two queries."""
    stored = RolloutSums.objects.filter(step=step).values_list("payload", flat=True).first()
    found = list(
        Rollout.objects.filter(group__step=step)
        .order_by("group__index", "number")
        .values_list("pk", "group_id", "group__prompt_id", "group__prompt__generator", "group__index", "number",
                     "reward", "correct", "length_tokens", "stop_reason")
    )  # fmt: skip
    if stored is None or not found:
        return None
    rows = sums.unpack(stored)
    columns = [list(column) for column in zip(*found, strict=True)]
    ids = np.array(columns[0])
    place = {pk: row for row, pk in enumerate(rows["rollout"].tolist())}
    if any(pk not in place for pk in columns[0]):
        return None
    sorting = np.array([place[pk] for pk in columns[0]])
    rows = {name: values[sorting] for name, values in rows.items()}
    narrow = {
        "reward_mean": columns[6],
        "pass_rate": columns[7],
        "length_mean": columns[8],
        "truncated_share": [stop == StopReason.LENGTH for stop in columns[9]],
    }
    name = SUMMED.get(metric, "")
    if metric in narrow:
        own = weighed(np.array(narrow[metric], dtype=np.float64), np.ones(len(ids)))
    elif name not in rows:
        own = weighed(np.full(len(ids), np.nan), np.ones(len(ids)))
    elif metric == "grad_norm":
        own = _budget(run, rows["mass"], rows["counted"], np.array(columns[1]))
    else:
        own = weighed(rows[name].astype(np.float64), rows.get(f"{name}_counted", rows["counted"]).astype(np.float64))
    return Side(
        step=step,
        rollouts=ids,
        prompts=np.array(columns[2]),
        families=columns[3],
        places=list(zip(columns[4], columns[5], strict=True)),
        heaviest=rows.get(f"{name}_at", np.full(len(ids), -1)),
        weighed=own,
    )


def _budget(run: Run, mass: Floats, counted: Integers, groups: Integers) -> Weighed:
    """The gradient budget is a sum: every rollout counts alike, and all of them count 1."""
    used = aggregation.aggregation_of(run) or USUAL
    has = counted > 0
    counts = StepCounts(int(counted.sum()), int(has.sum()), len(np.unique(groups[has])))
    scale = 1 / aggregation.divisor(used, counts, aggregation.constant_tokens(run))
    own = aggregation.sums(mass, counted, groups)[aggregation.SUM_OF[used]] * scale
    return weighed(own if mass.any() else np.full(len(mass), np.nan), np.full(len(mass), 1 / len(mass)))


def _rows(now: Side, parts: Floats, order: Integers, reached: Floats) -> list[RolloutRow]:
    texts = _texts(now.prompts[order].tolist())
    own = np.divide(now.weighed.sums, now.weighed.counts, out=np.full(len(parts), np.nan), where=now.weighed.counts > 0)
    return [
        RolloutRow(
            rollout=int(now.rollouts[row]),
            group=now.places[row][0],
            number=now.places[row][1],
            prompt=texts.get(int(now.prompts[row]), ""),
            own=float(own[row]) if np.isfinite(own[row]) else None,
            part=float(parts[row]),
            reached=float(reached[rank]),
            href=_page(int(now.rollouts[row]), int(now.heaviest[row])),
        )
        for rank, row in enumerate(order.tolist())
        if parts[row]
    ]


def _page(rollout: int, token: int) -> str:
    return f"/rollouts/{rollout}/" + (f"?token={token}" if token >= 0 else "")


def _texts(prompts: Sequence[int]) -> dict[int, str]:
    found = Prompt.objects.filter(pk__in=set(prompts)).values_list("pk", "text")
    return {pk: visible_start(bytes(text), 80) for pk, text in found}


def _changes(
    now: Side, now_keys: Integers, before: Side | None, before_keys: Integers, parts: Floats
) -> list[KeyChange]:
    """By key; without a step before, what each key adds to the value stands as its mix."""
    if before is not None:
        return split_change(now.weighed, now_keys, before.weighed, before_keys)
    keys, place = np.unique(now_keys, return_inverse=True)
    added = np.bincount(place, weights=parts)
    counts = np.bincount(place, weights=now.weighed.counts)
    means = np.bincount(place, weights=now.weighed.sums) / np.maximum(counts, 1e-300)
    return [
        KeyChange(key, mean if count else None, None, part, 0.0)
        for key, mean, count, part in zip(keys.tolist(), means.tolist(), counts.tolist(), added.tolist(), strict=True)
    ]


def _keys(title: str, changes: list[KeyChange], names: Mapping[int, str], hrefs: Mapping[int, str]) -> Keys:
    ranked = sorted(changes, key=lambda one: -abs(one.change))[:LISTED_KEYS]
    return Keys(
        title=title,
        rows=[
            KeyRow(names.get(k.key, ""), k.now, k.before, k.change, k.mix, k.within, hrefs.get(k.key, ""))
            for k in ranked
            if k.change
        ],
        total=len(changes),
        shared=sum(one.now is not None and one.before is not None for one in changes),
        mix=sum(one.mix for one in changes),
        within=sum(one.within for one in changes),
    )


def _prompts(run: Run, now: Side, before: Side | None, parts: Floats) -> Keys:
    changes = _changes(now, now.prompts, before, before.prompts if before else now.prompts, parts)
    shown = [one.key for one in sorted(changes, key=lambda one: -abs(one.change))[:LISTED_KEYS]]
    term = _both(now, before)
    return _keys("prompt", changes, _texts(shown), {key: browse(run, term, f"prompt:{key}") for key in shown})


def _families(run: Run, now: Side, before: Side | None, parts: Floats) -> Keys:
    names = sorted({*now.families, *(before.families if before else ())})
    place = {name: key for key, name in enumerate(names)}
    keys = [np.array([place[name] for name in side.families]) if side else np.zeros(0, int) for side in (now, before)]
    changes = _changes(now, keys[0], before, keys[1], parts)
    term = _both(now, before)
    hrefs = {key: browse(run, term, f"task:{quoted(name)}") for key, name in enumerate(names) if name}
    return _keys("task", changes, dict(enumerate(names)), hrefs)


def _both(now: Side, before: Side | None) -> str:
    return f"step:{now.step.index}" if before is None else f"step:{before.step.index},{now.step.index}"


def _curve(now: Side, order: Integers, reached: Floats) -> Chart:
    ranks = list(range(1, len(order) + 1))
    links = [_page(int(now.rollouts[row]), int(now.heaviest[row])) for row in order.tolist()]
    line = Curve("share reached", ranks, reached.tolist(), links=links)
    return Chart(
        "reached",
        "How few rollouts make it",
        "share of all parts by size",
        curves.figure(CurveChart("share", [line], is_share=True, x_title="rollouts, largest first")),
        meaning="Height at 10: what the ten rollouts that add most hold together, whatever their sign.",
        note="Exact.",
    )
