"""Does the best of many get better, or only the average?"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rlviewer.charts import curves, heat, ridges, theme
from rlviewer.charts.chart import Chart
from rlviewer.charts.curves import Curve, CurveChart
from rlviewer.charts.heat import HeatMap
from rlviewer.charts.ridges import Ridge, RidgeChart
from rlviewer.runs.models import Run
from rlviewer.signal.measures.outcomes import MOST_REWARDS, powers
from rlviewer.signal.queries.dead_groups import at_step, browse
from rlviewer.signal.steps import StepRange

RIDGES, RIDGE_BINS = 12, 24
QUANTILES = (0.5, 0.75, 0.9, 0.99)
PLANE = 24  # cells along each side of mean against highest
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _StepRow:
    index: int
    rollouts: int
    values: Sequence[float] | None
    counts: Sequence[int] | None
    best_of: Sequence[float] | None


@dataclass(frozen=True, slots=True)
class Rewards:
    step_count: int
    distinct: int  # rewards that occur; `MOST_REWARDS` or more when they were gathered
    charts: Sequence[Chart]

    @property
    def has_few(self) -> bool:
        """Two values only: the tail says what the success rate says."""
        return self.distinct <= 2


def rewards(run: Run, steps: StepRange, _query: Mapping[str, str]) -> Rewards:
    """One query over the steps of the range."""
    found = steps.rows(
        run,
        "SELECT s.index, s.rollout_count, g.reward_values, g.reward_counts, g.best_of"
        " FROM runs_step s LEFT JOIN signal_stepsignal g ON g.step_id = s.id WHERE IN_RANGE ORDER BY s.index",
    )
    by_step = [_StepRow(*row) for row in found]
    scored = [step for step in by_step if step.values]
    distinct = {value for step in scored for value in step.values or ()}
    if not scored:
        return Rewards(len(by_step), 0, [])
    return Rewards(
        len(by_step),
        len(distinct),
        [_ridges(run, scored), _tail(run, by_step, scored, len(distinct)), _best_of(run, by_step)],
    )


def _pooled(scored: Sequence[_StepRow]) -> tuple[Floats, Floats]:
    """All rewards of these steps in rising order, and how many rollouts got each."""
    values = np.concatenate([np.array(step.values) for step in scored])
    counts = np.concatenate([np.array(step.counts) for step in scored])
    order = np.argsort(values, kind="stable")
    return values[order], counts[order]


def _ridges(run: Run, scored: Sequence[_StepRow]) -> Chart:
    values, _ = _pooled(scored)
    low, high = float(values[0]), float(values[-1])
    if low == high:
        low, high = low - 0.5, high + 0.5
    edges = np.linspace(low, high, RIDGE_BINS + 1)
    drawn = []
    for part in np.array_split(np.arange(len(scored)), min(RIDGES, len(scored))):
        own, counts = _pooled([scored[at] for at in part])
        heights, _ = np.histogram(own, edges, weights=counts)
        first, last = scored[part[0]].index, scored[part[-1]].index
        links = [browse(run, f"step:{first}..{last}", f"reward:{a:.6g}..{b:.6g}") for a, b in itertools.pairwise(edges)]
        drawn.append(
            Ridge(f"step {first}" if first == last else f"{first} to {last}", heights.astype(int).tolist(), links)
        )
    figure = ridges.figure(RidgeChart("reward", "rollouts", edges.tolist(), drawn))
    return Chart("ridges", "Rewards, from the oldest steps to the newest", "share of rollouts", figure, tall=True,
                 meaning="Each ridge is the distribution of the rewards of a few steps.")  # fmt: skip


def _tail(run: Run, by_step: Sequence[_StepRow], scored: Sequence[_StepRow], distinct: int) -> Chart:
    """Share of rollouts at or above rewards that are quantiles of the whole range."""
    values, counts = _pooled(scored)
    total = np.cumsum(counts)
    thresholds = sorted({float(values[np.searchsorted(total, q * total[-1])]) for q in QUANTILES})
    lines = []
    for number, threshold in enumerate(thresholds):
        shares = [
            sum(n for value, n in zip(step.values, step.counts, strict=True) if value >= threshold) / sum(step.counts)
            if step.values and step.counts
            else None
            for step in by_step
        ]
        lines.append(
            Curve(f"reward ≥ {threshold:.4g}", [step.index for step in by_step], shares, theme.colour_of(number),
                  links=at_step(run, f"reward>={threshold:.6g}"))
        )  # fmt: skip
    gathered = distinct > MOST_REWARDS
    return Chart(
        "tail",
        "How often a reward is reached",
        "share of rollouts",
        curves.figure(CurveChart("share", lines, is_share=True)),
        meaning="Thresholds are the middle, the upper quarter, tenth and hundredth of all rewards in these steps.",
        note=f"Estimate: each step's rewards are kept as {MOST_REWARDS} slices of equal size." if gathered else "",
        tall=True,
    )


def _best_of(run: Run, by_step: Sequence[_StepRow]) -> Chart:
    title, unit = "Best of k", "reward"
    most = max((len(step.best_of or ()) for step in by_step), default=0)
    if most < 2:
        return Chart(
            "best",
            title,
            unit,
            None,
            nothing="Not applicable: every group holds one rollout, so there is no best of several.",
        )
    ks = powers(2 ** (most - 1))
    lines = [
        Curve(f"k = {k}", [step.index for step in by_step],
              [step.best_of[place] if step.best_of and len(step.best_of) > place else None for step in by_step],
              theme.colour_of(place), links=at_step(run))
        for place, k in enumerate(ks)
    ]  # fmt: skip
    return Chart("best", title, unit, curves.figure(CurveChart(unit, lines)), tall=True,
                 meaning="Expected highest reward of k rollouts of a group, averaged over groups: exact from the stored rewards.")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Plane:
    chart: Chart


def mean_against_highest(run: Run, steps: StepRange, _query: Mapping[str, str]) -> Plane:
    """Reads every group of the range: two queries."""
    title, unit = "Mean against highest reward of a group", "groups"
    (bounds,) = steps.rows(
        run,
        """
        SELECT min(g.reward_mean), max(gs.reward_max) FROM runs_step s JOIN signal_groupsignal gs ON gs.step_id = s.id
        JOIN runs_group g ON g.id = gs.group_id WHERE IN_RANGE AND gs.reward_max IS NOT NULL
        """,
    )
    low, high = bounds
    if low is None or low == high:
        return Plane(Chart("plane", title, unit, None, nothing="No two rewards differ in these steps."))
    found = steps.rows(
        run,
        """
        SELECT least(%(cells)s - 1, floor((g.reward_mean - %(low)s) / %(span)s * %(cells)s))::int,
               least(%(cells)s - 1, floor((gs.reward_max - %(low)s) / %(span)s * %(cells)s))::int, count(*)
        FROM runs_step s JOIN signal_groupsignal gs ON gs.step_id = s.id JOIN runs_group g ON g.id = gs.group_id
        WHERE IN_RANGE AND gs.reward_max IS NOT NULL AND g.reward_mean IS NOT NULL GROUP BY 1, 2
        """,
        low=low,
        span=high - low,
        cells=PLANE,
    )
    counts = {(x, y): count for x, y, count in found}
    names = [f"{low + (high - low) * place / PLANE:.3g}" for place in range(PLANE)]
    figure = heat.figure(
        HeatMap(
            x_title="mean reward",
            y_title="highest reward",
            unit=unit,
            xs=names,
            ys=names[::-1],
            values=[[counts.get((x, y)) for x in range(PLANE)] for y in reversed(range(PLANE))],
        )
    )
    return Plane(
        Chart("plane", title, unit, figure, tall=True,
              meaning="Groups on the diagonal have equal rewards; high above it, one rollout found what the others missed.")
    )  # fmt: skip
