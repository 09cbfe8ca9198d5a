"""The list of a project's runs: filters from the URL, one page by key, sparklines. Four queries a page, whatever its size."""

import math
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any, Self

from django.db import connection
from django.db.models import Count, F, FloatField, Max, Q, QuerySet, Value
from django.db.models.expressions import Combinable
from django.db.models.functions import Cast, Coalesce, Lower
from django.http import QueryDict

from rlviewer.accounts.models import Project
from rlviewer.runs.models import ACTIVE_STATES, Run, RunState

PAGE = 50
ACTIVE = "active"
# What the list can be ordered by; text ascends, numbers have their missing values last in both directions.
NUMBERS: dict[str, Combinable] = {
    "reward": F("latest_reward"),
    "pass": F("latest_pass"),
    "gain": F("latest_pass") - F("base_pass"),
    "dead": F("latest_dead_share"),
    "steps": F("last_step"),
    "tokens": F("token_count"),
}
TEXTS = {"name": Lower("name"), "algorithm": Lower("algorithm"), "task": Lower("task"), "model": Lower("model")}
NEWEST, OLDEST = "-age", "age"
SORTS = {NEWEST, OLDEST, *NUMBERS, *TEXTS, *(f"-{name}" for name in (*NUMBERS, *TEXTS))}


@dataclass(frozen=True, slots=True)
class RunFilters:
    """What the URL asks for; anything it does not understand counts as not asked."""

    search: str = ""
    state: str = ""  # a run state, or "active" for all that are not over
    algorithm: str = ""
    task: str = ""
    sort: str = NEWEST
    after: str = ""  # key of the last row of the page before
    upto: int | None = None  # newest run that the reader has seen; later ones wait

    @classmethod
    def from_query(cls, query: QueryDict) -> Self:
        values = {
            name: query.get(name, "").replace("\0", "")[:300]
            for name in ("search", "state", "algorithm", "task", "after")
        }
        upto, sort = query.get("upto", ""), query.get("sort", "")
        return cls(
            **{**values, "search": values["search"].strip()},
            sort=sort if sort in SORTS else NEWEST,
            upto=int(upto) if upto.isdecimal() and len(upto) < 19 else None,
        )

    @property
    def is_active(self) -> bool:
        return bool(self.search or self.state or self.algorithm or self.task)

    def apply(self, runs: "QuerySet[Run]") -> "QuerySet[Run]":
        if self.search:
            words = Q(name__icontains=self.search) | Q(model__icontains=self.search) | Q(tags__icontains=self.search)
            number = self.search.removeprefix("#")
            if number.isdecimal() and len(number) < 19:
                words |= Q(id=int(number))
            runs = runs.filter(words)
        if self.state:
            runs = runs.filter(state__in=ACTIVE_STATES if self.state == ACTIVE else [self.state])
        if self.algorithm:
            runs = runs.filter(algorithm=self.algorithm)
        return runs.filter(task=self.task) if self.task else runs


@dataclass(frozen=True, slots=True)
class RunRow:
    run: Run
    rewards: list[float | None]  # mean reward by step, thinned
    gain: float | None  # pass@1 now minus the base model's

    @property
    def steps_done(self) -> int:
        return 0 if self.run.last_step is None else self.run.last_step + 1


@dataclass(frozen=True, slots=True)
class RunPage:
    rows: list[RunRow]
    total: int  # runs that match
    newer: int  # matching runs that wait behind the pill
    newest_id: int  # newest run of the project that this page may show
    after: str  # key of the next page; empty on the last
    states: list[tuple[str, int]]
    algorithms: list[tuple[str, int]]
    tasks: list[tuple[str, int]]
    run_count: int  # of the project, unfiltered


def run_page(project: Project, filters: RunFilters) -> RunPage:
    """One page of a project's runs with the counts beside its filters. Four queries."""
    states, algorithms, tasks, newest_id = _facets(project)
    upto = newest_id if filters.upto is None else filters.upto
    matching = filters.apply(Run.objects.filter(project=project))
    counts = matching.aggregate(total=Count("id"), newer=Count("id", filter=Q(id__gt=upto)))
    ordered = _ordered(matching.filter(id__lte=upto), filters)
    found = list(ordered.select_related("created_by").defer("config", "config_toml", "plugins", "hardware")[: PAGE + 1])
    shown = found[:PAGE]
    rewards = _rewards([run.id for run in shown])
    by_state = sorted(states.items(), key=lambda item: RunState.values.index(item[0]))
    return RunPage(
        rows=[RunRow(run, rewards.get(run.id, []), _gain(run)) for run in shown],
        total=counts["total"],
        newer=counts["newer"],
        newest_id=upto,
        after=f"{shown[-1].sort_key}~{shown[-1].id}" if len(found) > PAGE else "",  # type: ignore[attr-defined]
        states=[(ACTIVE, sum(states[state] for state in ACTIVE_STATES)), *by_state],
        algorithms=sorted(algorithms.items()),
        tasks=sorted(tasks.items()),
        run_count=sum(states.values()),
    )


