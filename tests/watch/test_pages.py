"""Pages of saved searches: the list, one search over runs, alarms on a run's page, and who may change what."""

import csv
import io

import pytest
from django.test import Client
from django.urls import reverse

from rlviewer.accounts.models import Member, Project, Role, User
from rlviewer.ingest.services import store_batch
from rlviewer.review.models import Label, Thumb
from rlviewer.review.services import Said, add_label
from rlviewer.runs.models import Rollout, Run
from rlviewer.search.browse import Scope, Search
from rlviewer.search.services import index_pending
from rlviewer.watch.counting import count_pending
from rlviewer.watch.models import SavedSearch
from rlviewer.watch.precision import judge, precision
from rlviewer.watch.queries import search_list, search_page
from rlviewer.watch.services import Wanted, create_search
from tests.factories import make_batch, make_run, make_user


@pytest.fixture
def run(project: Project, bob: User, client: Client) -> Run:
    """Six steps of ten rollouts, with 0, 0, 1, 5, 5 and 5 hits of `so`."""
    run = make_run(project, "first")
    store(run, [0, 0, 1, 5, 5, 5])
    client.force_login(bob)
    return run


def store(run: Run, hits: list[int], **extra: str) -> None:
    for step, number in enumerate(hits):
        texts = [b"so"] * number + [b"say"] * (10 - number)
        batch = make_batch(run, step=step, groups=1, group_size=10, completion=texts, **extra)  # type: ignore[arg-type]
        store_batch(batch, source="test")
    index_pending()
    count_pending()


@pytest.fixture
def saved(project: Project, bob: User, run: Run) -> SavedSearch:
    saved = create_search(bob, project, Wanted("says so", "so", "It says so.", limit_rate=0.2))
    count_pending()
    return saved


def page(client: Client, name: str, *args: int, **query: str) -> str:
    answer = client.get(reverse(name, args=args), query)
    assert answer.status_code == 200
    return " ".join(answer.content.decode().split())


def test_the_list_tells_hits_rollouts_steps_alarm_and_what_is_not_known(
    client: Client, run: Run, saved: SavedSearch
) -> None:
    shown = page(client, "project-searches", run.project_id)
    assert "<strong>16</strong> of 60 rollouts" in shown and "6 steps" in shown
    assert "precision unknown" in shown and "step 3" in shown
    create_search(saved.made_by, run.project, Wanted("none", "never"))  # type: ignore[arg-type]
    assert "6 steps to count" in page(client, "project-searches", run.project_id)
    count_pending()
    shown = page(client, "project-searches", run.project_id)
    assert "<strong>0</strong> of 60 rollouts match" in shown


def test_the_list_of_a_new_project_offers_suspects(client: Client, project: Project, bob: User) -> None:
    client.force_login(bob)
    shown = page(client, "project-searches", project.pk)
    assert "Nothing is watched yet" in shown and "Such detectors are weak" in shown and "right though cut off" in shown
    answer = client.post(reverse("suspect-save", args=[project.pk]), {"name": "right though cut off"})
    saved = SavedSearch.objects.get()
    assert answer.headers["Location"] == reverse("search-detail", args=[saved.pk])
    assert "No step is counted yet" in page(client, "search-detail", saved.pk)
    assert "no training step yet" in page(client, "project-searches", project.pk)
    client.post(reverse("suspect-save", args=[project.pk]), {"name": "no such"})
    assert SavedSearch.objects.count() == 1


def test_the_list_costs_few_queries(client: Client, run: Run, saved: SavedSearch, django_assert_num_queries) -> None:
    other = make_run(run.project, "second")
    store(other, [1, 2])
    for number in range(3):
        create_search(saved.made_by, run.project, Wanted(f"more {number}", "say"))  # type: ignore[arg-type]
    count_pending()
    with django_assert_num_queries(8):
        rows = search_list(run.project)
    assert [(run.name, rate.step, rate.hits) for run, rate in rows[3].newest] == [("second", 1, 2), ("first", 5, 5)]
    with django_assert_num_queries(7):
        search_page(saved, [], "train")


