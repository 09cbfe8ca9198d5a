"""What the updates were spent on: the budget of `measures.budget` by step, split in several ways, under one or two aggregations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from django.utils.http import urlencode

from rlviewer.charts import areas, curves, theme
from rlviewer.charts.areas import Area, AreaChart
from rlviewer.charts.chart import Chart
from rlviewer.charts.curves import Curve, CurveChart
from rlviewer.runs.models import Run
from rlviewer.signal.aggregation import SQL_DIVISORS, SUM_OF, TITLES, USUAL, aggregation_of, constant_tokens
from rlviewer.signal.measures.budget import NO_VALUE, OTHERS
from rlviewer.signal.names import SPLIT_PLACE
from rlviewer.signal.queries.dead_groups import at_step, browse, quoted
from rlviewer.signal.steps import StepRange

# What the page offers; `uncounted` holds no budget.
TITLE_OF_SPLIT = {
    "family": "task",
    "difficulty": "difficulty",
    "length": "length of the completion, tokens",
    "component": "part of the reward",
    "span": "who wrote the token, and for what",
    "sign": "sign of the advantage",
}
DEFAULT = "sign"  # the one split that has more than one part in every run
COLUMNS = 400  # steps beyond so many are taken together


@dataclass(frozen=True, slots=True)
class PartRow:
    name: str
    rollouts: int
    tokens: int
    share: float  # of the whole budget of the steps shown
    other_share: float | None  # under the other aggregation
    href: str

    @property
    def change(self) -> float | None:
        return None if self.other_share is None else self.other_share - self.share


@dataclass(frozen=True, slots=True)
class Choice:
    label: str
    href: str
    current: bool


@dataclass(frozen=True, slots=True)
class GradientBudget:
    step_count: int
    aggregation: str
    is_told: bool  # by the source; else the usual one stands in
    other: str  # "" for none
    is_spread: bool  # advantages of rollouts stand in for those of tokens
    parts: Sequence[PartRow]
    charts: Sequence[Chart]
    splits: Sequence[Choice]
    others: Sequence[Choice]

    @property
    def title(self) -> str:
        return TITLES[self.aggregation]

    @property
    def other_title(self) -> str:
        return TITLES.get(self.other, "")


def gradient_budget(run: Run, steps: StepRange, query: Mapping[str, str]) -> GradientBudget:
    """Two queries, one more with another aggregation beside."""
    own = aggregation_of(run)
    used, by = own or USUAL, query.get("by", DEFAULT)
    by = by if by in TITLE_OF_SPLIT else DEFAULT
    other = query.get("other", "")
    other = other if other in SUM_OF and other != used else ""
    ((step_count, first, last, is_spread),) = steps.rows(
        run,
        "SELECT count(*), min(s.index), max(s.index), coalesce(bool_or(g.is_spread), false)"
        " FROM runs_step s LEFT JOIN signal_stepsignal g ON g.step_id = s.id WHERE IN_RANGE",
    )
    width = max(1, -(-(last - first + 1) // COLUMNS)) if step_count else 1
    mine = _split(run, steps, by, used, first or 0, width)
    theirs = _split(run, steps, by, other, first or 0, width) if other else None
    return GradientBudget(
        step_count=step_count,
        aggregation=used,
        is_told=own is not None,
        other=other,
        is_spread=is_spread,
        parts=_parts(run, steps, by, mine, theirs),
        charts=_charts(run, by, width, ((used, mine), (other, theirs))),
        splits=[Choice(title, _address(query, by=split), split == by) for split, title in TITLE_OF_SPLIT.items()],
        others=[
            Choice("none", _address(query, other=""), not other),
            *(Choice(TITLES[name], _address(query, other=name), name == other) for name in SUM_OF if name != used),
        ],
    )


def _address(query: Mapping[str, str], **changes: str) -> str:
    kept = {key: query[key] for key in ("from", "to", "by", "other") if query.get(key)} | changes
    return "?" + urlencode({key: value for key, value in kept.items() if value})


@dataclass(frozen=True, slots=True)
class _Split:
    """A split of the budget: sums by part and column of the chart, a column's first step by its place."""

    columns: Sequence[int]
    values: dict[str, dict[int, float]]  # by part, then by column
    counts: dict[str, tuple[int, int]]  # rollouts and counted tokens of each part

    def total(self, name: str) -> float:
        return sum(self.values[name].values())


