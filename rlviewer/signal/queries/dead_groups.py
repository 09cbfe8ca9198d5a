"""Which groups taught nothing: by step, by cause with its remedies, by prompt and by family."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.urls import reverse
from django.utils.http import urlencode

from rlviewer.charts import areas, curves, heat, theme
from rlviewer.charts.areas import Area, AreaChart
from rlviewer.charts.chart import Chart
from rlviewer.charts.curves import Curve, CurveChart
from rlviewer.charts.heat import HeatMap
from rlviewer.lib.text import text_from_bytes
from rlviewer.lib.visible import visible_start
from rlviewer.runs.causes import CAUSES, Cause, Remedy
from rlviewer.runs.models import Prompt, Run
from rlviewer.runs.relaunch import relaunch_url
from rlviewer.signal.measures.groups import FLAT_ADVANTAGE
from rlviewer.signal.steps import StepRange

HEAT_COLUMNS, HEAT_ROWS = 60, 12
LISTED = 20


@dataclass(frozen=True, slots=True)
class RemedyLink:
    remedy: Remedy
    href: str  # a prefilled launch form; empty for advice


@dataclass(frozen=True, slots=True)
class CauseRow:
    """One cause over the steps shown. Seconds are an estimate: each step's time, shared out by tokens."""

    cause: Cause
    groups: int
    tokens: int
    token_share: float | None  # of all tokens sampled in these steps
    seconds: float | None
    first_step: int
    last_step: int
    href: str
    remedies: Sequence[RemedyLink]


@dataclass(frozen=True, slots=True)
class DeadGroups:
    """`step_count` steps are stored in the range; everything else speaks of them."""

    step_count: int
    groups: int
    dead: int
    tokens: int
    wasted: int
    causes: Sequence[CauseRow]  # most tokens first
    charts: Sequence[Chart]

    @property
    def wasted_share(self) -> float | None:
        return self.wasted / self.tokens if self.tokens else None

    @property
    def dead_share(self) -> float | None:
        return self.dead / self.groups if self.groups else None


def dead_groups(run: Run, steps: StepRange, _query: Mapping[str, str]) -> DeadGroups:
    """One query over the steps of the range."""
    found = steps.rows(
        run,
        "SELECT s.index, s.group_count, s.dead_groups, s.dead_right, s.dead_wrong, s.tokens_sampled,"
        " g.cause_groups, g.cause_tokens, g.flat_share, g.abs_advantage_mean, s.phase_seconds::text"
        " FROM runs_step s LEFT JOIN signal_stepsignal g ON g.step_id = s.id WHERE IN_RANGE ORDER BY s.index",
    )
    by_step = [_StepRow(*row) for row in found]
    causes = _causes(run, steps, by_step)
    return DeadGroups(
        step_count=len(by_step),
        groups=sum(step.groups for step in by_step),
        dead=sum(row.groups for row in causes),
        tokens=sum(step.tokens for step in by_step),
        wasted=sum(row.tokens for row in causes),
        causes=causes,
        charts=_charts(run, by_step) if by_step else [],
    )


@dataclass(frozen=True, slots=True)
class _StepRow:
    index: int
    groups: int
    dead: int
    right: int
    wrong: int
    tokens: int
    cause_groups: Sequence[int] | None
    cause_tokens: Sequence[int] | None
    flat_share: float | None
    abs_advantage: float | None
    phases: str  # JSON: seconds by phase

    @property
    def seconds(self) -> float:
        return sum(value for value in json.loads(self.phases).values() if isinstance(value, int | float))


def _causes(run: Run, steps: StepRange, by_step: Sequence[_StepRow]) -> list[CauseRow]:
    sampled = sum(step.tokens for step in by_step)
    found = []
    for place, cause in enumerate(CAUSES):
        held = [step for step in by_step if step.cause_groups and step.cause_groups[place]]
        if not held:
            continue
        tokens = sum(step.cause_tokens[place] for step in held if step.cause_tokens)
        timed = [step for step in held if step.seconds and step.tokens and step.cause_tokens]
        shared = sum(step.seconds * step.cause_tokens[place] / step.tokens for step in timed if step.cause_tokens)
        found.append(
            CauseRow(
                cause=cause,
                groups=sum(step.cause_groups[place] for step in held if step.cause_groups),
                tokens=tokens,
                token_share=tokens / sampled if sampled else None,
                seconds=shared if timed else None,
                first_step=held[0].index,
                last_step=held[-1].index,
                href=browse(run, steps.term, f"why:{cause.key}"),
                remedies=[
                    RemedyLink(r, relaunch_url(run, r.changes, r.scale) if r.changes or r.scale else "")
                    for r in cause.remedies
                ],
            )
        )
    return sorted(found, key=lambda row: -row.tokens)


