"""What the pages of saved searches show. All numbers come from counted steps; no page reads rollouts, but those that are labelled."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from django.db.models import Count, F, QuerySet, Sum
from django.http import Http404
from django.urls import reverse
from django.utils.http import urlencode

from rlviewer.accounts.models import Project, User
from rlviewer.charts import theme
from rlviewer.charts.chart import Chart
from rlviewer.charts.curves import Band, Curve, CurveChart, Mark, figure
from rlviewer.lib.colour import run_colour
from rlviewer.lib.intervals import wilson
from rlviewer.review.queries import labelled_rollouts
from rlviewer.runs.models import Run, Step
from rlviewer.search.browse import Scope
from rlviewer.watch.models import SavedSearch, SearchHits, SearchOnset
from rlviewer.watch.precision import Precision, precision

TRAIN = "train"
RUNS_IN_LIST, RUNS_OFFERED, RUNS_SHOWN, RUNS_AT_FIRST = 4, 40, 8, 3
STEPS_IN_TABLE = 200


@dataclass(frozen=True, slots=True)
class Rate:
    """Hits among the rollouts of one step; `hits` None where counting took too long."""

    step: int
    hits: int | None
    scanned: int
    href: str = ""  # the rollouts themselves

    @property
    def rate(self) -> float | None:
        return None if self.hits is None else self.hits / self.scanned

    @property
    def interval(self) -> tuple[float, float] | None:
        return None if self.hits is None else wilson(self.hits, self.scanned)


@dataclass(slots=True)
class SearchRow:
    """One search of the list. Hits, rollouts and steps are those of training, of all runs together."""

    search: SavedSearch
    precision: Precision
    hits: int = 0
    scanned: int = 0
    steps: int = 0
    waiting: int = 0
    newest: list[tuple[Run, Rate]] = field(default_factory=list)
    onsets: list[SearchOnset] = field(default_factory=list)

    @property
    def rate(self) -> float | None:
        return self.hits / self.scanned if self.scanned else None


def visible_search(user: User, search_id: int) -> SavedSearch:
    """The search with its project, or 404. One query."""
    found = SavedSearch.objects.select_related("project", "true_label", "made_by")
    search = found.filter(project__in=Project.objects.visible_to(user), pk=search_id).first()
    if search is None:
        raise Http404(f"no search {search_id}")
    return search


def search_list(project: Project, *, archived: bool = False) -> list[SearchRow]:
    """Eight queries, and up to four for each search once somebody labelled something."""
    searches = project.searches.filter(is_archived=archived).select_related("project", "true_label").order_by("name")
    scope, labelled = Scope(project), labelled_rollouts(project)
    rows = {search.pk: SearchRow(search, precision(search, scope, labelled)) for search in searches}
    counts = counted(SearchHits.objects.filter(search__in=rows))
    of_training = counts.filter(step__split=TRAIN, hits__isnull=False).order_by()
    totals = of_training.values("search_id").annotate(Sum("hits"), Sum("scanned"), steps=Count("step_id"))
    for total in totals:
        row = rows[total["search_id"]]
        row.hits, row.scanned, row.steps = total["hits__sum"], total["scanned__sum"], total["steps"]
    stored = Step.objects.filter(run__project=project, is_current=True, rollout_count__gt=0).count()
    done = counts.filter(scanned=F("step__rollout_count")).order_by()
    for row in rows.values():
        row.waiting = stored
    for pk, number in done.values_list("search_id").annotate(Count("step_id")):
        rows[pk].waiting -= number
    runs = {run.pk: run for run in project.runs.filter(last_step__isnull=False).order_by("-pk")[:RUNS_IN_LIST]}
    newest = counts.filter(step__split=TRAIN, step__run__in=runs).select_related("step")
    for count in newest.order_by("search_id", "-step__run_id", "-step__index").distinct("search_id", "step__run_id"):
        rate = Rate(count.step.index, count.hits, count.scanned)
        rows[count.search_id].newest.append((runs[count.step.run_id], rate))
    for onset in SearchOnset.objects.filter(search__in=rows).select_related("run").order_by("-run_id"):
        rows[onset.search_id].onsets.append(onset)
    return list(rows.values())


def counted(counts: QuerySet[SearchHits]) -> QuerySet[SearchHits]:
    """Those of current steps and of the query as it is now."""
    return counts.filter(step__is_current=True, query_version=F("search__query_version"))


@dataclass(frozen=True, slots=True)
class RunRates:
    """A run's rates in the order of its steps, all of them."""

    run: Run
    rates: Sequence[Rate]
    is_shown: bool
    hits: int
    scanned: int


@dataclass(frozen=True, slots=True)
class SearchPage:
    search: SavedSearch
    split: str
    splits: Sequence[str]
    runs: Sequence[RunRates]  # those that are shown have their rates
    hits: int
    scanned: int
    steps: int
    timed_out: int  # steps whose texts took too long
    precision: Precision
    onsets: Sequence[SearchOnset]
    chart: Chart

    @property
    def rate(self) -> float | None:
        return self.hits / self.scanned if self.scanned else None

    @property
    def shown(self) -> list[RunRates]:
        return [run for run in self.runs if run.is_shown]

    @property
    def table(self) -> list[tuple[int, list[Rate | None]]]:
        """The newest steps, a row each, with a cell for each run that is shown."""
        by_run = [{rate.step: rate for rate in one.rates} for one in self.shown]
        steps = sorted({step for rates in by_run for step in rates}, reverse=True)[:STEPS_IN_TABLE]
        return [(step, [rates.get(step) for rates in by_run]) for step in steps]


