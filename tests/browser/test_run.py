"""A run's page while the run goes on: it follows without a reload and never disturbs who reads it."""

from collections.abc import Callable
from pathlib import Path

import pytest
from django.db import transaction
from playwright.sync_api import Page, expect

from rlviewer.accounts.models import Project, User
from rlviewer.ingest.services import store_batch
from rlviewer.launch.models import Lease
from rlviewer.outbox.services import announce_run
from rlviewer.runs.models import Run
from tests.factories import fill_run, make_batch, make_run


@pytest.fixture
def run(project: Project) -> Run:
    run = make_run(project, "countdown", steps_planned=40, state="running")
    fill_run(run, steps=12)
    Lease.objects.create(attempt=run.attempts.get())  # a worker of ours trains it
    return run


@pytest.fixture
def opened(page: Page, run: Run, alice: User, sign_in: Callable[[User], None]) -> Page:
    sign_in(alice)
    page.goto(f"/runs/{run.pk}/")
    expect(page.locator("[data-live-dot]")).to_have_attribute("data-state", "live")
    expect(page.locator("[data-figure=reward] .main-svg").first).to_be_visible()
    page.evaluate("window.sameDocument = true")
    return page


def store(run: Run, step: int) -> None:
    store_batch(make_batch(run, step=step), source="test")


def steps_drawn(page: Page, chart: str = "reward") -> int:
    return int(page.evaluate(f"document.querySelector('[data-figure={chart}]').data[0].x.length"))


def test_a_new_step_appears_in_numbers_curves_and_list(opened: Page, run: Run) -> None:
    expect(opened.locator(".run-state")).to_contain_text("12 of 40 steps")
    for step in range(12, 15):
        store(run, step)
    expect(opened.locator(".run-state")).to_contain_text("15 of 40 steps")
    expect(opened.locator("#newest .rollout-line").first).to_contain_text("step 14")
    assert steps_drawn(opened) == 15
    Run.objects.filter(pk=run.pk).update(state="failed", state_reason="killed by signal 9 at step 15")
    with transaction.atomic():
        announce_run(run.pk, run.project_id, "state-changed", state="failed")
    expect(opened.get_by_role("alert")).to_contain_text("killed by signal 9 at step 15")
    expect(opened.get_by_role("button", name="Resume run")).to_be_visible()
    assert opened.evaluate("window.sameDocument") is True


def test_news_keeps_menus_zoom_and_tables(opened: Page, run: Run) -> None:
    opened.evaluate("Plotly.relayout(document.querySelector('[data-figure=reward]'), {'xaxis.range': [2, 8]})")
    opened.wait_for_url("**x=2%3A8")
    opened.locator("#chart-entropy summary").click()
    opened.locator("#chart-entropy").get_by_role("button", name="Table or chart").click()
    expect(opened.locator(".chart-table tbody tr")).to_have_count(12)
    opened.locator("#chart-dead summary").click()
    store(run, 12)
    expect(opened.locator(".chart-table tbody tr")).to_have_count(13)
    assert opened.evaluate("document.querySelector('#chart-dead details').open")
    # The zoom of one chart is that of all, and of whoever opens the address.
    for chart in ("reward", "dead"):
        assert opened.evaluate(f"document.querySelector('[data-figure={chart}]').layout.xaxis.range") == [2, 8]
    opened.reload()
    expect(opened.locator("[data-figure=reward] .main-svg").first).to_be_visible()
    assert opened.evaluate("document.querySelector('[data-figure=reward]').layout.xaxis.range") == [2, 8]


def test_new_rollouts_wait_while_somebody_reads(opened: Page, run: Run) -> None:
    opened.locator("#newest .rollout-line").nth(2).hover()
    shown = opened.locator("#newest .rollout-line").first.inner_text()
    store(run, 12)
    pill = opened.locator("[data-pill]")
    expect(pill).to_have_text("16 new rollouts")
    assert opened.locator("#newest .rollout-line").first.inner_text() == shown
    pill.click()
    expect(opened.locator("#newest .rollout-line").first).to_contain_text("step 12")
    expect(pill).to_be_hidden()


def test_a_lost_socket_catches_up(opened: Page, run: Run) -> None:
    opened.context.set_offline(True)
    opened.evaluate("dispatchEvent(new Event('online'))")  # closes the socket and tries anew
    expect(opened.locator("[data-live-dot]")).to_have_attribute("data-state", "reconnecting")
    store(run, 12)
    opened.context.set_offline(False)
    opened.evaluate("dispatchEvent(new Event('online'))")
    expect(opened.locator(".run-state")).to_contain_text("13 of 40 steps")


def test_arrow_keys_read_a_chart_and_files_hold_its_numbers(opened: Page) -> None:
    opened.locator("[data-figure=loss]").focus()
    opened.keyboard.press("End")
    opened.keyboard.press("ArrowLeft")
    expect(opened.locator("p.visually-hidden[aria-live]")).to_have_text("step 10: loss 0.009090909090909092")
    opened.locator("#chart-loss summary").click()
    with opened.expect_download() as download:
        opened.locator("#chart-loss").get_by_role("button", name="Download CSV").click()
    lines = Path(download.value.path()).read_text().splitlines()
    assert lines[:2] == ["step,loss", "0,0.1"] and len(lines) == 13
    for kind in ("PNG", "SVG"):
        opened.locator("#chart-loss summary").click()
        with opened.expect_download() as download:
            opened.locator("#chart-loss").get_by_role("button", name=f"Download {kind}").click()
        assert Path(download.value.path()).stat().st_size > 2000


def test_the_name_is_edited_in_place(opened: Page, run: Run) -> None:
    name = opened.locator(".title-input")
    name.fill("thrown away")
    name.press("Escape")
    expect(name).to_have_value("countdown")
    name.fill("a better name")
    name.press("Enter")
    expect(opened).to_have_title("a better name · rlviewer")
    run.refresh_from_db()
    assert run.name == "a better name"