def browse(run: Run, *terms: str) -> str:
    """The rollouts of the run's training steps that fit all of `terms`."""
    query = " ".join(term for term in ("split:train", *terms) if term)
    return f"{reverse('rollout-list', args=[run.pk])}?{urlencode({'filter': query})}"


def at_step(run: Run, *terms: str) -> str:
    """As `browse`, for a chart to put each mark's own step in."""
    return browse(run, "step:{x}", *terms).replace("%7B", "{").replace("%7D", "}")


def _charts(run: Run, by_step: Sequence[_StepRow]) -> list[Chart]:
    index = [step.index for step in by_step]
    parts = (
        ("rewards differ", [step.groups - step.dead for step in by_step], "dead:no", theme.SERIES_COLOURS[0]),
        ("all right", [step.right for step in by_step], "cause:all_right", theme.SERIES_COLOURS[2]),
        ("all wrong", [step.wrong for step in by_step], "cause:all_wrong", theme.SERIES_COLOURS[1]),
        (
            "equal partial reward, or one alone",
            [step.dead - step.right - step.wrong for step in by_step],
            "cause:same_score,single",
            theme.SERIES_COLOURS[7],
        ),
    )
    kinds = AreaChart(
        unit="groups",
        steps=index,
        areas=[Area(name, values, at_step(run, term), colour) for name, values, term, colour in parts],
    )
    effective = [1 - step.dead / step.groups if step.groups else None for step in by_step]
    flat = [step.flat_share for step in by_step]
    size = [step.abs_advantage for step in by_step]
    return [
        Chart("kinds", "Groups by what their rewards were", "groups", areas.figure(kinds),
              meaning="A group teaches when its rewards differ."),
        Chart(
            "effective",
            "Groups that taught, and flat advantages",
            "share",
            curves.figure(
                CurveChart(
                    "share",
                    [
                        Curve("groups whose rewards differ", index, effective),
                        Curve(f"rollouts with an advantage below {FLAT_ADVANTAGE}", index, flat, theme.SERIES_COLOURS[1]),
                    ],
                    is_share=True,
                )
            ),
            meaning="The effective-prompt ratio: sampled groups whose rewards differ.",
        ),
        Chart(
            "size",
            "Mean size of the advantages",
            "advantage",
            curves.figure(CurveChart("advantage", [Curve("mean of abs(advantage)", index, size)])),
            meaning="Over all rollouts that have an advantage, those of dead groups included.",
            nothing="This source recorded no advantages.",
        ),
    ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class PromptRow:
    prompt_id: int
    text: str
    visits: int
    streak: int  # visits since the last that taught
    first_dead: int  # step at which the streak began
    success: float | None  # over all visits shown
    href: str


@dataclass(frozen=True, slots=True)
class FamilyRow:
    name: str
    groups: int
    dead: int
    right: int
    wrong: int
    tokens: int
    href: str

    @property
    def share(self) -> float:
        return self.dead / self.groups


@dataclass(frozen=True, slots=True)
class DeadDetails:
    prompts: Sequence[PromptRow]
    families: Sequence[FamilyRow]
    chart: Chart


def dead_details(run: Run, steps: StepRange, _query: Mapping[str, str]) -> DeadDetails:
    """What reads every group of the range: four queries, about 0.1 s for a hundred thousand groups."""
    return DeadDetails(dead_prompts(run, steps, LISTED), _families(run, steps), _deviations(run, steps))


def dead_prompts(run: Run, steps: StepRange, limit: int) -> list[PromptRow]:
    """Prompts asked at least twice, the longest dead first."""
    found = steps.rows(
        run,
        """
        SELECT prompt_id, count(*), count(*) FILTER (WHERE index > coalesce(last_live, -1)) AS streak,
               min(index) FILTER (WHERE index > coalesce(last_live, -1)), avg(success_share)
        FROM (SELECT g.prompt_id, s.index, g.success_share,
                     max(s.index) FILTER (WHERE g.dead_cause = '') OVER (PARTITION BY g.prompt_id) AS last_live
              FROM runs_step s JOIN runs_group g ON g.step_id = s.id WHERE IN_RANGE) AS visits
        GROUP BY prompt_id HAVING count(*) > 1 AND count(*) FILTER (WHERE index > coalesce(last_live, -1)) > 0
        ORDER BY streak DESC, min(index), prompt_id LIMIT %(limit)s
        """,
        limit=limit,
    )
    texts = dict(Prompt.objects.filter(pk__in=[row[0] for row in found]).values_list("pk", "text"))
    return [
        PromptRow(
            prompt_id,
            visible_start(bytes(texts[prompt_id]), 100),
            visits,
            streak,
            first,
            success,
            browse(run, steps.term, f"prompt:{prompt_id}"),
        )
        for prompt_id, visits, streak, first, success in found
    ]


PROMPT_COLUMNS = ("prompt", "digest", "task", "text", "answer", "visits", "dead_visits_in_a_row", "mean_success")


def prompt_list(run: Run, steps: StepRange, *, drop: bool) -> Iterator[tuple[Any, ...]]:
    """Rows of `PROMPT_COLUMNS`: prompts dead at their two newest visits at least, or (not `drop`) all others."""
    found = steps.rows(
        run,
        """
        WITH visits AS (
            SELECT g.prompt_id, s.index, g.success_share,
                   max(s.index) FILTER (WHERE g.dead_cause = '') OVER (PARTITION BY g.prompt_id) AS last_live
            FROM runs_step s JOIN runs_group g ON g.step_id = s.id WHERE IN_RANGE
        ), counted AS (
            SELECT prompt_id, count(*) AS visits, avg(success_share) AS success,
                   count(*) FILTER (WHERE index > coalesce(last_live, -1)) AS streak
            FROM visits GROUP BY prompt_id
        )
        SELECT p.id, encode(p.digest, 'hex'), p.generator, p.text, p.answer, c.visits, c.streak, c.success
        FROM counted c JOIN runs_prompt p ON p.id = c.prompt_id WHERE (c.streak >= 2) = %(drop)s ORDER BY p.id
        """,
        drop=drop,
    )
    for *head, text, answer, visits, streak, success in found:
        words = [None if part is None else text_from_bytes(bytes(part)) for part in (text, answer)]
        yield (*head, *words, visits, streak, success)


def _families(run: Run, steps: StepRange) -> list[FamilyRow]:
    found = steps.rows(
        run,
        """
        SELECT p.generator, count(*), count(*) FILTER (WHERE g.dead_cause <> ''),
               count(*) FILTER (WHERE g.dead_cause = 'all_right'), count(*) FILTER (WHERE g.dead_cause = 'all_wrong'),
               coalesce(sum(gs.tokens) FILTER (WHERE g.dead_cause <> ''), 0)
        FROM runs_step s JOIN runs_group g ON g.step_id = s.id JOIN runs_prompt p ON p.id = g.prompt_id
        LEFT JOIN signal_groupsignal gs ON gs.group_id = g.id
        WHERE IN_RANGE GROUP BY p.generator ORDER BY 3 DESC, 1 LIMIT 50
        """,
    )
    linked = [(*row, browse(run, steps.term, "dead:yes", f"task:{quoted(row[0])}")) for row in found]
    return [FamilyRow(*row) for row in linked]


def quoted(name: str) -> str:
    return name if name.replace("_", "").replace("-", "").isalnum() else "'" + name.replace("'", "\\'") + "'"


def _deviations(run: Run, steps: StepRange) -> Chart:
    """Groups by the spread of their rewards, over the steps."""
    ((low, high, top),) = steps.rows(
        run,
        "SELECT min(s.index), max(s.index), max(nullif(g.reward_std, 'NaN')) FROM runs_step s"
        " JOIN runs_group g ON g.step_id = s.id WHERE IN_RANGE",
    )
    title, unit = "Spread of the rewards within groups", "groups"
    if not top:
        return Chart("spread", title, unit, None, nothing="In every group all rewards are equal.")
    width = max(1, -(-(high - low + 1) // HEAT_COLUMNS))
    found = steps.rows(
        run,
        """
        SELECT (s.index - %(low)s) / %(width)s, least(%(heat_rows)s - 1, floor(g.reward_std / %(top)s * %(heat_rows)s))::int, count(*)
        FROM runs_step s JOIN runs_group g ON g.step_id = s.id WHERE IN_RANGE AND g.reward_std <> 'NaN' GROUP BY 1, 2
        """,
        low=low,
        width=width,
        top=top,
        heat_rows=HEAT_ROWS,
    )
    counts = {(x, y): count for x, y, count in found}
    columns = range((high - low) // width + 1)
    figure = heat.figure(
        HeatMap(
            x_title="step" if width == 1 else f"step, {width} to a column",
            y_title="standard deviation of the reward",
            unit=unit,
            xs=[low + column * width for column in columns],
            ys=[f"{top * y / HEAT_ROWS:.3g}" for y in reversed(range(HEAT_ROWS))],
            values=[[counts.get((x, y)) for x in columns] for y in reversed(range(HEAT_ROWS))],
            links=[
                [browse(run, f"step:{low + x * width}..{low + x * width + width - 1}") for x in columns]
                for _ in range(HEAT_ROWS)
            ],
        )
    )
    return Chart(
        "spread", title, unit, figure, tall=True, meaning="The lowest row holds the groups that taught nothing."
    )
