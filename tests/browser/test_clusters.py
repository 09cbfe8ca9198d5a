"""Clusters and similar rollouts as a person uses them; at both widths and in both themes."""

import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Page, expect

from rlviewer.accounts.models import Project, User
from rlviewer.analysis import jobs
from rlviewer.analysis.models import EmbeddingJob, JobState
from rlviewer.ingest.services import store_batch
from rlviewer.runs.models import Rollout, Run
from rlviewer.search.services import index_pending
from tests.analysis.conftest import SAYINGS, direction, embed
from tests.factories import make_batch, make_run
from training.sentences import MODEL_KEY


@pytest.fixture
def page(page: Page, alice: User, sign_in: Callable[[User], None]) -> Iterator[Page]:
    sign_in(alice)
    yield page


@pytest.fixture
def run(project: Project) -> Run:
    run = make_run(project, state="finished")
    texts = [SAYINGS[row % 4].encode() for row in range(16)]
    store_batch(make_batch(run, groups=4, group_size=4, completion=texts), source="test")
    index_pending()
    return run


def rollouts(run: Run) -> list[int]:
    return list(Rollout.objects.filter(run_id=run.pk).order_by("pk").values_list("pk", flat=True))


def embed_all(run: Run) -> None:
    embed(rollouts(run), [direction(5 * (row % 2), 0.1 * (row % 4)) for row in range(16)])


def test_from_the_browser_to_clusters_and_back_to_their_rollouts(page: Page, run: Run) -> None:
    page.goto(f"/runs/{run.pk}/rollouts/?filter=reward%3E%3D0")
    page.get_by_role("link", name="Find clusters").click()
    expect(page).to_have_url(re.compile(r"/clusters/\?filter=reward%3E%3D0$"))
    page.get_by_role("button", name=re.compile("^Embed ")).click()
    expect(page.locator("#coverage")).to_contain_text("Waiting for a worker")
    # What a worker does, step by step; the page follows by itself.
    job = jobs.take()
    assert job is not None
    expect(page.locator("#coverage")).to_contain_text("Loading the model")
    jobs.write(job, total=15, done=3)
    expect(page.locator("#coverage")).to_contain_text("3 of 15 embedded")
    embed_all(run)
    jobs.write(job, state=JobState.FINISHED)
    expect(page.locator("#coverage")).to_contain_text("15 of 15 rollouts of this filter embedded")
    expect(page.locator(".cluster")).to_have_count(4)
    page.get_by_label("clusters", exact=True).fill("2")
    page.get_by_role("button", name="Find clusters").click()
    expect(page.locator(".cluster")).to_have_count(2)
    page.get_by_role("link", name="Open its 8 rollouts").click()
    expect(page.locator("#rollouts [data-row]")).to_have_count(8)
    expect(page.locator("#rollouts [data-row]").first).to_contain_text("carry")


def test_a_text_is_found_by_meaning_once_a_worker_has_read_it(page: Page, run: Run) -> None:
    embed_all(run)
    page.goto(f"/runs/{run.pk}/clusters/?filter=")
    page.get_by_label("Find rollouts that mean").fill("carries the one")
    page.get_by_role("button", name="Find by meaning").click()
    expect(page.locator("#found")).to_contain_text("Waiting for a worker")
    EmbeddingJob.objects.update(state=JobState.FINISHED, vector=direction(0), model=MODEL_KEY)
    expect(page.locator("#found [data-row]")).to_have_count(4)
    page.locator("#found [data-row] a").first.click()
    expect(page).to_have_url(re.compile(r"/rollouts/\d+/"))
    page.locator("#similar").scroll_into_view_if_needed()
    expect(page.locator("#similar [data-row]").first).to_contain_text("and 2 more that say the same")
    page.get_by_role("button", name="All runs of the project").click()
    expect(page.locator("#similar")).to_contain_text("in this project")


def test_a_rollout_is_embedded_from_its_own_page(page: Page, run: Run) -> None:
    page.goto(f"/rollouts/{rollouts(run)[0]}/")
    page.locator("#similar").scroll_into_view_if_needed()
    page.get_by_role("button", name="Find similar rollouts").click()
    expect(page.locator("#similar")).to_contain_text("Waiting for a worker")
    embed_all(run)
    EmbeddingJob.objects.update(state=JobState.FINISHED)
    expect(page.locator("#similar [data-row]")).to_have_count(4)


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_accessible_and_fitting(
    page: Page, run: Run, alice: User, width: int, theme: str, violations: Callable[[Page], list[str]]
) -> None:
    embed_all(run)
    failed = jobs.ask_rollouts(alice, run.project, run, "step:0")
    EmbeddingJob.objects.filter(pk=failed.pk).update(state=JobState.FAILED, error="killed by signal 9")
    page.set_viewport_size({"width": width, "height": 844})
    page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
    EmbeddingJob.objects.create(
        project=run.project, text="carry", state="finished", vector=direction(0), model=MODEL_KEY
    )
    jobs.ask_rollouts(alice, run.project, run, "number:0")
    for query in (
        "filter=",
        "filter=step:0",
        "filter=number:0",
        "filter=&means=carry",
        "filter=reward%3E9",
        "filter=x%3A1",
    ):
        page.goto(f"/runs/{run.pk}/clusters/?{query}")
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, query
        assert violations(page) == [], query
    page.goto(f"/rollouts/{rollouts(run)[0]}/")
    page.locator("#similar").scroll_into_view_if_needed()
    expect(page.locator("#similar [data-row]")).to_have_count(4)
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert violations(page) == []