def test_one_search_shows_its_curve_with_interval_n_and_a_way_to_the_rollouts(
    client: Client, run: Run, saved: SavedSearch
) -> None:
    found = search_page(saved, [], "train")
    (shown,) = found.shown
    assert [(rate.step, rate.hits, rate.scanned) for rate in shown.rates] == [
        (n, h, 10) for n, h in enumerate([0, 0, 1, 5, 5, 5])
    ]
    assert shown.rates[3].interval == pytest.approx((0.2366, 0.7634), abs=1e-4)
    figure = found.chart.figure
    assert figure is not None
    line = next(trace for trace in figure["data"] if trace["name"] == "first")
    assert line["y"] == [0, 0, 0.1, 0.5, 0.5, 0.5] and "10" in line["hovertemplate"]
    href = line["meta"]["href"].replace("{x}", "3")
    assert href == shown.rates[3].href
    answer = client.get(href)
    assert len(answer.context["lines"]) == 5
    assert set(
        Rollout.objects.filter(pk__in=[line.id for line in answer.context["lines"]]).values_list(
            "step__index", flat=True
        )
    ) == {3}
    html = page(client, "search-detail", saved.pk)
    assert "5 of 10" in html and "It says so." in html and "passed" in html
    fragment = client.get(reverse("search-detail", args=[saved.pk]), headers={"HX-Request": "true"}).content.decode()
    assert fragment.lstrip().startswith('<div id="search"') and "<html" not in fragment


def test_runs_and_split_are_chosen_by_the_address(client: Client, run: Run, saved: SavedSearch) -> None:
    runs = [run, *(make_run(run.project, f"run {n}") for n in range(9))]
    for one in runs[1:]:
        store(one, [1])
    store(runs[1], [7], split="heldout")
    assert len(search_page(saved, [], "train").shown) == 3
    everything = search_page(saved, [one.pk for one in runs], "train")
    assert len(everything.shown) == 8 and len(everything.runs) == 10
    assert (everything.hits, everything.scanned, everything.steps) == (16 + 9, 60 + 90, 6 + 9)
    heldout = search_page(saved, [], "heldout")
    assert [(one.run.pk, one.rates[0].hits) for one in heldout.shown] == [(runs[1].pk, 7)]
    assert search_page(saved, [], "nonsense").split == "train"
    assert 'name="runs"' in page(client, "search-detail", saved.pk, runs="x", split="heldout")


def test_the_sheet_holds_every_step_of_every_run(client: Client, run: Run, saved: SavedSearch) -> None:
    text = client.get(reverse("search-csv", args=[saved.pk])).content.decode()
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["hits"] for row in rows] == ["0", "0", "1", "5", "5", "5"]
    assert {row["run_name"] for row in rows} == {"first"} and float(rows[3]["low_95"]) == pytest.approx(
        0.2366, abs=1e-4
    )


def test_precision_comes_only_from_what_people_said_of_hits(
    client: Client, alice: User, bob: User, run: Run, saved: SavedSearch
) -> None:
    rows = Rollout.objects.filter(run_id=run.pk).select_related("step__run__project").order_by("pk")
    hits = list(rows.filter(rollouttext__completion="so"))
    scope = Scope(run.project)

    def now() -> tuple[int, int, int]:
        found = precision(saved, scope, list(Label.objects.values_list("rollout_id", flat=True)))
        return found.true, found.judged, found.disputed

    assert now() == (0, 0, 0)
    add_label(bob, hits[0], Said(Thumb.UP))
    add_label(bob, hits[1], Said(Thumb.DOWN))
    add_label(bob, hits[2], Said(note="odd"))
    add_label(bob, hits[3], Said(name="hack"))  # no thumb: not judged
    add_label(bob, rows.filter(rollouttext__completion="say")[0], Said(Thumb.UP))  # no hit
    assert now() == (1, 2, 0)
    add_label(alice, hits[0], Said(Thumb.DOWN))
    assert now() == (0, 1, 1)
    add_label(alice, hits[4], Said(Thumb.UP, tokens=(0, 1)))
    assert now() == (1, 2, 1)
    assert "of 2 judged" in page(client, "search-detail", saved.pk)
    # By a label: hits with it, of those that have any.
    saved.true_label = Label.objects.exclude(name=None)[0].name
    add_label(alice, hits[5], Said(name="good"))
    add_label(alice, hits[3], Said(name="good"))
    add_label(alice, hits[3], Said(name="hack"))
    assert now() == (1, 2, 0)


