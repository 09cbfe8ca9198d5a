"""A person reads a rollout and says what it is, saves a search, sees it counted, and follows its curve to the rollouts."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from rlviewer.accounts.models import Project, User
from rlviewer.ingest.services import store_batch
from rlviewer.review.models import Label
from rlviewer.runs.models import Rollout, Run
from rlviewer.search.services import index_pending
from rlviewer.watch.counting import count_pending
from rlviewer.watch.models import SavedSearch
from tests.factories import make_batch, make_run


@pytest.fixture
def run(project: Project) -> Run:
    run = make_run(project)
    for step, hits in enumerate([0, 4, 5, 6]):
        texts = [b"so"] * hits + [b"say"] * (8 - hits)
        store_batch(make_batch(run, step=step, groups=1, group_size=8, completion=texts), source="test")
    index_pending()
    return run


def test_a_rollout_and_its_tokens_are_labelled_by_keys(
    page: Page, run: Run, bob: User, sign_in: Callable[[User], None]
) -> None:
    sign_in(bob)
    first = Rollout.objects.filter(run_id=run.pk).order_by("pk")[0]
    page.goto(f"/rollouts/{first.pk}/")
    expect(page.get_by_text("Nobody has labelled it.")).to_be_visible()
    page.keyboard.press("+")
    expect(page.get_by_role("button", name="Up", exact=True)).to_have_attribute("aria-pressed", "true")
    page.keyboard.press("2")
    expect(page.locator("#labels .label-list .chip")).to_have_text(["thumb up", "hack"])
    # Three tokens from the first on; what is pressed now speaks of them.
    page.locator("#tokens").focus()
    for key in ("ArrowRight", "Shift+ArrowRight", "Shift+ArrowRight"):
        page.keyboard.press(key)
    expect(page.locator("[data-label-place]")).to_have_text("Of tokens 0–2")
    expect(page.get_by_role("button", name="Up", exact=True)).to_have_attribute("aria-pressed", "false")
    page.keyboard.press("-")
    expect(page.locator(".is-labelled")).to_have_count(3)
    expect(page).to_have_url(re.compile(r"[?&]tokens=0-2"))
    page.keyboard.press("l")
    page.keyboard.type("it begins + wrongly")
    page.keyboard.press("Control+Enter")
    expect(page.locator("#labels .label-text")).to_have_text("it begins + wrongly")
    expect(page.locator("#label-note")).to_have_value("")
    # Pressing what is pressed takes it back, and only that.
    page.locator("#tokens").focus()
    page.keyboard.press("-")
    expect(page.locator("#labels .label-list .chip")).to_have_text(["note", "thumb up", "hack"])
    page.reload()
    expect(page.locator(".is-labelled")).to_have_count(3)
    expect(page.locator("[data-label-place]")).to_have_text("Of tokens 0–2")
    page.get_by_role("button", name="whole rollout").click()
    page.keyboard.press("+")
    expect(page.locator("#labels .label-list .chip")).to_have_text(["note", "hack"])
    page.locator("#labels li", has_text="wrongly").get_by_text("Change").click()
    page.locator("#labels li", has_text="wrongly").get_by_role("button", name="Remove label").click()
    expect(page.locator("#labels .label-list .chip")).to_have_text(["hack"])
    expect(page.locator(".is-labelled")).to_have_count(0)
    assert [(label.words, label.author) for label in Label.objects.all()] == [("hack", bob)]


def test_a_filter_becomes_a_search_whose_curve_fills_itself_and_leads_to_the_rollouts(
    page: Page, run: Run, bob: User, sign_in: Callable[[User], None], violations: Callable[[Page], list[str]]
) -> None:
    sign_in(bob)
    page.goto(f"/runs/{run.pk}/rollouts/?filter=so")
    page.get_by_role("link", name="save this search").click()
    expect(page.get_by_label("Filter", exact=True)).to_have_value("so")
    page.get_by_label("Name").fill("says so")
    page.get_by_label("Alarm above").fill("20")
    page.get_by_role("button", name="Save search").click()
    expect(page.get_by_role("heading", name="says so")).to_be_visible()
    expect(page.get_by_text("No step is counted yet")).to_be_visible()
    expect(page.locator("[data-live-dot]")).to_have_attribute("data-state", "live")
    assert count_pending() == 4
    expect(page.get_by_text("15 of 32 rollouts match")).to_be_visible()
    expect(page.locator("#search .callout")).to_contain_text("passed 20.0 % at step 1")
    plot = page.locator(".plot.js-plotly-plot")
    expect(plot).to_be_visible()
    plot.focus()
    page.keyboard.press("End")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")
    page.wait_for_url("**/rollouts/**")
    expect(page.locator("#rollouts [data-row]")).to_have_count(5)  # of step 2
    # The run and the list say it too.
    page.goto(f"/runs/{run.pk}/")
    expect(page.locator("#alarms")).to_contain_text("says so passed 20.0 % at step 1")
    search = SavedSearch.objects.get()
    for address in (
        f"/searches/{search.pk}/",
        f"/projects/{run.project_id}/searches/",
        f"/projects/{run.project_id}/labels/",
    ):
        for width in (1280, 390):
            page.set_viewport_size({"width": width, "height": 800})
            page.goto(address)
            assert violations(page) == []
            assert page.evaluate("document.documentElement.scrollWidth") <= width
