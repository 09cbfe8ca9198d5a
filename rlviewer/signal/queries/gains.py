"""Who gains from training: prompts that were easy already, or hard ones."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rlviewer.charts import bars, curves, heat, theme
from rlviewer.charts.bars import BarChart, Bars
from rlviewer.charts.chart import Chart
from rlviewer.charts.curves import Curve, CurveChart
from rlviewer.charts.heat import HeatMap
from rlviewer.runs.models import Rollout, Run, Step
from rlviewer.runs.queries.step import TRAIN
from rlviewer.signal.queries.passes import Evaluated, evaluated, interval, rollouts_of, spread
from rlviewer.signal.steps import StepRange

HEAT_ROWS = 64
# Up to this many samples each number of right ones is a bin of its own.
MOST_COUNTS = 10
PROFILE_SAMPLES = 8
Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Bin:
    """Prompts whose base pass rate lies alike."""

    name: str
    prompts: int
    base: float
    now: float
    low: float  # 95 % interval of the gain, over prompts
    high: float
    spent: float | None  # share of the training's summed abs(advantage), over the training prompts of this bin

    @property
    def gain(self) -> float:
        return self.now - self.base


@dataclass(frozen=True, slots=True)
class Gains:
    """`is_split`: bins are made from every second base sample and the base is measured on the others."""

    nothing: str
    profile_tokens: int | None  # what asking the base about every training prompt would sample
    bins: Sequence[Bin] = ()
    charts: Sequence[Chart] = ()
    is_split: bool = False
    never_solved: int = 0  # by the base, in all its samples
    solved_now: int = 0  # of those
    gini: float | None = None
    losing: int = 0  # prompts whose pass rate fell


def gains(run: Run, _steps: StepRange, _query: Mapping[str, str]) -> Gains:
    """Three queries over the evaluations and one over the groups of training prompts with a known base pass rate."""
    steps = list(Step.objects.filter(run=run, is_current=True).exclude(split=TRAIN).order_by("split", "index"))
    chosen = spread([step for step in steps if step.split == steps[0].split]) if steps else []
    if len(chosen) < 2 or chosen[0].index != 0:
        return Gains(_why_nothing(chosen), _profile_tokens(run))
    first, is_split, base, names = _base(chosen[0])
    found = [one for one in evaluated(chosen[1:]) if len(one.prompts)]
    if not found or not len(np.intersect1d(base.prompts, found[-1].prompts)):
        return Gains("Base and later checkpoints were asked different prompts, so nothing can be compared.", None)
    shared = np.intersect1d(base.prompts, found[-1].prompts)
    places = np.searchsorted(base.prompts, shared)
    bin_of, before = first[places], (base.right / base.samples)[places]
    checkpoints = [one.of(shared) for one in found if np.isin(shared, one.prompts).all()]
    rates = np.stack([one.right / one.samples for one in checkpoints])
    (whole,) = evaluated(chosen[:1])
    never = whole.of(shared).right == 0
    gain = rates[-1] - before
    bins = _bins(run, names, bin_of, before, rates[-1])
    order = np.lexsort((shared, before, bin_of))
    return Gains(
        nothing="",
        profile_tokens=None,
        bins=bins,
        charts=[
            _gain_bars(bins),
            _by_checkpoint(names, bin_of, before, rates, checkpoints),
            _heat(run, chosen[0], checkpoints, order, before, rates, shared),
            _lorenz(gain),
        ],
        is_split=is_split,
        never_solved=int(never.sum()),
        solved_now=int((rates[-1][never] > 0).sum()),
        gini=gini(gain),
        losing=int((gain < 0).sum()),
    )


def _base(step: Step) -> tuple[Integers, bool, Evaluated, list[str]]:
    """The bin of each prompt of the base's evaluation, whether it was made from other samples, and the base to compare with.

    A prompt that is put among the hard ones for its own bad luck would gain by mere chance the next time. So even samples
    choose the bin and odd ones measure, wherever there are two.
    """
    rows = list(
        Rollout.objects.filter(group__step=step, correct__isnull=False)
        .order_by("group__prompt_id", "number")
        .values_list("group__prompt_id", "correct")
    )
    prompts, counts = np.unique([prompt for prompt, _ in rows], return_counts=True)
    right = np.array([bool(correct) for _, correct in rows], dtype=np.int64)
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.int64)
    turn = np.arange(len(rows)) - np.repeat(starts, counts)
    is_split = bool(len(counts)) and int(counts.min()) >= 2
    chooses = turn % 2 == 0 if is_split else np.ones(len(rows), bool)
    measures = ~chooses if is_split else chooses
    chosen = [np.add.reduceat(np.where(mask, values, 0), starts) if len(rows) else counts
              for mask, values in ((chooses, 1), (chooses, right), (measures, 1), (measures, right))]  # fmt: skip
    size = int(chosen[0].max()) if len(rows) else 0
    if size and size <= MOST_COUNTS and (chosen[0] == size).all():
        return (
            chosen[1],
            is_split,
            Evaluated(step, prompts, chosen[2], chosen[3]),
            [f"{n} of {size}" for n in range(size + 1)],
        )
    rate = chosen[1] / np.maximum(chosen[0], 1)
    names = [f"0 of {size}", *(f"{low / 10:.1f} to {(low + 1) / 10:.1f}" for low in range(10))]
    return np.ceil(rate * 10).astype(np.int64), is_split, Evaluated(step, prompts, chosen[2], chosen[3]), names


def gini(gain: Floats) -> float | None:
    """How unevenly the gains (of those that gained) lie over all prompts: 0 even, towards 1 all with one; None without gain."""
    positive = np.sort(np.maximum(gain, 0))
    if not positive.sum():
        return None
    n = len(positive)
    return float((2 * np.arange(1, n + 1) - n - 1) @ positive / (n * positive.sum()))


def _bins(run: Run, names: Sequence[str], bin_of: Integers, before: Floats, now: Floats) -> list[Bin]:
    spent = _spent(run, names)
    found = []
    for place, name in enumerate(names):
        rows = bin_of == place
        if rows.any():
            low, high = interval(now[rows] - before[rows])
            found.append(
                Bin(name, int(rows.sum()), float(before[rows].mean()), float(now[rows].mean()), low, high,
                    None if spent is None else spent[place])
            )  # fmt: skip
    return found


def _spent(run: Run, names: Sequence[str]) -> list[float] | None:
    """Per bin, the share of summed abs(advantage) over training prompts whose base pass rate is stored."""
    found = StepRange().rows(
        run,
        """
        SELECT t.base_pass_rate, sum(gs.abs_advantage)
        FROM runs_step s JOIN signal_groupsignal gs ON gs.step_id = s.id JOIN runs_group g ON g.id = gs.group_id
        JOIN runs_prompttracker t ON t.run_id = s.run_id AND t.prompt_id = g.prompt_id
        WHERE IN_RANGE AND t.base_pass_rate IS NOT NULL GROUP BY 1
        """,
    )
    total = sum(mass or 0 for _, mass in found)
    if not total:
        return None
    counts = len(names) - 1
    places = [round(rate * counts) if counts <= MOST_COUNTS and names[-1].endswith(f"of {counts}") else int(np.ceil(rate * 10))
              for rate, _ in found]  # fmt: skip
    return [
        sum(mass or 0 for place, (_, mass) in zip(places, found, strict=True) if place == wanted) / total
        for wanted in range(len(names))
    ]


def _gain_bars(bins: Sequence[Bin]) -> Chart:
    series = Bars("gain", [one.gain for one in bins], errors=[(one.low, one.high) for one in bins])
    figure = bars.figure(
        BarChart(
            "right samples of the base model", "gain in pass rate", [one.name for one in bins], [series], is_share=True
        )
    )
    return Chart("gains", "Gain by how hard a prompt was", "difference of pass rates", figure, tall=True,
                 meaning="Mean over prompts of the pass rate now less the base model's.",
                 note="Estimate: bars reach over 95 % of resamples of the prompts.")  # fmt: skip


def _by_checkpoint(
    names: Sequence[str], bin_of: Integers, before: Floats, rates: Floats, checkpoints: Sequence[Evaluated]
) -> Chart:
    index = [0, *(one.step.index for one in checkpoints)]
    drawn = []
    for number, place in enumerate(np.unique(bin_of).tolist()):
        rows = bin_of == place
        values = [float(before[rows].mean()), *(float(rate[rows].mean()) for rate in rates)]
        drawn.append(Curve(names[place], index, values, theme.colour_of(number), markers=True))
    figure = curves.figure(CurveChart("pass rate", drawn, is_share=True, x_title="steps trained"))
    return Chart("levels", "Pass rate of each bin", "share of samples", figure, tall=True,
                 meaning="Each line is the prompts of which the base model solved so many samples.")  # fmt: skip


def _heat(
    run: Run,
    first: Step,
    checkpoints: Sequence[Evaluated],
    order: Integers,
    before: Floats,
    rates: Floats,
    prompts: Integers,
) -> Chart:
    """Prompts from the hardest for the base to the easiest, gathered into at most `HEAT_ROWS` rows."""
    parts = np.array_split(order, min(HEAT_ROWS, len(order)))
    table = np.vstack([before, rates])
    steps = [first, *(one.step for one in checkpoints)]

    def link(step: Step, part: Integers) -> str | None:
        return rollouts_of(run, step, int(prompts[part[0]])) if len(part) == 1 else None

    figure = heat.figure(
        HeatMap(
            x_title="steps trained",
            y_title="prompts, hardest for the base model first",
            unit="pass rate",
            xs=[str(step.index) for step in steps],
            ys=[str(number + 1) for number in range(len(parts))],
            values=[[float(row[part].mean()) for row in table] for part in parts],
            links=[[link(step, part) for step in steps] for part in parts],
            is_share=True,
        )
    )
    size = len(order) / len(parts)
    title = "Pass rate of each prompt" if size == 1 else f"Pass rate, about {size:.0f} prompts a row"
    return Chart("prompts", title, "share of samples", figure, tall=True)


def _lorenz(gain: Floats) -> Chart:
    title, unit = "How evenly the gain is spread", "share of the gain"
    positive = np.sort(np.maximum(gain, 0))
    if not positive.sum():
        return Chart("lorenz", title, unit, None, nothing="No prompt gained.")
    shares = np.concatenate([[0], np.cumsum(positive) / positive.sum()])
    prompts = np.linspace(0, 100, len(shares))
    lines = [
        Curve("gain", prompts.tolist(), shares.tolist()),
        Curve("if all gained alike", [0, 100], [0.0, 1.0], theme.MUTED),
    ]
    figure = curves.figure(CurveChart(unit, lines, is_share=True, x_title="percent of prompts, least gain first"))
    return Chart("lorenz", title, unit, figure, tall=True,
                 meaning="Lorenz curve over prompts; prompts that lost count as no gain.")  # fmt: skip


def _why_nothing(chosen: Sequence[Step]) -> str:
    if not chosen:
        return "Base pass rates are missing: this run was never evaluated on held-out prompts."
    if chosen[0].index != 0:
        return "Base pass rates are missing: the first evaluation was made after training had begun."
    return "Only the base model is evaluated so far; gains appear with the next evaluation."


def _profile_tokens(run: Run) -> int | None:
    """Tokens that `PROFILE_SAMPLES` samples of each training prompt would take, at the run's mean length."""
    (found,) = StepRange().rows(
        run,
        "SELECT count(DISTINCT g.prompt_id), sum(s.tokens_sampled) / nullif(sum(s.rollout_count), 0)"
        " FROM runs_step s JOIN runs_group g ON g.step_id = s.id WHERE IN_RANGE",
    )
    prompts, length = found
    return int(prompts * PROFILE_SAMPLES * length) if prompts and length else None