def _split(run: Run, steps: StepRange, by: str, aggregation: str, first: int, width: int) -> _Split:
    found = steps.rows(
        run,
        f"SELECT %(start)s + (s.index - %(start)s) / %(width)s * %(width)s, p.name, sum(p.rollouts)::bigint,"  # noqa: S608
        f" sum(p.tokens)::bigint, sum(p.{SUM_OF[aggregation]} / {SQL_DIVISORS[aggregation]})"
        " FROM runs_step s JOIN signal_stepsignal g ON g.step_id = s.id"
        " JOIN signal_steppart p ON p.step_id = s.id AND p.split = %(part)s WHERE IN_RANGE GROUP BY 1, 2 ORDER BY 1",
        part=SPLIT_PLACE[by],
        start=first,
        width=width,
        constant=constant_tokens(run),
    )
    split = _Split(list(dict.fromkeys(row[0] for row in found)), {}, {})
    for column, name, rollouts, tokens, value in found:
        split.values.setdefault(name, {})[column] = value
        before = split.counts.get(name, (0, 0))
        split.counts[name] = (before[0] + rollouts, before[1] + tokens)
    return split


def _ordered(by: str, split: _Split) -> list[str]:
    """Lengths and difficulties as they rise, else the most expensive first."""
    if by in {"difficulty", "length"}:
        return sorted(split.values, key=_first_number)
    return sorted(split.values, key=lambda name: -split.total(name))


def _first_number(name: str) -> float:
    try:
        return float(name.split("-")[0] or name)
    except ValueError:
        return float("inf")


def _parts(run: Run, steps: StepRange, by: str, mine: _Split, theirs: _Split | None) -> list[PartRow]:
    whole = sum(map(mine.total, mine.values))
    others = sum(map(theirs.total, theirs.values)) if theirs else 0
    return [
        PartRow(
            name,
            *mine.counts[name],
            share=mine.total(name) / whole if whole else 0.0,
            other_share=(theirs.total(name) / others if others else 0.0) if theirs else None,
            href=browse(run, steps.term, *term_of(by, name)),
        )
        for name in _ordered(by, mine)
    ]


def term_of(by: str, name: str) -> tuple[str, ...]:
    """What in the language of filters finds the rollouts of a part, as far as it can be said there."""
    if name == OTHERS or by in {"component", "span"}:
        return ("kept:yes",)
    if by == "sign":
        return ("advantage>0" if name == "positive" else "advantage<0",)
    if by == "length":
        low, _, high = name.partition("-")
        return (f"length:{low}..{high or low}",)
    if name == NO_VALUE:
        return ("difficulty:none",) if by == "difficulty" else ()
    return (f"difficulty:{name}",) if by == "difficulty" else (f"task:{quoted(name)}",)


def _charts(run: Run, by: str, width: int, splits: Sequence[tuple[str, _Split | None]]) -> list[Chart]:
    found = []
    x_title = "step" if width == 1 else f"step, {width} together"
    for key, (aggregation, split) in zip(("share", "other"), splits, strict=True):
        if split is None:
            continue
        wholes = {column: sum(values.get(column, 0.0) for values in split.values.values()) for column in split.columns}
        parts = [
            Area(
                name,
                [split.values[name].get(column, 0.0) / wholes[column] if wholes[column] else None for column in split.columns],
                at_step(run, *term_of(by, name)) if width == 1 else "",
                theme.colour_of(place),
            )
            for place, name in enumerate(_ordered(by, split))
        ]  # fmt: skip
        figure = areas.figure(AreaChart("share", split.columns, parts, is_share=True, x_title=x_title))
        found.append(
            Chart(key, f"Budget by {TITLE_OF_SPLIT[by]}", TITLES[aggregation], figure if parts else None, tall=True,
                  meaning="Share of the sum of abs(advantage x weight) over counted tokens that are not clipped.",
                  note="Proxy for gradient mass, not a gradient norm.",
                  nothing="Not recorded: this source has no advantages.")
        )  # fmt: skip
        if key == "share":
            line = Curve("sum", split.columns, [wholes[column] / width for column in split.columns])
            total = curves.figure(CurveChart("budget of a step", [line], x_title=x_title)) if parts else None
            found.append(
                Chart("total", "Whole budget", TITLES[aggregation], total,
                      meaning="Sum of abs(advantage x weight), times the factor of the aggregation.",
                      note="Proxy for gradient mass, not a gradient norm.",
                      nothing="Not recorded: this source has no advantages.")
            )  # fmt: skip
    return found
