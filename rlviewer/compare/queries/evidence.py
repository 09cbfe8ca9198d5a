"""Each set of runs against the baseline: is the difference real, or would it be seen between two equal sets?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from django.urls import reverse
from django.utils.http import urlencode

from rlviewer.charts import scatter
from rlviewer.charts.chart import Chart
from rlviewer.charts.scatter import Points, ScatterChart
from rlviewer.compare.queries.arms import Arm, Choice
from rlviewer.compare.queries.heldout import AXES, MEASURES, HeldOut, Scores, heldout_scores, stacked
from rlviewer.compare.queries.matrix import Curves, run_curves
from rlviewer.compare.statistics import (
    Bootstrap,
    Difference,
    PairedTest,
    Samples,
    Slope,
    bootstrap,
    detectable,
    difference,
    holm,
    interquartile_mean,
    paired_test,
    probability_of_improvement,
    runs_needed,
    slope,
)
from rlviewer.lib.visible import visible_start
from rlviewer.runs.models import Prompt, Run

ALPHA = 0.05
# A difference below this share of the scores' range is not worth knowing: what could have found one this large and did not is noise.
MATTERS = 0.05
PLANNED_RUNS = (2, 3, 5, 10, 20)
LISTED = 12
SHOWN_CHARACTERS = 60
DIFFERENCE, NOISE, TOO_LITTLE = "difference", "noise", "too little data"


@dataclass(frozen=True, slots=True)
class PromptLine:
    prompt_id: int
    text: str
    a: float
    b: float
    href_a: str
    href_b: str

    @property
    def gain(self) -> float:
        return self.b - self.a


@dataclass(frozen=True, slots=True)
class Pair:
    """A set against the baseline. Without `difference` nothing can be said; `nothing` is why."""

    baseline: Arm
    arm: Arm
    nothing: str = ""
    difference: Difference | None = None
    corrected_p: float = 1.0
    boot: Bootstrap | None = None
    middle: tuple[float, float] = (0.0, 0.0)  # interquartile means of baseline and set
    improvement: float = 0.5
    paired: PairedTest | None = None
    planned: Sequence[tuple[int, float]] = ()  # runs a side, smallest difference they would find
    needed: int | None = None
    verdict: str = ""
    sentence: str = ""
    reasons: Sequence[str] = ()
    prompts: Sequence[PromptLine] = ()
    chart: Chart | None = None

    @property
    def interval(self) -> tuple[float, float]:
        assert self.difference is not None
        return self.difference.interval()

    @property
    def boot_interval(self) -> tuple[float, float]:
        assert self.boot is not None
        return _ends(self.boot.gains)

    @property
    def middle_gain_interval(self) -> tuple[float, float]:
        assert self.boot is not None
        return _ends(self.boot.middle_b - self.boot.middle_a)

    @property
    def improvement_interval(self) -> tuple[float, float]:
        assert self.boot is not None
        return _ends(self.boot.improvement)


@dataclass(frozen=True, slots=True)
class Evidence:
    axis: str
    measure: str
    end: float | None
    split: str = ""
    pairs: Sequence[Pair] = ()
    missing: Sequence[Run] = ()
    slopes: Sequence[tuple[Arm, Slope]] = ()
    steps: Mapping[int, int] = field(default_factory=dict)  # by run: the checkpoint step compared

    @property
    def place(self) -> float | int | None:
        return int(self.end) if self.end is not None and self.end == int(self.end) else self.end

    @property
    def axis_words(self) -> str:
        return AXES[self.axis]

    @property
    def measure_words(self) -> str:
        return MEASURES[self.measure]


def evidence(choice: Choice, query: Mapping[str, str]) -> Evidence:
    """Five queries at most, and a second of computing for a few runs of some hundred prompts."""
    axis = query.get("axis", "") if query.get("axis") in AXES else "step"
    measure = query.get("measure", "") if query.get("measure") in MEASURES else "pass_at_1"
    runs = [run for arm in choice.arms for run in arm.runs]
    curves = {own.run_id: own for own in run_curves(runs)}
    held = heldout_scores(runs, curves, axis, measure)
    others = [arm for arm in choice.ordered if arm is not choice.baseline]
    pairs = [] if choice.baseline is None else _corrected(
        [_pair(choice.baseline, arm, held, measure) for arm in others], measure
    )  # fmt: skip
    return Evidence(
        axis,
        measure,
        held.end,
        held.split,
        pairs,
        [run for run in runs if run.pk in set(held.missing)],
        _slopes(choice.arms, curves),
        {pk: scores.step for pk, scores in held.found.items()},
    )


def _slopes(arms: Sequence[Arm], curves: Mapping[int, Curves]) -> list[tuple[Arm, Slope]]:
    found = [
        (arm, slope([(curves[run.pk].step, curves[run.pk].reward) for run in arm.runs if run.pk in curves]))
        for arm in arms
    ]
    return [(arm, one) for arm, one in found if one is not None]


def _pair(baseline: Arm, arm: Arm, held: HeldOut, measure: str) -> Pair:
    a, b = ([held.found[run.pk] for run in of.runs if run.pk in held.found] for of in (baseline, arm))
    if not a or not b:
        return Pair(
            baseline, arm, f"No run of {(arm if a else baseline).title} has stored a held-out evaluation so far."
        )
    shared = sorted(set.intersection(*(set(run.by_prompt) for run in (*a, *b))))
    if len(shared) < 2:
        return Pair(baseline, arm, "Their runs were asked different held-out prompts, so that nothing can be compared.")
    first, second = Samples(stacked(a, shared)), Samples(stacked(b, shared))
    found = difference(first, second)
    gains = second.by_prompt.mean(axis=0) - first.by_prompt.mean(axis=0)
    before, after = first.by_prompt.mean(axis=0), second.by_prompt.mean(axis=0)
    links = [reverse("prompt-detail", args=[prompt]) for prompt in shared]
    most = np.argsort(-abs(gains), kind="stable")[:LISTED]
    names = _texts([shared[at] for at in most])
    planned = [(n, detectable(found.spread, n)) for n in sorted({*PLANNED_RUNS, first.runs, second.runs})]
    chart = scatter.figure(
        ScatterChart(
            f"{MEASURES[measure]}, {baseline.title}",
            f"{MEASURES[measure]}, {arm.title}",
            [Points("prompts", before.tolist(), after.tolist(), [f"prompt {pk}" for pk in shared], links, arm.colour)],
            has_diagonal=True,
            x_is_share=measure != "reward",
            y_is_share=measure != "reward",
        )
    )
    return Pair(
        baseline,
        arm,
        difference=found,
        boot=bootstrap(first, second),
        middle=(float(interquartile_mean(first.by_prompt.ravel())), float(interquartile_mean(second.by_prompt.ravel()))),
        improvement=probability_of_improvement(first, second),
        paired=paired_test(first, second),
        planned=[(n, least) for n, least in planned if least is not None],
        needed=runs_needed(found.spread, found.gain),
        prompts=[
            PromptLine(
                shared[at],
                names[shared[at]],
                float(before[at]),
                float(after[at]),
                _rollouts(a, shared[at], held.split),
                _rollouts(b, shared[at], held.split),
            )
            for at in most.tolist()
        ],
        chart=Chart(
            f"prompts-{arm.key}",
            "The same prompts under both",
            "",
            chart,
            "One point a held-out prompt: above the line the set is better than the baseline.",
        ),
    )  # fmt: skip


def _rollouts(scores: Sequence[Scores], prompt: int, split: str) -> str:
    """The rollouts of one prompt at the evaluations of a set: of the first run that has them."""
    one = scores[0]
    query = urlencode({"filter": f"prompt:{prompt} step:{one.step} split:{split}"})
    return f"{reverse('rollout-list', args=[one.run_id])}?{query}"


def _texts(prompts: Sequence[int]) -> dict[int, str]:
    rows = Prompt.objects.filter(pk__in=prompts).values_list("pk", "text")
    return {pk: visible_start(bytes(text), SHOWN_CHARACTERS) for pk, text in rows}


def _corrected(pairs: Sequence[Pair], measure: str) -> list[Pair]:
    """With p-values for so many comparisons, and the verdict that follows."""
    told = [pair for pair in pairs if pair.difference is not None]
    corrected = iter(holm([pair.difference.p_value for pair in told if pair.difference is not None]))
    return [
        pair if pair.difference is None else _judged(replace(pair, corrected_p=next(corrected)), measure, len(told))
        for pair in pairs
    ]


def _judged(pair: Pair, measure: str, comparisons: int) -> Pair:
    found = pair.difference
    assert found is not None and pair.paired is not None
    spread = found.spread
    low, high = found.interval()
    seeds = _counted(spread.count_a, spread.count_b)
    sentence = (
        f"{pair.arm.title} over {pair.baseline.title}: {_signed(found.gain)} {MEASURES[measure]},"
        f" 95 % interval {_signed(low)} to {_signed(high)} over {seeds} and {spread.count_prompts} prompts."
    )
    reasons = []
    if not spread.knows_runs:
        verdict = TOO_LITTLE
        reasons.append("Variation between repeats is unknown; the interval covers prompts and sampling only.")
        reasons.append(
            "These runs as they were trained do differ on these prompts."
            if pair.paired.p_value < ALPHA
            else "Not even these runs as they were trained differ beyond chance on these prompts."
        )
    elif pair.corrected_p < ALPHA:
        verdict = DIFFERENCE
    else:
        least = detectable(spread, min(spread.count_a, spread.count_b)) or 0.0
        verdict = NOISE if least <= MATTERS * _range(measure, pair) else TOO_LITTLE
        reasons.append(
            f"With {min(spread.count_a, spread.count_b)} seeds a side a difference of {least:.2g} or more would be found 4 times in 5"
            + (": one that matters would have been." if verdict == NOISE else ", no smaller one.")
        )
        if verdict == TOO_LITTLE and pair.needed:
            reasons.append(f"One as large as this would take {pair.needed} seeds a side.")
    fewer = [(n, least) for n, least in pair.planned if 2 <= n < min(spread.count_a, spread.count_b)]
    if verdict == DIFFERENCE and fewer:
        n, least = fewer[-1]
        reasons.append(f"With {n} seeds you could only have detected {least:.2g}.")
    if comparisons > 1:
        reasons.append(f"Corrected for {comparisons} comparisons (Holm): p = {pair.corrected_p:.2g}.")
    return replace(pair, verdict=verdict, sentence=sentence, reasons=reasons)


def _range(measure: str, pair: Pair) -> float:
    if measure != "reward" or pair.chart is None or pair.chart.figure is None:
        return 1.0
    points = pair.chart.figure["data"][0]
    return float(np.ptp([*points["x"], *points["y"]]) or 1.0)


def _counted(a: int, b: int) -> str:
    return f"{a} seed{'s' * (a != 1)}" if a == b else f"{b} against {a} seeds"


def _signed(value: float) -> str:
    return f"{value:+.3f}".replace("-", "−")


def _ends(values: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> tuple[float, float]:
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)
