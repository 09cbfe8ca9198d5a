"""Curves of one run and of several over each other, and a zoomed window of them."""

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from rlviewer.accounts.models import Project, User
from rlviewer.ingest.services import store_batch
from rlviewer.lib.colour import RUN_COLOURS, run_colour
from rlviewer.runs.models import MetricChunk, Run
from tests.factories import fill_run, make_batch, make_project, make_run, make_user
from tests.figures import figures


@pytest.fixture
def run(project: Project) -> Run:
    run = make_run(project, "first", steps_planned=8, state="running")
    fill_run(run, steps=4)
    return run


@pytest.fixture
def other(project: Project) -> Run:
    other = make_run(project, "<b>second</b>", state="running")
    fill_run(other, steps=3)
    return other


def page(client: Client, run: Run, query: str = "") -> str:
    answer = client.get(reverse("run-detail", args=[run.pk]) + query)
    assert answer.status_code == 200
    return answer.content.decode()


def lines(figure: dict[str, Any]) -> list[dict[str, Any]]:
    return [trace for trace in figure["data"] if not trace.get("meta", {}).get("skip")]


def test_a_runs_main_curve_has_its_own_colour_and_leads_to_its_steps(client: Client, alice: User, run: Run) -> None:
    client.force_login(alice)
    drawn = figures(page(client, run))
    (reward,) = lines(drawn["reward"])
    assert reward["line"]["color"] == run_colour(run.pk)
    assert reward["meta"]["href"] == f"/runs/{run.pk}/signal/point/?metric=reward_mean&step={{x}}"
    assert lines(drawn["loss"])[0]["meta"]["href"] == f"/runs/{run.pk}/steps/train/{{x}}/"
    held_out, _, training = lines(drawn["pass"])
    assert held_out["meta"]["href"] == f"/runs/{run.pk}/steps/heldout/{{x}}/"
    assert len({line["line"]["color"] for line in lines(drawn["pass"])}) == 3
    # 16 rollouts in 4 groups a step; of one the reward is NaN.
    assert "(n = 15 scored rollouts)" in reward["hovertemplate"] + training["hovertemplate"]
    assert "(n = 4 groups)" in lines(drawn["dead"])[0]["hovertemplate"]


def test_steps_of_different_sizes_say_each_their_own_count(client: Client, alice: User, run: Run) -> None:
    store_batch(make_batch(run, step=4, groups=6), source="test")
    client.force_login(alice)
    (dead,) = lines(figures(page(client, run))["dead"])
    assert dead["text"] == ["4", "4", "4", "4", "6"] and "(n = %{text} groups)" in dead["hovertemplate"]


def test_runs_lie_over_each_other_in_their_colours(client: Client, alice: User, run: Run, other: Run) -> None:
    client.force_login(alice)
    found = page(client, run, f"?with={other.pk}")
    drawn = figures(found)
    first, second = lines(drawn["reward"])
    assert (first["name"], second["name"]) == (f"first #{run.pk}", f"&lt;b&gt;second&lt;/b&gt; #{other.pk}")
    assert (len(first["x"]), len(second["x"])) == (4, 3)
    assert [line["line"]["color"] for line in (first, second)] == [run_colour(run.pk), run_colour(other.pk)]
    assert len(lines(drawn["pass"])) == 2 and "Only pass@1 is laid over." in found
    # Each can be taken away again, and what refreshes itself keeps them.
    assert 'href="./"' in found and f"part=live&amp;with={other.pk}" in found


def test_two_runs_of_one_colour_differ_in_their_dashes(client: Client, alice: User, run: Run, project: Project) -> None:
    twin = make_run(project, "twin", pk=run.pk + len(RUN_COLOURS))
    fill_run(twin, steps=2)
    client.force_login(alice)
    first, second = lines(figures(page(client, run, f"?with={twin.pk}"))["reward"])
    assert first["line"]["color"] == second["line"]["color"] and first["line"]["dash"] != second["line"]["dash"]


def test_a_strangers_run_is_neither_drawn_nor_named(client: Client, alice: User, charlie: User, run: Run) -> None:
    secret = make_run(make_project("theirs", admin=charlie), "secret name")
    fill_run(secret, steps=2)
    client.force_login(alice)
    for asked in (secret.pk, 987_654_321):
        found = page(client, run, f"?with={asked},x,-1,{run.pk}")
        assert "secret name" not in found and "1 of the runs asked for is not here" in found
        assert len(lines(figures(found)["reward"])) == 1
    choices = client.get(reverse("run-overlay", args=[run.pk]) + "?search=secret").content.decode()
    assert "secret name" not in choices and "No other run matches" in choices
    window = client.get(reverse("run-curves", args=[run.pk]) + f"?keys=reward&with={secret.pk}").json()
    assert len(lines(window["reward"])) == 1


def test_at_most_eight_runs(client: Client, alice: User, run: Run, project: Project) -> None:
    more = [make_run(project, f"more {n}") for n in range(9)]
    client.force_login(alice)
    found = page(client, run, f"?with={','.join(str(one.pk) for one in more)}")
    assert "Eight runs are the most." in found and "more 6" in found and "more 7" not in found


def test_the_chooser_finds_by_name_own_project_first(
    client: Client, alice: User, run: Run, other: Run, project: Project
) -> None:
    elsewhere = make_run(make_project("elsewhere", admin=alice), "second home")
    client.force_login(alice)
    answer = client.get(reverse("run-overlay", args=[run.pk]) + "?search=SECOND").content.decode()
    assert answer.index(f"?with={other.pk}") < answer.index(f"?with={elsewhere.pk}")
    with_it = client.get(reverse("run-overlay", args=[run.pk]) + f"?with={other.pk}").content.decode()
    assert f"?with={other.pk},{elsewhere.pk}" in with_it and f"?with={other.pk}," in with_it


def test_a_window_holds_all_its_points_where_the_page_left_some_out(
    client: Client, alice: User, run: Run, django_assert_num_queries: Any
) -> None:
    values = [float(step % 97) for step in range(20_000)]
    MetricChunk.objects.filter(run=run, name="loss").delete()
    MetricChunk.objects.create(
        run=run, attempt=run.attempts.get(), name="loss", steps=list(range(20_000)), values=values
    )
    client.force_login(alice)
    whole = figures(page(client, run))["loss"]
    assert whole["is_thinned"] and len(lines(whole)[0]["x"]) < 1_400
    address = reverse("run-curves", args=[run.pk])
    with django_assert_num_queries(5):  # session, person; run, curves, counts
        window = client.get(f"{address}?keys=loss,nothing&from=5000&to=5999").json()
    assert list(window) == ["loss"] and not window["loss"]["is_thinned"]
    # One point beyond each edge, so that the line reaches it.
    assert lines(window["loss"])[0]["x"] == list(range(4_999, 6_001))
    assert client.get(f"{address}?keys=loss&from=x&to=-3").json()["loss"]["is_thinned"]


def test_curves_are_for_members(client: Client, charlie: User, run: Run) -> None:
    client.force_login(make_user("dora"))
    for name in ("run-curves", "run-overlay"):
        assert client.get(reverse(name, args=[run.pk])).status_code == 404
        assert client.get(reverse(name, args=[987_654_321])).status_code == 404
