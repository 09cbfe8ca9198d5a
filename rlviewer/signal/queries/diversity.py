"""Whether the policy still explores: entropy of its tokens, of its answers, and how alike its completions are, by step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlviewer.charts import curves, theme
from rlviewer.charts.chart import Chart
from rlviewer.charts.curves import Curve, CurveChart
from rlviewer.lib.visible import visible_start
from rlviewer.runs.models import Group, Run
from rlviewer.runs.queries.step import number_from
from rlviewer.signal.measures.diversity import GRAM, MOST_COMPARED
from rlviewer.signal.queries.columns import Column, Values, has_any, step_columns
from rlviewer.signal.queries.dead_groups import at_step, browse
from rlviewer.signal.queries.trust_region import point
from rlviewer.signal.steps import StepRange

# A trend compares this many steps at each end; a change below the share is none.
ENDS, FEWEST = 20, 10
MOVED = 0.2
LISTED = 12
# What a point leads to: groups of its step near that value; the column of `GroupSignal` and what it is called.
NEAR = {
    "semantic_entropy": "semantic entropy",
    "distinct_answers": "distinct answers",
    "distinct_forms": "distinct forms",
    "right_similarity": "similarity of right rollouts",
    "self_bleu": "self-BLEU",
    "repeats": "near repeats",
}


@dataclass(frozen=True, slots=True)
class NearGroup:
    group: int
    prompt: str
    value: float
    repeats: int
    href: str


@dataclass(frozen=True, slots=True)
class Near:
    """Groups of one step, those nearest to its mean first; near repeats: most first."""

    title: str
    step: int
    groups: Sequence[NearGroup]


@dataclass(frozen=True, slots=True)
class DiversityPage:
    step_count: int
    warning: str
    has_entropy: bool
    charts: Sequence[Chart]
    near: Near | None


def diversity_page(run: Run, steps: StepRange, query: Mapping[str, str]) -> DiversityPage:
    """One query, two more for the groups near a point."""
    of = step_columns(run, steps, "entropy_right", "entropy_wrong", "semantic_entropy", "distinct_answers", "distinct_forms",
                      "right_similarity", "self_bleu", "repeat_share", "pass_k", "pass_at_k",
                      stored=("entropy_mean", "pass_rate"))  # fmt: skip
    return DiversityPage(
        step_count=len(of["index"]),
        warning=warning_of(of["entropy_mean"], of["semantic_entropy"]),
        has_entropy=has_any(of["entropy_mean"]),
        charts=_charts(run, of),
        near=_near(run, query),
    )


def trend(values: Column) -> float | None:
    """Mean of the last steps over the mean of the first; None with too few values, or from 0."""
    known = np.array([value for value in values if value is not None and np.isfinite(value)], dtype=np.float64)
    if len(known) < 2 * FEWEST:
        return None
    width = min(ENDS, len(known) // 2)
    start = known[:width].mean()
    return float(known[-width:].mean() / start) if start > 0 else None


def warning_of(tokens: Column, answers: Column) -> str:
    """When the spread of tokens and that of answers part; "" while they go together."""
    token, answer = trend(tokens), trend(answers)
    if token is None or answer is None:
        return ""
    if token < 1 - MOVED and answer > 1 - MOVED:
        return (
            f"Token entropy fell to {token:.0%} of its first steps while semantic entropy held at {answer:.0%}: each answer is"
            " written with more certainty, and the answers still differ."
        )
    if answer < 1 - MOVED and token > 1 - MOVED:
        return (
            f"Semantic entropy fell to {answer:.0%} of its first steps while token entropy held at {token:.0%}: the same answers"
            " in other words."
        )
    return ""


def _chart(
    key: str, title: str, unit: str, lines: Sequence[tuple[str, Values, str]], of: dict[str, Column], **words: Any
) -> Chart:
    drawn = [
        Curve(name, of["index"], values, theme.colour_of(place), links=link)
        for place, (name, values, link) in enumerate(lines)
        if has_any(values)
    ]
    is_share, note = words.pop("is_share", False), words.pop("note")
    figure = curves.figure(CurveChart(unit, drawn, is_share=is_share)) if drawn else None
    return Chart(key, title, unit, figure, note=note if drawn else "", **words)


def _charts(run: Run, of: dict[str, Column]) -> list[Chart]:
    def near(name: str) -> str:
        return f"?near={name}&step={{x}}#near"

    k = next((value for value in reversed(of["pass_k"]) if value), None)
    answers = "Not recorded: no parsed answers and no answer clusters."
    right = "None found: no group has two right rollouts, or nothing says which are right."
    sampled = f"Estimate from the first {MOST_COMPARED} rollouts of a group."
    return [
        _chart(
            "entropy", "Token entropy", "nats per token",
            [
                ("all", of["entropy_mean"], point(run, "entropy")),
                ("right rollouts", of["entropy_right"], at_step(run, "correct:yes")),
                ("wrong rollouts", of["entropy_wrong"], at_step(run, "correct:no")),
            ],
            of,
            meaning="Of the distribution that each token was sampled from: over the counted tokens, and over all sampled tokens of"
            " right and of wrong rollouts.",
            note="Exact.",
            nothing="No entropy recorded; diversity of answers is shown alone.",
        ),
        _chart(
            "semantic", "Semantic entropy of a group", "nats",
            [("mean", of["semantic_entropy"], near("semantic_entropy"))], of,
            meaning="Of the distribution of answers, equal ones taken together; 0 when all give the same answer.",
            note="Exact, over groups with two answers or more.",
            nothing=answers,
        ),
        _chart(
            "distinct", "Distinct answers, and distinct forms of right solutions", "a group",
            [
                ("answers", of["distinct_answers"], near("distinct_answers")),
                ("right forms", of["distinct_forms"], near("distinct_forms")),
            ],
            of,
            meaning="A form is a right completion with all numbers and spaces alike.",
            note="Exact, means over groups.",
            nothing=answers,
        ),
        _chart(
            "similar", "How alike completions are", "0 to 1",
            [
                ("right rollouts, mean of pairs", of["right_similarity"], near("right_similarity")),
                ("self-BLEU", of["self_bleu"], near("self_bleu")),
            ],
            of,
            meaning=f"Jaccard similarity of the sets of {GRAM} neighbouring tokens; BLEU of each rollout against the rest of its"
            " group. 1: the same.",
            note=sampled,
            nothing=right,
        ),
        _chart(
            "repeats", "Rollouts that nearly repeat another of their group", "share of rollouts",
            [("near repeats", of["repeat_share"], near("repeats"))], of, is_share=True,
            meaning="Jaccard similarity of 0.8 or more with an earlier one, or through a chain of such.",
            note="Exact, for groups of up to 128 rollouts.",
            nothing="Still being worked out.",
        ),
        _chart(
            "pass", "pass@1 beside pass@k, training prompts", "share of prompts",
            [
                ("pass@1", of["pass_rate"], at_step(run)),
                (f"pass@{k}" if k else "pass@k", of["pass_at_k"], at_step(run)),
            ],
            of,
            is_share=True,
            meaning="pass@k is unbiased; k is the smallest group of the step. When both meet, more samples find nothing new.",
            note="Estimate of the chance over samples; exact for these rollouts.",
            nothing="Not recorded: nothing says which rollouts are right.",
        ),
    ]  # fmt: skip


def _near(run: Run, query: Mapping[str, str]) -> Near | None:
    name, index = query.get("near", ""), number_from(query.get("step"))
    if name not in NEAR or index is None:
        return None
    found = Group.objects.filter(step__run=run, step__split="train", step__is_current=True, step__index=index)
    rows = list(
        found.exclude(**{f"groupsignal__{name}": None}).values_list(
            "index", f"groupsignal__{name}", "groupsignal__repeats", "prompt__text"
        )
    )
    middle = sum(row[1] for row in rows) / len(rows) if rows else 0.0
    rows.sort(key=lambda row: -row[1] if name == "repeats" else abs(row[1] - middle))
    return Near(
        title=NEAR[name],
        step=index,
        groups=[
            NearGroup(
                group,
                visible_start(bytes(text), 80),
                float(value),
                repeats or 0,
                browse(run, f"step:{index}", f"group:{group}"),
            )
            for group, value, repeats, text in rows[:LISTED]
        ],
    )