def search_page(search: SavedSearch, wanted: Sequence[int], split: str) -> SearchPage:
    """The search over its project. Seven queries, and up to four for its precision."""
    counts = counted(SearchHits.objects.filter(search=search))
    splits = list(counts.order_by("step__split").values_list("step__split", flat=True).distinct())
    split = split if split in splits else TRAIN
    counts = counts.filter(step__split=split)
    totals = {
        run: (hits or 0, scanned or 0, number)
        for run, hits, scanned, number in counts.filter(hits__isnull=False)
        .order_by()
        .values_list("step__run_id")
        .annotate(Sum("hits"), Sum("scanned"), Count("step_id"))
    }
    stored = search.project.runs.filter(rollout_count__gt=0)
    newest = {run.pk: run for run in stored.order_by("-pk")[:RUNS_OFFERED]}
    shown = [pk for pk in newest if pk in totals][:RUNS_AT_FIRST]
    if chosen := {run.pk: run for run in stored.filter(pk__in=wanted[:RUNS_SHOWN])}:
        shown = list(chosen)
    rates: dict[int, list[Rate]] = defaultdict(list)
    rows = counts.filter(step__run__in=shown).order_by("step__run_id", "step__index")
    for run, step, hits, scanned in rows.values_list("step__run_id", "step__index", "hits", "scanned"):
        rates[run].append(Rate(step, hits, scanned, f"{rollouts_href(search, run, split)}{step}"))
    offered = [
        RunRates(run, rates[pk], pk in shown, *totals.get(pk, (0, 0, 0))[:2])
        for pk, run in sorted((newest | chosen).items(), reverse=True)
    ]
    onsets = list(search.onsets.select_related("run").order_by("-run_id"))
    return SearchPage(
        search=search,
        split=split,
        splits=splits,
        runs=offered,
        hits=sum(hits for hits, _, _ in totals.values()),
        scanned=sum(scanned for _, scanned, _ in totals.values()),
        steps=sum(number for _, _, number in totals.values()),
        timed_out=counts.filter(hits=None).count(),
        precision=precision(search, Scope(search.project), labelled_rollouts(search.project)),
        onsets=onsets,
        chart=rate_chart(search, [one for one in offered if one.is_shown], onsets, split),
    )


def rollouts_href(search: SavedSearch, run_id: int, split: str) -> str:
    """The list of a run's rollouts with this filter, up to the number of the step."""
    where = split if split.replace("_", "").isalnum() else f'"{split}"'
    query = urlencode({"filter": f"{search.query} split:{where} step:"})
    return f"{reverse('rollout-list', args=[run_id])}?{query}"


def rate_chart(search: SavedSearch, runs: Sequence[RunRates], onsets: Sequence[SearchOnset], split: str) -> Chart:
    curves, bands = [], []
    for one in runs:
        rates = [rate for rate in one.rates if rate.interval is not None]
        steps, colour = [rate.step for rate in rates], run_colour(one.run.pk)
        ends = [rate.interval or (0.0, 1.0) for rate in rates]
        bands.append(
            Band(f"95 % of {one.run.name}", steps, [low for low, _ in ends], [high for _, high in ends], colour)
        )
        curves.append(
            Curve(
                one.run.name,
                steps,
                [rate.rate or 0.0 for rate in rates],
                colour,
                links=f"{rollouts_href(search, one.run.pk, split)}{{x}}",
                counts=[rate.scanned for rate in rates],
            )
        )
    steps = sorted({step for curve in curves for step in curve.steps})
    if search.limit_rate is not None and steps:
        edges = sorted({steps[0], steps[-1]})
        curves.append(Curve("alarm limit", edges, [search.limit_rate] * len(edges), theme.ALARM))
    names = {one.run.pk: one.run.name for one in runs}
    ticks = [
        Mark(o.step, f"three steps over the limit from here: {names[o.run_id]}") for o in onsets if o.run_id in names
    ]
    drawn = figure(CurveChart("share of rollouts", curves, ticks=ticks, is_share=True, bands=bands)) if steps else None
    return Chart(
        key="rate",
        title="How often does it occur?",
        unit="share of a step's rollouts",
        figure=drawn,
        meaning="Rollouts that the search finds, of all rollouts of the step. The band is Wilson's 95 % interval.",
        nothing="No step is counted yet. A worker does it within seconds of storing; the curve appears by itself.",
    )


CSV_COLUMNS = ("run", "run_name", "split", "step", "hits", "rollouts", "rate", "low_95", "high_95")


def csv_rows(search: SavedSearch) -> Iterator[tuple[object, ...]]:
    """Every counted step of every run. One query."""
    rows = counted(SearchHits.objects.filter(search=search)).order_by("-step__run_id", "step__split", "step__index")
    columns = ("step__run_id", "step__run__name", "step__split", "step__index", "hits", "scanned")
    for run, name, split, step, hits, scanned in rows.values_list(*columns).iterator():
        rate = Rate(step, hits, scanned)
        yield (run, name, split, step, hits, scanned, rate.rate, *(rate.interval or (None, None)))


def run_onsets(run: Run) -> list[SearchOnset]:
    """Of searches that are still watched, the earliest first. One query."""
    onsets = SearchOnset.objects.filter(run=run, search__is_archived=False).select_related("search")
    return list(onsets.order_by("step", "pk"))
