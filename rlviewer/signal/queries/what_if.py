"""What a rule with other limits would have cut in stored steps, out of their histograms: no token is read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, log

import numpy as np

from rlviewer.charts import curves, theme
from rlviewer.charts.chart import Chart
from rlviewer.charts.curves import Curve, CurveChart
from rlviewer.runs.models import Run
from rlviewer.runs.queries.rollout import loss_rule
from rlviewer.signal import sums
from rlviewer.signal.material import Integers
from rlviewer.signal.measures.trust import edges
from rlviewer.signal.models import StepHistograms
from rlviewer.signal.queries.columns import Values
from rlviewer.signal.queries.dead_groups import at_step
from rlviewer.signal.steps import StepRange

# Histograms read for one page, evenly over the steps.
MOST_STEPS = 200


@dataclass(frozen=True, slots=True)
class Rule:
    """`kind` is the histogram it looks at. The knobs are those of `training.losses`, with where they start untold."""

    title: str
    kind: str
    knobs: Mapping[str, float]
    meaning: str


RULES: dict[str, Rule] = {
    "clipped": Rule("ratio clip", "ratio", {"clip_low": 0.2, "clip_high": 0.2},
                    "Cut above 1 + clip high where the advantage is positive, below 1 - clip low where it is negative."),
    "tv": Rule("DPPO, total variation", "tv", {"tv_limit": 0.15},
               "Cut where the token's probability moved by more than the limit, and where its advantage pushes it."),
    "kl": Rule("DPPO, KL", "kl", {"kl_limit": 0.05},
               "Cut where the KL between (token, any other) is above the limit, and where its advantage pushes it."),
    "detached_clip": Rule("CISPO bounds", "ratio", {"ratio_low": 0.0, "ratio_high": 5.0},
                          "Held at a bound where the ratio lies beyond it; its gradient stays, bounded."),
    "tis": Rule("mismatch cap (TIS)", "mismatch", {"mismatch_cap": 2.0},
                "Weight held at the cap where recomputed over sampler probability is above it."),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class WhatIf:
    """`positive` and `negative` are cut and counted tokens by the sign of the advantage, over the steps looked at."""

    rule: str
    rules: Mapping[str, Rule]
    knobs: Mapping[str, float]
    steps: int
    of_steps: int
    positive: tuple[float, int]
    negative: tuple[float, int]
    chart: Chart | None
    level: str  # of the run's own ratio, "" when it is the token's or not told

    @property
    def chosen(self) -> Rule:
        return self.rules[self.rule]

    @property
    def fields(self) -> list[tuple[str, str, float]]:
        """Name, words and value of each knob."""
        return [(name, name.replace("_", " "), value) for name, value in self.knobs.items()]

    @property
    def shares(self) -> dict[str, float | None]:
        return {
            sign: cut / counted if counted else None
            for sign, (cut, counted) in (("positive", self.positive), ("negative", self.negative))
        }


def what_if(run: Run, steps: StepRange, query: Mapping[str, str]) -> WhatIf:
    """Two queries; at most MOST_STEPS histograms of a few kilobytes."""
    told = loss_rule(run)
    own = told.get("divergence", "tv") if told["loss"] == "divergence_masked" else told["loss"]
    rule = query.get("rule", own)
    rule = rule if rule in RULES else "clipped"
    knobs = {name: _number(query.get(name), told.get(name), start) for name, start in RULES[rule].knobs.items()}
    found = steps.rows(
        run,
        "SELECT s.id, s.index FROM runs_step s JOIN signal_stephistograms h ON h.step_id = s.id WHERE IN_RANGE ORDER BY s.index",
    )
    places = (
        np.unique(np.linspace(0, len(found) - 1, min(MOST_STEPS, len(found))).astype(int)).tolist() if found else []
    )
    payloads = dict(StepHistograms.objects.filter(pk__in=[found[at][0] for at in places]).values_list("pk", "payload"))
    index: list[int] = []
    cut: dict[str, list[tuple[float, int]]] = {"positive": [], "negative": []}
    for at in places:
        histograms = sums.unpack(payloads[found[at][0]])
        if f"{RULES[rule].kind}_positive" not in histograms:
            continue
        index.append(found[at][1])
        for sign, counts in cut.items():
            counted = int(
                histograms[f"ratio_{sign}" if "ratio_positive" in histograms else f"{RULES[rule].kind}_{sign}"].sum()
            )
            counts.append((tokens_cut(rule, sign, histograms, knobs), counted))
    return WhatIf(
        rule=rule,
        rules=RULES,
        knobs=knobs,
        steps=len(index),
        of_steps=len(found),
        positive=_together(cut["positive"]),
        negative=_together(cut["negative"]),
        chart=_chart(run, index, cut) if index else None,
        level="" if told.get("ratio_level", "token") == "token" else str(told["ratio_level"]).replace("_", " "),
    )


def _number(asked: str | None, told: object, start: float) -> float:
    """What the address says, else the run, else where the rule starts."""
    for value in (asked, told):
        try:
            number = float(str(value))
        except ValueError:
            continue
        if 0 <= number < inf:
            return number
    return start


def tokens_cut(rule: str, sign: str, histograms: Mapping[str, Integers], knobs: Mapping[str, float]) -> float:
    """Tokens whose advantage has the sign and that the rule would cut; those of the bin that a limit parts lie evenly in it."""
    kind = RULES[rule].kind
    counts, bounds = histograms[f"{kind}_{sign}"], edges(kind)
    if rule == "clipped":
        if sign == "positive":
            return _above(counts, bounds, log(1 + knobs["clip_high"]))
        return float(counts.sum()) - _above(counts, bounds, _log(1 - knobs["clip_low"]))
    if rule == "detached_clip":
        below = float(counts.sum()) - _above(counts, bounds, _log(knobs["ratio_low"]))
        return below + _above(counts, bounds, _log(knobs["ratio_high"]))
    (limit,) = knobs.values()
    return _above(counts, bounds, _log(limit) if rule == "tis" else limit)


def _log(ratio: float) -> float:
    return log(ratio) if ratio > 0 else -inf


def _above(counts: Integers, bounds: np.ndarray, limit: float) -> float:
    share = np.clip((bounds[1:] - limit) / np.diff(bounds), 0, 1) if limit > -inf else 1.0
    return float((counts * share).sum())


def _together(counts: Sequence[tuple[float, int]]) -> tuple[float, int]:
    return sum(cut for cut, _ in counts), sum(counted for _, counted in counts)


def _chart(run: Run, index: list[int], cut: Mapping[str, Sequence[tuple[float, int]]]) -> Chart:
    drawn = []
    for place, (sign, counts) in enumerate(cut.items()):
        values: Values = [part / whole if whole else None for part, whole in counts]
        link = at_step(run, "advantage>0" if sign == "positive" else "advantage<0")
        drawn.append(Curve(f"{sign} advantage", index, values, theme.colour_of(place), links=link))
    return Chart(
        "what-if",
        "Tokens that these limits would cut",
        "share of counted tokens",
        curves.figure(CurveChart("share", drawn, is_share=True)),
        meaning="By the sign of the advantage, from the ratios that are stored.",
        note="Estimate from bins about 2 % wide. It does not say how training would have gone on.",
    )
