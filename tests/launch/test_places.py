"""The command palette finds every page near where a person is, and steps, rollouts, runs and prompts by number."""

import pytest
from django.test import Client
from django.urls import reverse

from rlviewer.accounts.models import Member, Project, Role, User
from rlviewer.ingest.services import store_batch
from rlviewer.launch.places import find_places
from rlviewer.runs.models import Prompt, Rollout, Run
from rlviewer.signal.pages import FURTHER, PAGES
from tests.factories import make_batch, make_run


@pytest.fixture
def run(project: Project) -> Run:
    run = make_run(project, "countdown")
    store_batch(make_batch(run, step=12, groups=1, group_size=2), source="test")
    return run


def hrefs(user: User, query: str, at: str = "") -> list[str]:
    return [place.href for place in find_places(user, query, at)]


def test_every_page_of_the_run_and_the_project_is_found_from_any_of_their_pages(alice: User, run: Run) -> None:
    rollout = Rollout.objects.get(run_id=run.pk, number=0)
    for at in (f"/runs/{run.pk}/signal/", f"/groups/{rollout.group_id}/", f"/rollouts/{rollout.pk}/"):
        signal = hrefs(alice, "signal", at)
        assert {f"/runs/{run.pk}/signal/{key}/" for key in PAGES} <= set(signal)
        assert len(signal) == len(PAGES) + len(FURTHER)
        assert f"/runs/{run.pk}/?tab=config" in hrefs(alice, "config", at)
        for word in ("searches", "algorithms", "labels", "members", "audit"):
            assert any(href.startswith(f"/projects/{run.project_id}/{word}") for href in hrefs(alice, word, at))
    assert f"/projects/{run.project_id}/searches/" in hrefs(alice, "searches", f"/prompts/{rollout.group.prompt_id}/")
    assert "/workers/" in hrefs(alice, "workers") and f"/runs/{run.pk}/" in hrefs(alice, "count")


def test_numbers_name_steps_rollouts_runs_and_prompts(alice: User, charlie: User, run: Run) -> None:
    step, rollout = f"/runs/{run.pk}/steps/train/12/", Rollout.objects.get(run_id=run.pk, number=0).pk
    prompt = Prompt.objects.get(project=run.project_id).pk
    assert hrefs(alice, "step 12")[0] == hrefs(alice, "Step #12", f"/runs/{run.pk}/")[0] == step
    assert hrefs(alice, f"rollout {rollout}") == [f"/rollouts/{rollout}/"]
    assert hrefs(alice, f"prompt {prompt}") == [f"/prompts/{prompt}/"] and step in hrefs(alice, "12")
    assert hrefs(alice, f"run {run.pk}") == [f"/runs/{run.pk}/"]
    assert hrefs(alice, "step 13", f"/runs/{run.pk}/") == [] and hrefs(alice, "rollout 999999999999999999") == []
    for query in ("step 12", f"rollout {rollout}", f"prompt {prompt}", f"run {run.pk}", "signal"):
        assert hrefs(charlie, query, f"/runs/{run.pk}/") == []


def test_a_viewer_is_not_sent_to_the_launch_form(alice: User, bob: User, project: Project) -> None:
    at = f"/projects/{project.pk}/"
    Member.objects.update_or_create(project=project, user=bob, defaults={"role": Role.VIEWER})
    assert hrefs(alice, "launch", at) and not hrefs(bob, "launch", at)


def test_workers_keep_the_navigation_of_the_project_that_one_came_from(
    client: Client, alice: User, charlie: User, project: Project
) -> None:
    searches = reverse("project-searches", args=[project.pk])
    for user, is_kept in ((alice, True), (charlie, False)):
        client.force_login(user)
        for name in ("workers", "account"):
            page = client.get(reverse(name), {"project": project.pk})
            assert page.status_code == 200 and (searches in page.content.decode()) == is_kept
        assert client.get(reverse("workers"), {"project": "x\0"}).status_code == 200
