"""The list of runs: filters, order, keys, sparklines, what it costs."""

from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from rlviewer.accounts.models import Project, User
from rlviewer.runs.models import Attempt, MetricChunk, Run
from rlviewer.runs.queries import run_list
from rlviewer.runs.queries.run_list import RunFilters, run_page
from tests.factories import make_project, make_run


def names(project: Project, **asked: Any) -> list[str]:
    return [row.run.name for row in run_page(project, RunFilters(**asked)).rows]


def add_rewards(run: Run, values: list[float], *, attempt: int = 1, first: int = 0) -> None:
    tried, _ = Attempt.objects.get_or_create(run=run, number=attempt)
    steps = list(range(first, first + len(values)))
    MetricChunk.objects.create(run=run, attempt=tried, name="reward_mean", steps=steps, values=values)
    Run.objects.filter(pk=run.pk).update(last_step=steps[-1])


def test_search_filters_and_facets(project: Project) -> None:
    make_run(project, "first", state="finished", tags=["baseline"])
    second = make_run(project, "second", state="running", algorithm="dapo")
    make_run(project, "100% sure", state="queued", task="countdown")
    assert names(project) == ["100% sure", "second", "first"]
    assert names(project, search="SEC") == ["second"]
    assert names(project, search="%") == ["100% sure"]
    assert names(project, search="baseline") == ["first"]
    assert names(project, search=f"#{second.id}") == ["second"]
    assert names(project, state="active") == ["100% sure", "second"]
    assert names(project, state="finished") == ["first"]
    assert names(project, algorithm="dapo", task="countdown") == []
    page = run_page(project, RunFilters(state="finished"))
    assert (page.total, page.run_count) == (1, 3)
    assert page.states == [("active", 2), ("queued", 1), ("running", 1), ("finished", 1)]
    assert page.tasks == [("addition", 2), ("countdown", 1)]


def test_other_projects_are_not_in_it(project: Project) -> None:
    make_run(make_project("other"), "secret")
    assert names(project) == []


@pytest.mark.parametrize(
    ("sort", "expected"),
    [
        ("-reward", ["high", "low", "none"]),
        ("reward", ["low", "high", "none"]),
        ("-gain", ["low", "high", "none"]),
        ("name", ["high", "low", "none"]),
        ("age", ["low", "none", "high"]),
    ],
)
def test_order_puts_missing_numbers_last(project: Project, sort: str, expected: list[str]) -> None:
    make_run(project, "low", latest_reward=0.1, latest_pass=0.9, base_pass=0.1)
    make_run(project, "none")
    make_run(project, "high", latest_reward=0.7, latest_pass=0.2, base_pass=0.1)
    assert names(project, sort=sort) == expected


@pytest.mark.parametrize("sort", ["-age", "age", "-reward", "reward", "name", "-name", "-gain", "-tokens"])
def test_every_run_comes_once_over_the_pages(project: Project, sort: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_list, "PAGE", 4)
    for number in range(13):
        # Equal and missing values at the cuts; a name with the key's own separator.
        make_run(project, f"run~{number % 3}", latest_reward=[0.5, None, float("nan"), 0.1][number % 4])
    seen: list[int] = []
    after = ""
    for _ in range(4):
        page = run_page(project, RunFilters(sort=sort, after=after))
        seen += [row.run.id for row in page.rows]
        after = page.after
    assert after == "" and len(seen) == 13 and len(set(seen)) == 13


def test_newer_runs_wait_when_the_reader_is_further_down(project: Project) -> None:
    first = make_run(project, "first")
    make_run(project, "second")
    page = run_page(project, RunFilters(upto=first.id))
    assert [row.run.name for row in page.rows] == ["first"] and page.newer == 1
    assert run_page(project, RunFilters()).newer == 0


def test_sparkline_keeps_the_extremes_of_a_long_run(project: Project) -> None:
    run = make_run(project)
    values = [0.5] * 200
    values[101] = 9.0
    add_rewards(run, values)
    rewards = run_page(project, RunFilters()).rows[0].rewards
    assert max(v for v in rewards if v is not None) == 9.0 and len(rewards) <= 120


