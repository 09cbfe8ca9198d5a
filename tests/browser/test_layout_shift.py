"""Pages hold still while steps and rollouts stream in: what a person reads is not moved."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from rlviewer.accounts.models import Project, User
from rlviewer.ingest.services import store_batch
from tests.factories import fill_run, make_batch, make_run

SignIn = Callable[[User], None]

WATCH = """
window.shifted = [];
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) {
    if (!entry.hadRecentInput) shifted.push([entry.value, ...entry.sources.map(({ node }) => node?.outerHTML?.slice(0, 120) ?? "")]);
  }
}).observe({ type: "layout-shift", buffered: true });
"""
MOST = 0.01


@pytest.mark.parametrize(
    ("address", "is_told"),
    [
        ("/runs/{run}/", "#newest a[href]:has-text('step 6')"),
        ("/projects/{project}/", "tr:has-text('7 / 10')"),
    ],
)
def test_nothing_moves_while_steps_stream_in(
    page: Page, sign_in: SignIn, alice: User, project: Project, address: str, is_told: str
) -> None:
    run = make_run(project, "streaming", state="running")
    fill_run(run, steps=3, groups=2, group_size=4)
    sign_in(alice)
    page.add_init_script(WATCH)
    page.goto(address.format(run=run.pk, project=project.pk))
    expect(page.locator("[data-live-dot]")).to_have_attribute("data-state", "live")
    for step in range(3, 7):
        store_batch(make_batch(run, step=step, groups=2, group_size=4), source="test")
        page.wait_for_timeout(300)
    expect(page.locator(is_told).first).to_be_visible()
    shifts = page.evaluate("shifted")
    assert sum(shift[0] for shift in shifts) < MOST, shifts
