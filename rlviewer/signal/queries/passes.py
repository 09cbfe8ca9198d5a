"""pass@k on held-out prompts, of checkpoints against the base model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb
from typing import Any

import numpy as np
import numpy.typing as npt
from django.db.models import Count, Q
from django.urls import reverse
from django.utils.http import urlencode

from rlviewer.charts import curves, theme
from rlviewer.charts.chart import Chart
from rlviewer.charts.curves import Band, Curve, CurveChart
from rlviewer.lib.visible import visible_start
from rlviewer.runs.models import Prompt, Rollout, Run, Step
from rlviewer.runs.queries.step import TRAIN
from rlviewer.signal.measures.outcomes import powers
from rlviewer.signal.queries.dead_groups import at_step
from rlviewer.signal.steps import StepRange

RESAMPLES = 1000
SEED = 0
MOST_CHECKPOINTS = 6
LISTED = 20
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Evaluated:
    """One evaluated checkpoint: per prompt, samples judged and how many of them are right."""

    step: Step
    prompts: npt.NDArray[np.int64]  # rising
    samples: npt.NDArray[np.int64]
    right: npt.NDArray[np.int64]

    def of(self, prompts: npt.NDArray[np.int64]) -> "Evaluated":
        """The same for some of its prompts, rising too."""
        places = np.searchsorted(self.prompts, prompts)
        return Evaluated(self.step, prompts, self.samples[places], self.right[places])

    @property
    def words(self) -> str:
        return "base model" if self.step.index == 0 else f"after {self.step.index} steps"


@dataclass(frozen=True, slots=True)
class Line:
    """One k: pass@k of base and newest checkpoint, with the difference and its interval over prompts."""

    k: int
    base: float
    now: float
    low: float
    high: float

    @property
    def change(self) -> float:
        return self.now - self.base


@dataclass(frozen=True, slots=True)
class SolvedPrompt:
    prompt_id: int
    text: str
    base: float
    now: float
    base_href: str
    now_href: str


@dataclass(frozen=True, slots=True)
class Passes:
    """Empty `lines` when base and a later checkpoint share no prompt; `nothing` then says why."""

    split: str
    splits: Sequence[str]
    now: Evaluated | None
    prompt_count: int
    samples: tuple[int, int]  # fewest and most a prompt, base and now together
    lines: Sequence[Line]
    crossing: int | None  # smallest k at which the base is ahead
    charts: Sequence[Chart]
    gained: Sequence[SolvedPrompt]
    lost: Sequence[SolvedPrompt]
    gained_count: int
    lost_count: int
    training: Chart
    nothing: str


def passes(run: Run, every: StepRange, query: Mapping[str, str]) -> Passes:
    """Four queries: evaluations, rollouts of at most `MOST_CHECKPOINTS` of them, texts, and the training steps."""
    training = _training(run, every)
    steps = list(Step.objects.filter(run=run, is_current=True).exclude(split=TRAIN).order_by("split", "index"))
    splits = list(dict.fromkeys(step.split for step in steps))
    split = query.get("split", "") if query.get("split") in splits else (splits[0] if splits else "")
    found = [one for one in evaluated(spread([step for step in steps if step.split == split])) if len(one.prompts)]
    base = next((one for one in found if one.step.index == 0), None)
    later = [one for one in found if one.step.index > 0]
    if base is None or not later:
        return _nothing(split, splits, training, _why_nothing(splits, base, later))
    now = later[-1]
    shared = np.intersect1d(base.prompts, now.prompts)
    if not len(shared):
        return _nothing(
            split,
            splits,
            training,
            "Base and newest checkpoint were asked different prompts, so nothing can be compared.",
        )
    before, after = base.of(shared), now.of(shared)
    top = int(min(before.samples.min(), after.samples.min()))
    lines = _lines(before, after, top)
    gained = np.flatnonzero((before.right == 0) & (after.right > 0))
    lost = np.flatnonzero((before.right > 0) & (after.right == 0))
    both = np.concatenate([before.samples, after.samples])
    return Passes(
        split=split,
        splits=splits,
        now=now,
        prompt_count=len(shared),
        samples=(int(both.min()), int(both.max())),
        lines=lines,
        crossing=next((line.k for line in lines if line.base > line.now), None),
        charts=[_curves(found, shared), _differences(lines)],
        gained=_named(run, before, after, gained[np.argsort(-after.right[gained], kind="stable")]),
        lost=_named(run, before, after, lost[np.argsort(-before.right[lost], kind="stable")]),
        gained_count=len(gained),
        lost_count=len(lost),
        training=training,
        nothing="",
    )


def evaluated(steps: Sequence[Step]) -> list[Evaluated]:
    """What was right at each of these evaluations. One query."""
    rows = (
        Rollout.objects.filter(group__step__in=steps, correct__isnull=False)
        .values_list("group__step_id", "group__prompt_id")
        .annotate(samples=Count("pk"), right=Count("pk", filter=Q(correct=True)))
        .order_by("group__prompt_id")
    )
    by_step: dict[int, dict[int, tuple[int, int]]] = {step.pk: {} for step in steps}
    for step_id, prompt_id, samples, right in rows:
        by_step[step_id][prompt_id] = (samples, right)
    found = []
    for step in steps:
        counted = by_step[step.pk]
        table = np.array(list(counted.values()), dtype=np.int64).reshape(-1, 2)
        found.append(Evaluated(step, np.array(list(counted), dtype=np.int64), table[:, 0], table[:, 1]))
    return found


def pass_at_k(samples: npt.NDArray[np.int64], right: npt.NDArray[np.int64], k: int) -> Floats:
    """Per prompt: unbiased pass@k, NaN where there are fewer than k samples.

    Source: Chen et al. 2021, arXiv:2107.03374, sec. 2.1.
    """
    known: dict[tuple[int, int], float] = {}
    pairs = list(zip(samples.tolist(), right.tolist(), strict=True))
    for n, c in set(pairs):
        known[n, c] = 1 - comb(n - c, k) / comb(n, k) if n >= k else np.nan
    return np.array([known[pair] for pair in pairs], dtype=np.float64)


def interval(values: Floats) -> tuple[float, float]:
    """95 % bootstrap interval of the mean over prompts; the same for the same values."""
    draws = np.random.default_rng(SEED).integers(len(values), size=(RESAMPLES, len(values)))
    low, high = np.quantile(values[draws].mean(axis=1), [0.025, 0.975])
    return float(low), float(high)


def _lines(before: Evaluated, after: Evaluated, top: int) -> list[Line]:
    lines = []
    for k in powers(top):
        base, now = (pass_at_k(one.samples, one.right, k) for one in (before, after))
        lines.append(Line(k, float(base.mean()), float(now.mean()), *interval(now - base)))
    return lines


def _curves(found: Sequence[Evaluated], shared: npt.NDArray[np.int64]) -> Chart:
    drawn = [one.of(shared) for one in found if np.isin(shared, one.prompts).all()]
    ks = powers(int(max(one.samples.min() for one in drawn)))
    lines = []
    for number, one in enumerate(drawn):
        own = [k for k in ks if k <= one.samples.min()]
        values = [float(pass_at_k(one.samples, one.right, k).mean()) for k in own]
        lines.append(Curve(one.words, own, values, theme.colour_of(number), markers=True))
    figure = curves.figure(CurveChart("share of prompts", lines, is_share=True, x_title="k"))
    return Chart(
        "passes",
        "pass@k of the base model and of checkpoints",
        "share of prompts",
        figure,
        meaning="Chance that at least one of k samples of a prompt is right, averaged over prompts; unbiased, from all samples.",
        tall=True,
    )


def _differences(lines: Sequence[Line]) -> Chart:
    ks = [line.k for line in lines]
    band = Band("95 % over prompts", ks, [line.low for line in lines], [line.high for line in lines])
    figure = curves.figure(
        CurveChart(
            "difference in share of prompts",
            [Curve("newest checkpoint less base", ks, [line.change for line in lines], markers=True)],
            x_title="k",
            bands=[band],
        )
    )
    return Chart(
        "differences",
        "What training added, by k",
        "difference in share of prompts",
        figure,
        meaning="Below zero the base model reaches more prompts with k samples than the trained policy.",
        note=f"Estimate: interval from {RESAMPLES:,} resamples of the prompts; the samples of a prompt are taken as they are.",
        tall=True,
    )


def _named(run: Run, before: Evaluated, after: Evaluated, places: npt.NDArray[np.int64]) -> list[SolvedPrompt]:
    wanted = places[:LISTED]
    texts = dict(Prompt.objects.filter(pk__in=before.prompts[wanted].tolist()).values_list("pk", "text"))
    rows = []
    for place in wanted.tolist():
        prompt_id = int(before.prompts[place])
        rows.append(
            SolvedPrompt(
                prompt_id,
                visible_start(bytes(texts[prompt_id]), 100),
                before.right[place] / before.samples[place],
                after.right[place] / after.samples[place],
                rollouts_of(run, before.step, prompt_id),
                rollouts_of(run, after.step, prompt_id),
            )
        )
    return rows


def rollouts_of(run: Run, step: Step, prompt_id: int) -> str:
    terms = f"split:{step.split} step:{step.index} prompt:{prompt_id}"
    return f"{reverse('rollout-list', args=[run.pk])}?{urlencode({'filter': terms})}"


def spread(steps: Sequence[Step]) -> list[Step]:
    """First, last and some between, evenly."""
    if len(steps) <= MOST_CHECKPOINTS:
        return list(steps)
    places = np.linspace(0, len(steps) - 1, MOST_CHECKPOINTS).round().astype(int)
    return [steps[place] for place in places.tolist()]


def _why_nothing(splits: Sequence[str], base: Evaluated | None, later: Sequence[Evaluated]) -> str:
    if not splits:
        return "This run was never evaluated on held-out prompts. An evaluation of the base model is made when eval.every_steps is set."
    if base is None:
        return "No base samples for this evaluation set: it was first evaluated after training had begun."
    assert not later
    return "Only the base model is evaluated so far; the comparison appears with the next evaluation."


def _nothing(split: str, splits: Sequence[str], training: Chart, why: str) -> Passes:
    empty: Any = ()
    return Passes(split, splits, None, 0, (0, 0), empty, None, empty, empty, empty, 0, 0, training, why)


def _training(run: Run, steps: StepRange) -> Chart:
    """pass@k of the training prompts, by step."""
    found = steps.rows(
        run,
        "SELECT s.index, g.pass_at FROM runs_step s JOIN signal_stepsignal g ON g.step_id = s.id"
        " WHERE IN_RANGE ORDER BY s.index",
    )
    index, known = [step for step, _ in found], [pass_at or [] for _, pass_at in found]
    title, unit = "pass@k of training prompts, by step", "share of prompts"
    most = max(map(len, known), default=0)
    if not most:
        return Chart("training", title, unit, None, nothing="No rollout of a training step was judged right or wrong.")
    lines = [
        Curve(f"pass@{k}", index, [values[place] if len(values) > place else float("nan") for values in known],
              theme.colour_of(place), links=at_step(run))
        for place, k in enumerate(powers(2 ** (most - 1)))
    ]  # fmt: skip
    return Chart(
        "training",
        title,
        unit,
        curves.figure(CurveChart(unit, lines, is_share=True)),
        meaning="Prompts that were trained on, as the policy stood at each step: says nothing of unseen prompts.",
        tall=True,
    )