def test_sparkline_shows_the_newer_attempt_from_its_first_step_on(project: Project) -> None:
    run = make_run(project)
    add_rewards(run, [0.1, 0.2, 0.3, 0.4])
    add_rewards(run, [0.9], attempt=2, first=2)
    assert run_page(project, RunFilters()).rows[0].rewards == [0.1, 0.2, 0.9]


def test_sparkline_has_a_gap_where_nothing_is_finite(project: Project) -> None:
    add_rewards(make_run(project), [0.1, float("nan"), float("inf"), 0.3])
    assert run_page(project, RunFilters()).rows[0].rewards == [0.1, None, None, 0.3]


def test_a_page_of_many_costs_the_queries_of_one(client: Client, alice: User, project: Project) -> None:
    client.force_login(alice)
    counts = []
    for wanted in (1, 30):
        for number in range(Run.objects.count(), wanted):
            add_rewards(make_run(project, f"run {number}", created_by=alice), [0.1, 0.2])
        with CaptureQueriesContext(connection) as queries:
            assert client.get(f"/projects/{project.id}/").status_code == 200
        counts.append(len(queries))
    assert counts[0] == counts[1] <= 10


def test_page_and_fragment_share_the_address(client: Client, bob: User, project: Project) -> None:
    run = make_run(project, "<script>alert(1)</script>", state="running")
    client.force_login(bob)
    page = client.get(f"/projects/{project.id}/").content.decode()
    fragment = client.get(f"/projects/{project.id}/", headers={"HX-Request": "true"}).content.decode()
    assert page.startswith("<!doctype html>") and fragment.startswith('<div id="run-list"')
    assert f"/runs/{run.id}/" in fragment
    assert "<script>alert" not in page and "&lt;script&gt;" in page


def test_fragments_are_never_kept_by_a_cache(client: Client, bob: User, project: Project) -> None:
    client.force_login(bob)
    answer = client.get(f"/projects/{project.id}/", headers={"HX-Request": "true"})
    assert answer["Cache-Control"] == "no-store" and "HX-Request" in answer["Vary"]


@pytest.mark.parametrize(
    "query",
    [
        "sort=nonsense",
        "after=x~1",
        "after=~",
        "upto=-1",
        "search=%00",
        "state=%F0%28",
        "sort=-reward&after=abc~3",
        f"upto={9**30}",
    ],
)
def test_nonsense_in_the_address_is_as_if_not_asked(client: Client, bob: User, project: Project, query: str) -> None:
    make_run(project)
    client.force_login(bob)
    assert client.get(f"/projects/{project.id}/?{query}").status_code == 200


def test_an_empty_project_offers_first_steps_by_role(client: Client, alice: User, project: Project) -> None:
    client.force_login(alice)
    page = client.get(f"/projects/{project.id}/").content.decode()
    assert "Watch a model learn in four minutes" in page and f'import_run FOLDER --project "{project.name}"' in page


def test_strangers_get_the_same_404_as_for_nothing(client: Client, charlie: User, project: Project) -> None:
    client.force_login(charlie)
    theirs, nothing = client.get(f"/projects/{project.id}/"), client.get("/projects/987654321/")
    assert theirs.status_code == nothing.status_code == 404
    assert theirs.content == nothing.content


def test_the_palette_finds_only_what_the_person_may_see(
    client: Client, bob: User, charlie: User, project: Project
) -> None:
    run = make_run(project, "needle")
    client.force_login(bob)
    assert f"/runs/{run.id}/" in client.get("/go/?q=need").content.decode()
    assert f"/runs/{run.id}/" in client.get(f"/go/?q={run.id}").content.decode()
    client.force_login(charlie)
    assert f"/runs/{run.id}/" not in client.get(f"/go/?q={run.id}").content.decode()
    assert "needle" not in client.get("/go/?q=needle").content.decode()
    assert client.get("/go/?q=%00").status_code == 200
