"""One prompt through all its visits: when it was solved and forgotten, and what changed in its words."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from django.http import Http404
from django.urls import reverse

from rlviewer.accounts.models import Project, User
from rlviewer.charts import heat, theme
from rlviewer.charts.chart import Chart
from rlviewer.charts.curves import Mark
from rlviewer.charts.timeline import SIGNS, Dot, level, name_of, timeline
from rlviewer.lib.visible import visible_block, visible_start
from rlviewer.runs.models import Group, Prompt, PromptTracker, Rollout, Run
from rlviewer.runs.queries.prompt_pair import Pair, pair_of
from rlviewer.runs.queries.step import TRAIN, number_from
from rlviewer.runs.queries.visits import Milestones, Visit, milestones, visits_of
from rlviewer.runs.templatetags.show import exact, significant, split_name

# The newest of each are drawn; what is left out is said.
MOST_GROUPS = 5_000
MOST_DOTS = 4_000
MOST_LANES = 8
TABLE_ROWS = 200
PROMPT_LIMIT = 20_000
MEASURES = {"reward": ("Reward", ""), "length": ("Length", "tokens")}


@dataclass(frozen=True, slots=True)
class PromptFilters:
    """State of the address."""

    measure: str = "reward"
    a: int | None = None  # rollouts whose words are compared
    b: int | None = None
    pick: str = ""  # which of the two a press on a dot chooses; empty: it opens the rollout
    run: int | None = None

    @classmethod
    def from_query(cls, query: Mapping[str, str]) -> Self:
        measure, pick = query.get("y", ""), query.get("pick", "")
        return cls(
            measure if measure in MEASURES else "reward",
            _rollout_number(query.get("a")),
            _rollout_number(query.get("b")),
            pick if pick in {"a", "b"} else "",
            number_from(query.get("run")),
        )

    def query(self, **changes: str | int | None) -> str:
        """The address with some values changed."""
        known: dict[str, str | int | None] = {
            "y": None if self.measure == "reward" else self.measure,
            "run": self.run,
            "a": self.a,
            "b": self.b,
            "pick": self.pick,
        }
        return "?" + "&".join(f"{name}={value}" for name, value in (known | changes).items() if value not in (None, ""))


def _rollout_number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdecimal() and len(text) <= 18 else None


@dataclass(frozen=True, slots=True)
class Lane:
    """The visits of one run in one split, oldest first, and what the run knew of the prompt."""

    run: Run
    split: str
    visits: Sequence[Visit]
    milestones: Milestones
    tracker: PromptTracker | None
    chart: Chart | None

    @property
    def name(self) -> str:
        return self.run.name if self.split == TRAIN else f"{self.run.name}, {split_name(self.split)}"


@dataclass(frozen=True, slots=True)
class PromptPage:
    prompt: Prompt
    filters: PromptFilters
    text: str
    text_is_cut: bool
    answer: str | None
    visits: Sequence[Visit]  # newest first, as many as the table shows
    visit_count: int
    lanes: Sequence[Lane]
    lane_count: int
    runs: Sequence[Run]  # that visited the prompt
    strip: Chart | None
    pair: Pair | None
    drawn: int  # rollouts with a dot
    rollout_count: int
    is_all: bool  # whether every group was read
    legend: Sequence[tuple[str, str]]  # signs of the dots and what they say


def visible_prompt(user: User, prompt_id: int) -> Prompt:
    """The prompt with its project, or 404 when this person may not see it. One query."""
    rows = Prompt.objects.filter(project__in=Project.objects.visible_to(user)).select_related("project")
    prompt = rows.defer("oracle_trace").filter(pk=prompt_id).first()
    if prompt is None:
        raise Http404(f"no prompt {prompt_id}")
    return prompt


def prompt_page(prompt: Prompt, filters: PromptFilters) -> PromptPage:
    """At most eight queries: groups of current attempts, runs, trackers, rollouts to draw, and those of the pair."""
    groups = list(
        Group.objects.filter(prompt=prompt, step__is_current=True)
        .select_related("step")
        .only("run_id", "index", "size_got", "reward_mean", "success_share", "prompt_id", "step__index", "step__split")
        .order_by("-pk")[: MOST_GROUPS + 1]
    )
    is_all, groups = len(groups) <= MOST_GROUPS, groups[:MOST_GROUPS]
    runs = {run.pk: run for run in Run.objects.filter(pk__in={group.run_id for group in groups}).order_by("-pk")}
    visits = visits_of(groups)
    by_lane: dict[tuple[int, str], list[Visit]] = defaultdict(list)
    for visit in visits:
        by_lane[visit.run_id, visit.split].append(visit)
    order = sorted(by_lane, key=lambda lane: (-lane[0], lane[1] != TRAIN, lane[1]))
    chosen = [lane for lane in order if filters.run in (None, lane[0])]
    shown = chosen[:MOST_LANES]
    dots = _dots([visit for lane in shown for visit in by_lane[lane]])
    trackers = {
        one.run_id: one
        for one in PromptTracker.objects.filter(prompt=prompt, run_id__in={run_id for run_id, _ in shown})
    }
    is_timeline = len(visits) > 1
    advantages = [one.advantage for own in dots.values() for one in own]
    largest = max((abs(one) for one in advantages if one is not None and math.isfinite(one)), default=0.0)
    lanes = [
        _lane(
            runs[lane[0]], lane[1], by_lane[lane], trackers.get(lane[0]), dots if is_timeline else {}, filters, largest
        )
        for lane in shown
    ]
    text, text_is_cut = visible_block(bytes(prompt.text), PROMPT_LIMIT)
    return PromptPage(
        prompt=prompt,
        filters=filters,
        text=text,
        text_is_cut=text_is_cut,
        answer=None if prompt.answer is None else visible_start(bytes(prompt.answer), 200),
        visits=sorted(visits, key=lambda visit: -visit.group.pk)[:TABLE_ROWS],
        visit_count=len(visits),
        lanes=lanes,
        lane_count=len(chosen),
        runs=list(runs.values()),
        strip=_strip([(runs[lane[0]], lane[1], by_lane[lane]) for lane in chosen]) if is_timeline else None,
        pair=pair_of(prompt, [lane.visits for lane in lanes], filters.a, filters.b),
        drawn=sum(len(own) for own in dots.values()),
        rollout_count=sum(visit.size for lane in chosen for visit in by_lane[lane]),
        is_all=is_all,
        legend=[(SIGNS[one], name_of(one, largest)) for one in sorted({level(one, largest) for one in advantages})],
    )


def _dots(visits: Sequence[Visit]) -> dict[int, list[Rollout]]:
    """Rollouts by group, of the newest visits, at most about `MOST_DOTS`. One query."""
    wanted: list[int] = []
    left = MOST_DOTS
    for group in sorted((group for visit in visits for group in visit.groups), key=lambda group: -group.pk):
        left -= group.size_got
        if left < 0 and wanted:
            break
        wanted.append(group.pk)
    found: dict[int, list[Rollout]] = defaultdict(list)
    rows = Rollout.objects.filter(group__in=wanted).only(
        "group_id", "number", "reward", "advantage", "correct", "length_tokens", "stop_reason"
    )
    for rollout in rows.order_by("group", "number"):
        found[rollout.group_id].append(rollout)
    return found


def _lane(
    run: Run,
    split: str,
    visits: Sequence[Visit],
    tracker: PromptTracker | None,
    rollouts: Mapping[int, Sequence[Rollout]],
    filters: PromptFilters,
    largest: float,
) -> Lane:
    found = milestones(visits)
    dots = [
        Dot(visit.step, _value(one, filters.measure), one.advantage, _dot_words(visit, one), _address(one, filters))
        for visit in visits
        for group in visit.groups
        for one in rollouts.get(group.pk, ())
    ]
    marks = [
        Mark(visit.step, words)
        for visit, words in ((found.solved, "solved"), (found.stable, "stable"), (found.forgotten, "forgotten"))
        if visit is not None
    ]
    title, unit = MEASURES[filters.measure]
    chart = None
    if dots:
        chart = Chart(
            f"lane-{run.pk}-{split}",
            f"{title} of every rollout",
            unit or "unit of the reward",
            timeline(dots, marks, y_title=filters.measure, steps=(visits[0].step, visits[-1].step), largest=largest),
            meaning="A dot a rollout, coloured by which way and how far its advantage pushed it.",
            note="Rollouts of a step lie side by side around it.",
        )
    return Lane(run, split, visits, found, tracker, chart)


def _value(one: Rollout, measure: str) -> float | None:
    value = one.reward if measure == "reward" else one.length_tokens
    return value if value is not None and math.isfinite(value) else None


def _dot_words(visit: Visit, one: Rollout) -> str:
    reward = "not scored" if one.reward is None else f"reward {significant(one.reward)}"
    advantage = "" if one.advantage is None else f", advantage {significant(one.advantage)}"
    return f"step {visit.step}, rollout {one.number}: {reward}{advantage}, {exact(one.length_tokens)} tokens"


def _address(one: Rollout, filters: PromptFilters) -> str:
    """Where a press on the dot leads: to the rollout, or to this page with it as one of the pair."""
    if filters.pick == "a":
        return filters.query(a=one.pk, pick="b") + "#pair"
    if filters.pick == "b":
        return filters.query(b=one.pk, pick="") + "#pair"
    return reverse("rollout-detail", args=[one.pk])


def _strip(lanes: Sequence[tuple[Run, str, Sequence[Visit]]]) -> Chart | None:
    """Runs by steps, coloured by success."""
    steps = sorted({visit.step for _, _, visits in lanes for visit in visits})
    names, values, links = [], [], []
    for run, split, visits in lanes:
        by_step = {visit.step: visit for visit in visits}
        names.append(f"{run.pk} {run.name}" + ("" if split == TRAIN else f", {split_name(split)}"))
        values.append([by_step[step].success if step in by_step else None for step in steps])
        links.append(
            [reverse("group-detail", args=[by_step[step].group.pk]) if step in by_step else None for step in steps]
        )
    if not any(value is not None for row in values for value in row):
        return None
    figure = heat.figure(heat.HeatMap("step", "run", "success", steps, names, values, links=links, is_share=True))
    # A visit without success is grey, a step without a visit is empty.
    figure["data"][0]["colorscale"] = [[0, "var(--grey-soft)"], theme.SEQUENTIAL_SCALE[-1]]
    return Chart(
        "strip",
        "Success at each visit",
        "share of judged rollouts that are right",
        figure,
        meaning="Exact: right rollouts over judged ones of the prompt's groups at a step. A press opens the group.",
        note="Grey: none was right. Empty: no visit at this step, or none judged.",
    )