def _gain(run: Run) -> float | None:
    return None if run.latest_pass is None or run.base_pass is None else run.latest_pass - run.base_pass


def _facets(project: Project) -> tuple["Counter[str]", "Counter[str]", "Counter[str]", int]:
    """Runs by state, by algorithm and by task, and the newest run's id."""
    states: Counter[str] = Counter()
    algorithms: Counter[str] = Counter()
    tasks: Counter[str] = Counter()
    newest = 0
    for state, algorithm, task, count, last in (
        Run.objects.filter(project=project)
        .order_by()
        .values_list("state", "algorithm", "task")
        .annotate(count=Count("id"), last=Max("id"))
    ):
        states[state] += count
        algorithms[algorithm] += count
        tasks[task] += count
        newest = max(newest, last)
    return states, algorithms, tasks, newest


def _ordered(runs: "QuerySet[Run]", filters: RunFilters) -> "QuerySet[Run]":
    """`runs` in the asked order from the asked key on; `sort_key` is the key's first half."""
    name, descends = filters.sort.removeprefix("-"), filters.sort.startswith("-")
    sign = "-" if descends else ""
    if name == "age":
        key: Any = F("id")
    elif name in NUMBERS:
        last_of_all = Value(-math.inf if descends else math.inf, output_field=FloatField())
        key = Coalesce(Cast(NUMBERS[name], FloatField()), last_of_all)
    else:
        key = TEXTS[name]
    runs = runs.annotate(sort_key=key).order_by(f"{sign}sort_key", f"{sign}id")
    value, _, last = filters.after.rpartition("~")
    if last.isdecimal() and len(last) < 19 and (bound := _bound(name, value)) is not None:
        way = "lt" if descends else "gt"
        runs = runs.filter(Q(**{f"sort_key__{way}": bound}) | Q(sort_key=bound, **{f"id__{way}": int(last)}))
    return runs


def _bound(name: str, value: str) -> Any:
    """The key's first half as the column's type, None when somebody wrote nonsense into the URL."""
    if name in TEXTS:
        return value
    try:
        return int(value) if name == "age" and len(value) < 19 else float(value)
    except ValueError:
        return None


SPARK_SQL = """
SELECT c.run_id, a.number, p.step::bigint * %(buckets)s / greatest(%(buckets)s, r.last_step + 1) AS bucket,
       min(p.value) FILTER (WHERE abs(p.value) < 'Infinity'), max(p.value) FILTER (WHERE abs(p.value) < 'Infinity')
FROM runs_metricchunk c
JOIN runs_attempt a ON a.id = c.attempt_id
JOIN runs_run r ON r.id = c.run_id
CROSS JOIN unnest(c.steps, c.values) AS p(step, value)
WHERE c.run_id = ANY(%(runs)s) AND c.name = 'reward_mean'
  -- Of very long runs only some chunks are read: a page of fifty stays quick.
  AND c.part %% greatest(1, coalesce(r.last_step, 0) / (256 * %(chunks)s)) = 0
GROUP BY 1, 2, 3
ORDER BY 1, 2, 3
"""


def _rewards(run_ids: list[int]) -> dict[int, list[float | None]]:
    """Mean reward of each run in at most 60 buckets of steps, the lowest and highest of each; None where none is finite.

    From its first step on a newer attempt replaces what an older one had.
    """
    with connection.cursor() as cursor:
        cursor.execute(SPARK_SQL, {"runs": run_ids, "buckets": 60, "chunks": 16})
        found = cursor.fetchall()
    points: dict[int, dict[int, list[float | None]]] = defaultdict(dict)
    attempt_of: dict[int, int] = {}
    for run, attempt, bucket, low, high in found:
        own = points[run]
        if attempt_of.get(run) != attempt:
            attempt_of[run] = attempt
            points[run] = own = {at: values for at, values in own.items() if at < bucket}
        own[bucket] = [low] if low == high else [low, high]
    return {run: [value for at in sorted(own) for value in own[at]] for run, own in points.items()}