def test_a_run_says_which_searches_lie_over_their_limit(client: Client, run: Run, saved: SavedSearch) -> None:
    assert f'hx-get="{reverse("run-alarms", args=[run.pk])}"' in page(client, "run-detail", run.pk)
    shown = page(client, "run-alarms", run.pk)
    assert "says so" in shown and ">step 3</a>" in shown and "50" in shown
    client.post(reverse("search-archive", args=[saved.pk]))
    assert "says so" not in page(client, "run-alarms", run.pk)


def test_saving_changing_and_putting_away(client: Client, run: Run, bob: User) -> None:
    add = reverse("search-create", args=[run.project_id])
    refused = client.post(add, {"name": "x", "query": "label:hack"})
    assert refused.status_code == 422 and "changes after a step is stored" in refused.content.decode()
    for wrong in (
        {"name": "x", "query": "so", "limit_percent": "100"},
        {"name": "", "query": "so"},
        {"name": "x", "query": "so", "true_label": "no such"},
    ):
        assert client.post(add, wrong).status_code == 422
    client.post(add, {"name": "so", "query": "so", "limit_percent": "12.5", "true_label": "hack"})
    saved = SavedSearch.objects.get()
    assert (saved.limit_rate, str(saved.true_label), saved.made_by) == (0.125, "hack", bob)
    edit = reverse("search-edit", args=[saved.pk])
    form = {"name": "says so", "query": "reward<", "limit_percent": ""}
    assert "At character 8" in client.post(edit, form).content.decode()
    client.post(edit, form | {"query": "say"})
    saved.refresh_from_db()
    assert (saved.name, saved.query, saved.limit_rate, saved.true_label) == ("says so", "say", None, None)
    client.post(reverse("search-archive", args=[saved.pk]))
    assert "Nothing is watched yet" in page(client, "project-searches", run.project_id)
    assert "says so" in page(client, "project-searches", run.project_id, archived="yes")
    assert "put away, not counted" in page(client, "search-detail", saved.pk)
    client.post(reverse("search-archive", args=[saved.pk]), {"archived": "no"})
    assert "says so" in page(client, "project-searches", run.project_id)


def test_a_filter_is_saved_from_the_list_of_rollouts(client: Client, run: Run) -> None:
    shown = page(client, "rollout-list", run.pk, filter="reward<0.5 so")
    assert f'href="{reverse("project-searches", args=[run.project_id])}?query=reward%3C0.5%20so"' in shown
    shown = page(client, "project-searches", run.project_id, query="reward<0.5 so")
    assert 'value="reward&lt;0.5 so"' in shown and '<details class="fold" id="new-search" open>' in shown


def test_a_filter_that_can_no_longer_be_read_is_said(client: Client, run: Run, saved: SavedSearch) -> None:
    SavedSearch.objects.update(query="gone:5", query_version=2)
    assert count_pending() == 0
    assert "can no longer be read" in page(client, "search-detail", saved.pk)
    assert page(client, "project-searches", run.project_id)


def test_viewers_read_and_strangers_find_nothing(client: Client, run: Run, saved: SavedSearch, charlie: User) -> None:
    viewer = make_user("vera")
    Member.objects.create(project=run.project, user=viewer, role=Role.VIEWER)
    client.force_login(viewer)
    for name, pk in (("project-searches", run.project_id), ("search-detail", saved.pk)):
        assert 'method="post"' not in page(client, name, pk).replace('method="post" action="/sign-out/"', "")
    assert "you read it as a viewer" in page(client, "project-searches", run.project_id, query="so")
    client.force_login(charlie)
    for name, pk in (
        ("project-searches", run.project_id),
        ("search-detail", saved.pk),
        ("search-csv", saved.pk),
        ("run-alarms", run.pk),
        ("search-detail", 987654),
    ):
        assert client.get(reverse(name, args=[pk])).status_code == 404


def test_hits_and_the_list_agree(run: Run, saved: SavedSearch) -> None:
    counts = search_page(saved, [], "train").shown[0].rates
    for rate in counts:
        listed = Search(Scope(run.project, run), f"so step:{rate.step} split:train").total()
        assert listed == rate.hits


def test_voices_of_one_person_count_once() -> None:
    labels = [
        Label(rollout_id=1, author_id=1, thumb=1),
        Label(rollout_id=1, author_id=1, thumb=-1, token_start=0, token_end=1),
    ]
    labels.append(Label(rollout_id=1, author_id=2, thumb=-1))
    assert judge(SavedSearch(), labels).disputed == 1
