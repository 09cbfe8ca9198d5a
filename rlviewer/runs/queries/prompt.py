"""One prompt through all its visits: when it was solved and forgotten, and what changed in its words."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Self

from django.db.models import QuerySet
from django.http import Http404
from django.urls import reverse

from rlviewer.accounts.models import Project, User
from rlviewer.charts import heat, theme
from rlviewer.charts.chart import Chart
from rlviewer.charts.curves import Mark
from rlviewer.charts.timeline import SIGNS, Dot, level, name_of, timeline
from rlviewer.lib.visible import visible_block, visible_start
from rlviewer.runs.models import Group, Prompt, PromptTracker, Rollout, Run, StopReason
from rlviewer.runs.queries.beside import Shown, alone, beside
from rlviewer.runs.queries.group import differing_place, read_packed
from rlviewer.runs.queries.run import shown_answer
from rlviewer.runs.queries.step import TRAIN, number_from
from rlviewer.runs.templatetags.show import exact, significant, split_name

# The newest of each are drawn; what is left out is said.
MOST_GROUPS = 5_000
MOST_DOTS = 4_000
MOST_LANES = 8
TABLE_ROWS = 200
IN_A_ROW = 3
HALF = 0.5
TEXT_CHARS = 20_000
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
class Visit:
    """What a run made of the prompt at one step; several groups of a step are one visit."""

    run_id: int
    split: str
    step: int
    groups: Sequence[Group]
    success: float | None  # share of judged rollouts that are right; None: none was judged

    @property
    def size(self) -> int:
        return sum(group.size_got for group in self.groups)

    @property
    def reward_mean(self) -> float | None:
        known = [group.reward_mean for group in self.groups if group.reward_mean is not None]
        return fmean(known) if known else None

    @property
    def group(self) -> Group:
        return self.groups[0]


@dataclass(frozen=True, slots=True)
class Milestones:
    """Visits at which something turned; None where it never did."""

    solved: Visit | None
    stable: Visit | None
    forgotten: Visit | None


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
class Pin:
    """One of the two rollouts whose words are compared."""

    rollout: Rollout
    answer: str | None
    shown: Shown

    @property
    def stop_reason(self) -> str:
        return StopReason(self.rollout.stop_reason).label


@dataclass(frozen=True, slots=True)
class Pair:
    a: Pin
    b: Pin
    differs_at: int | None
    unit: str
    is_chosen: bool

    @property
    def both(self) -> tuple[Pin, Pin]:
        return self.a, self.b


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
        pair=_pair(prompt, lanes, filters),
        drawn=sum(len(own) for own in dots.values()),
        rollout_count=sum(visit.size for lane in chosen for visit in by_lane[lane]),
        is_all=is_all,
        legend=[(SIGNS[one], name_of(one, largest)) for one in sorted({level(one, largest) for one in advantages})],
    )


def visits_of(groups: Sequence[Group]) -> list[Visit]:
    """The groups by run, split and step, in this order; a visit's success counts each of its groups by its size."""
    together: dict[tuple[int, str, int], list[Group]] = defaultdict(list)
    for group in sorted(groups, key=lambda group: group.pk):
        together[group.run_id, group.step.split, group.step.index].append(group)
    visits = []
    for (run_id, split, step), own in sorted(together.items()):
        judged = [(group.success_share, group.size_got) for group in own if group.success_share is not None]
        weight = sum(size for _, size in judged)
        success = sum(share * size for share, size in judged) / weight if weight else None
        visits.append(Visit(run_id, split, step, own, success))
    return visits


def milestones(visits: Sequence[Visit]) -> Milestones:
    """Of one run's visits in order; those where nothing was judged do not count.

    Solved: the first with a right rollout. Stable: the first of three in a row of whose judged rollouts at least half are right.
    Forgotten: the first after it was solved without a right one.
    """
    judged = [(visit, visit.success) for visit in visits if visit.success is not None]
    solved = next((place for place, (_, success) in enumerate(judged) if success > 0), None)
    stable = next(
        (
            visit
            for place, (visit, _) in enumerate(judged)
            if len(judged) - place >= IN_A_ROW
            and all(success >= HALF for _, success in judged[place : place + IN_A_ROW])
        ),
        None,
    )
    later = [] if solved is None else judged[solved + 1 :]
    forgotten = next((visit for visit, success in later if success == 0), None)
    return Milestones(None if solved is None else judged[solved][0], stable, forgotten)


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


def _pair(prompt: Prompt, lanes: Sequence[Lane], filters: PromptFilters) -> Pair | None:
    """The two rollouts of the address; where it names none, those that tell most. Three queries."""
    of_prompt = Rollout.objects.filter(group__prompt=prompt).select_related("step", "group")
    asked = {one.pk: one for one in of_prompt.filter(pk__in=[pk for pk in (filters.a, filters.b) if pk is not None])}
    a, b = (asked.get(pk) if pk is not None else None for pk in (filters.a, filters.b))
    is_chosen = a is not None and b is not None
    if not is_chosen:
        proposed = _telling_pair(lanes, of_prompt)
        if proposed is None:
            return None
        a, b = a or proposed[0], b or proposed[1]
    assert a is not None and b is not None
    packed = {one.pk: found for one, found in read_packed(list({a.pk: a, b.pk: b}.values()))}
    first, second = packed[a.pk], packed[b.pk]
    texts = beside(first.completion, second.completion, limit=TEXT_CHARS)
    if a == b:
        texts = (alone(first.completion, limit=TEXT_CHARS),) * 2
    has_tokens = "token_ids" in first.columns and "token_ids" in second.columns
    pins = [
        Pin(one, None if one.parsed_answer is None else shown_answer(one.parsed_answer), text)
        for one, text in zip((a, b), texts, strict=True)
    ]
    unit = "token" if has_tokens else "character"
    return Pair(pins[0], pins[1], differing_place(first, second), unit, is_chosen)


def _telling_pair(lanes: Sequence[Lane], of_prompt: QuerySet[Rollout]) -> tuple[Rollout, Rollout] | None:
    """A wrong rollout of the visit before the first solved one and a right one of that; else of the first and the last visit."""
    first, last = _telling_visits(lanes)
    if first is None or last is None:
        return None
    of_visits = of_prompt.filter(group__in=[first.group.pk, last.group.pk]).order_by("group", "number")
    own: dict[int, list[Rollout]] = defaultdict(list)
    for one in of_visits:
        own[one.group_id].append(one)
    before, after = own[first.group.pk], own[last.group.pk]
    if not before or not after:
        return None
    return (
        next((one for one in before if not one.correct), before[0]),
        next((one for one in after if one.correct), after[0]),
    )


def _telling_visits(lanes: Sequence[Lane]) -> tuple[Visit | None, Visit | None]:
    for lane in lanes:
        solved = lane.milestones.solved
        before = [visit for visit in lane.visits if solved is not None and visit.step < solved.step]
        if before:
            return before[-1], solved
    several = next((lane.visits for lane in lanes if len(lane.visits) > 1), None)
    return (None, None) if several is None else (several[0], several[-1])
