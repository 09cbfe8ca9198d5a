"""How far each update moved from the weights that sampled, what the clip cut, and what became of old rollouts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.urls import reverse

from rlviewer.charts import bars, curves, theme
from rlviewer.charts.bars import BarChart, Bars
from rlviewer.charts.chart import Chart
from rlviewer.charts.curves import Band, Curve, CurveChart
from rlviewer.charts.thinning import kept
from rlviewer.runs.models import Run
from rlviewer.runs.queries.series import NO_SERIES, metric_series
from rlviewer.runs.queries.step import number_from
from rlviewer.signal.names import RATIO_QUANTILES, SIGNS
from rlviewer.signal.queries.columns import Column, Values, has_any, item, shares, step_columns
from rlviewer.signal.queries.dead_groups import at_step
from rlviewer.signal.queries.token_ledger import LISTED, LedgerRow, Uncounted, by_age, by_version, uncounted
from rlviewer.signal.steps import StepRange

# Nearer to 1 than this a ratio is rounding of the same weights.
ON_POLICY = 1e-3
POINTS, BAND_POINTS = 1200, 200  # drawn in a chart, and of each edge of a band
COLOURS = theme.SERIES_COLOURS


@dataclass(frozen=True, slots=True)
class TrustRegion:
    step_count: int
    largest_distance: float | None  # of a ratio from 1; None: no ratio is stored
    charts: Sequence[Chart]
    ages: Sequence[LedgerRow]
    versions: Sequence[LedgerRow]  # newest first, at most LISTED
    older: int | None  # versions below this one are on the next page
    uncounted: Sequence[Uncounted]

    @property
    def is_on_policy(self) -> bool:
        return self.largest_distance is not None and self.largest_distance < ON_POLICY


def trust_region(run: Run, steps: StepRange, query: Mapping[str, str]) -> TrustRegion:
    """Five queries, none of which reads a rollout; `below` pages the versions."""
    of = step_columns(run, steps, "ratio_quantiles", "ess_share", "counted_by_sign", "clipped_by_sign", "masked_by_sign",
                      "tv_mean", "binary_kl_mean", "sampler_kl", "reference_kl", "gap_mean", "gap_max")  # fmt: skip
    ends = [abs(value - 1) for row in of["ratio_quantiles"] if row for value in (row[0], row[-1])]
    ages = by_age(run, steps)
    versions = by_version(run, steps, number_from(query.get("below")))
    return TrustRegion(
        step_count=len(of["index"]),
        largest_distance=max(ends) if ends else None,
        charts=[
            _ratios(run, of),
            _cut(
                run, of, "clipped_by_sign", "clip", "Tokens that the clip cut", "share of counted tokens", ("clip>0",)
            ),
            _cut(
                run, of, "masked_by_sign", "masked", "Sampled tokens that do not count", "share of sampled tokens", ()
            ),
            _divergences(run, of),
            _change(run, of),
            _reference(run, of),
            _gap(run, of),
            _ess(run, of),
            _gradient(run, steps),
            _staleness(ages),
        ],
        ages=ages,
        versions=versions[:LISTED],
        older=versions[LISTED - 1].value if len(versions) > LISTED else None,
        uncounted=uncounted(run, steps),
    )


def point(run: Run, metric: str) -> str:
    """Where a mark leads that is a mean over rollouts: which of them made it."""
    return f"{reverse('signal-page', args=[run.pk, 'point'])}?metric={metric}&step={{x}}"


def _curves(
    key: str, title: str, unit: str, lines: Sequence[tuple[str, Values, str]], of: dict[str, Column], **words: Any
) -> Chart:
    """Curves of name, values and link; no figure when none of them has a value."""
    drawn = [
        Curve(name, of["index"], values, COLOURS[place], links=link)
        for place, (name, values, link) in enumerate(lines)
        if has_any(values)
    ]
    is_share, note = words.pop("is_share", False), words.pop("note", "")
    figure = curves.figure(CurveChart(unit, drawn, is_share=is_share, point_limit=POINTS)) if drawn else None
    return Chart(key, title, unit, figure, note=note if drawn else "", **words)


def _ratios(run: Run, of: dict[str, Column]) -> Chart:
    title, unit = "Importance ratio of the counted tokens", "policy / sampler"
    rows = of["ratio_quantiles"]
    nothing = "Not recorded: this source lacks the policy's or the sampler's log-probabilities."
    if not has_any(rows):
        return Chart("ratio", title, unit, None, nothing=nothing, tall=True)
    place = {share: number for number, share in enumerate(RATIO_QUANTILES)}
    link, index = at_step(run), of["index"]
    drawn = [
        Curve("median", index, item(rows, place[0.5]), COLOURS[0], links=link),
        Curve("largest", index, item(rows, place[1.0]), COLOURS[1], links=link),
        Curve("smallest", index, item(rows, place[0.0]), COLOURS[2], links=link),
    ]
    # A band has every point that one of its edges keeps.
    edges = {share: item(rows, place[share]) for share in (0.01, 0.25, 0.75, 0.99)}
    at = sorted({here for values in edges.values() for here in kept(index, values, limit=BAND_POINTS)})
    bands = [
        Band(f"{name} of the tokens", [index[n] for n in at], [edges[low][n] for n in at], [edges[high][n] for n in at], COLOURS[0])
        for name, low, high in (("98 %", 0.01, 0.99), ("half", 0.25, 0.75))
    ]  # fmt: skip
    return Chart(
        "ratio",
        title,
        unit,
        curves.figure(CurveChart(unit, drawn, bands=bands, point_limit=POINTS)),
        tall=True,
        meaning="exp(policy - sampler log-probability) at the step's last update; where the trainer recomputed the sampler's,"
        " against those.",
        note="Exact.",
    )


def _cut(run: Run, of: dict[str, Column], name: str, key: str, title: str, unit: str, terms: tuple[str, ...]) -> Chart:
    lines: list[tuple[str, Values, str]] = []
    for place, sign, relation in ((0, SIGNS[0], "advantage>0"), (1, SIGNS[1], "advantage<0")):
        parts = [None if row is None else row[place] for row in of[name]]
        wholes = [None if row is None else row[place] for row in of["counted_by_sign"]]
        if name == "masked_by_sign":
            wholes = [None if c is None or m is None else c + m for c, m in zip(wholes, parts, strict=True)]
        lines.append((f"{sign} advantage", shares(parts, wholes), at_step(run, *terms, relation)))
    return _curves(
        key,
        title,
        unit,
        lines,
        of,
        is_share=True,
        meaning="By the sign of the advantage: of the tokens that have it, the share that was left out of the gradient.",
        note="Exact.",
        nothing="Not recorded: this source lacks advantages, or says not which tokens were left out.",
    )


def _divergences(run: Run, of: dict[str, Column]) -> Chart:
    lines = [("of two outcomes", of["binary_kl_mean"], at_step(run))]
    lines += [
        (name, item(of["sampler_kl"], place), point(run, "kl_k3") if name == "k3" else at_step(run))
        for place, name in enumerate(("k1", "k2", "k3"))
    ]
    return _curves(
        "kl",
        "KL from the sampler",
        "nats per token",
        lines,
        of,
        meaning="Of two outcomes: between the sampled token and all others together. k1, k2, k3 are Schulman's estimators.",
        note="Estimate of the KL, from the sampled tokens alone.",
        nothing="Not recorded: this source lacks the policy's or the sampler's log-probabilities.",
    )


def _change(run: Run, of: dict[str, Column]) -> Chart:
    return _curves(
        "tv",
        "Change of the sampled token's probability",
        "probability",
        [("mean |policy - sampler|", of["tv_mean"], at_step(run))],
        of,
        meaning="Total variation between the sampled token and all others together.",
        note="Exact for two outcomes; a lower bound for the whole vocabulary.",
        nothing="Not recorded: this source lacks the policy's or the sampler's log-probabilities.",
    )


def _reference(run: Run, of: dict[str, Column]) -> Chart:
    links = {"k3": point(run, "ref_kl_k3")}
    return _curves(
        "reference",
        "KL from the reference",
        "nats per token",
        [
            (name, item(of["reference_kl"], place), links.get(name, at_step(run)))
            for place, name in enumerate(("k1", "k2", "k3"))
        ],
        of,
        meaning="Between the policy and the frozen model it started from.",
        note="Estimate of the KL, from the sampled tokens alone.",
        nothing="Not applicable or not recorded: no log-probabilities of a reference. A run with kl_coefficient above 0 has them.",
    )


def _gap(run: Run, of: dict[str, Column]) -> Chart:
    return _curves(
        "gap",
        "Sampler against trainer, same weights",
        "nats",
        [("largest", of["gap_max"], at_step(run)), ("mean", of["gap_mean"], at_step(run))],
        of,
        meaning="|recomputed - sampler| log-probability of the counted tokens: rounding, or weights that were not handed over.",
        note="Exact.",
        nothing="Not applicable or not recorded: no recomputed log-probabilities. Recipes that correct the mismatch, such as tis, have"
        " them.",
    )


def _ess(run: Run, of: dict[str, Column]) -> Chart:
    return _curves(
        "ess",
        "Effective sample size",
        "share of counted tokens",
        [("share", of["ess_share"], at_step(run))],
        of,
        is_share=True,
        meaning="(sum w)² / (n sum w²) of the importance ratios: 1 when every token weighs the same.",
        note="Exact.",
        nothing="Not recorded: this source lacks the policy's or the sampler's log-probabilities.",
    )


def _gradient(run: Run, steps: StepRange) -> Chart:
    found = metric_series(run.pk, ["grad_norm"]).get("grad_norm", NO_SERIES).current
    pairs = [
        (step, value)
        for step, value in zip(found.steps, found.values, strict=True)
        if (steps.first is None or step >= steps.first) and (steps.last is None or step <= steps.last)
    ]
    return _curves(
        "gradient",
        "Gradient norm",
        "norm",
        [("gradient norm", [value for _, value in pairs], point(run, "grad_norm"))],
        {"index": [step for step, _ in pairs]},
        meaning="Before it was scaled down, as the trainer says.",
        nothing="Not recorded by this source.",
    )


def _staleness(ages: Sequence[LedgerRow]) -> Chart:
    figure = (
        bars.figure(
            BarChart(
                "age in steps",
                "tokens",
                [str(row.value) for row in ages],
                [Bars("tokens", [row.tokens for row in ages], [row.href for row in ages])],
            )
        )
        if ages
        else None
    )
    return Chart(
        "staleness",
        "Age of the tokens that were sampled",
        "tokens",
        figure,
        meaning="Steps between the weights that sampled and those that the step began with; 0: the same.",
        note="Exact." if figure else "",
        nothing="Not recorded: this source does not say which policy version sampled.",
    )
