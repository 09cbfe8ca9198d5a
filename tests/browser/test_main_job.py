"""The main job, whole: sign in, launch from the form, watch it live to its end, read a token's advantage."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from rlviewer.accounts.models import Project, User
from rlviewer.embedded.supervise import worker_command
from rlviewer.runs.models import Rollout, Run, RunState, Step
from tests.factories import PASSWORD

STEPS, PROMPTS, GROUP = 3, 2, 4


@pytest.fixture
def worker(database_url: str, redis_url: str, live_app: str, tmp_path: Path) -> Iterator[None]:
    """A worker as the supervisor starts it, on the test database."""
    with open(tmp_path / "worker.log", "wb") as log:
        process = subprocess.Popen(
            worker_command(), env={**os.environ, "DATABASE_URL": database_url}, stdout=log, stderr=log
        )
    yield
    process.terminate()
    process.wait(30)
    sys.stderr.write((tmp_path / "worker.log").read_text()[-4000:])


def test_launch_watch_and_read(page: Page, worker: None, live_app: str, alice: User, project: Project) -> None:
    page.goto("/")
    page.get_by_label("Name").fill("alice")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(f"{live_app}/")

    page.goto(f"/projects/{project.id}/launch/?preset=short")
    fields = {"Name": "first light", "Steps": STEPS, "Group size": GROUP, "Prompts per step": PROMPTS}
    for label, value in fields.items():
        page.get_by_label(label, exact=True).fill(str(value))
        page.get_by_label(label, exact=True).press("Tab")
    expect(page.get_by_role("complementary")).to_contain_text(f"prompts_per_step = {PROMPTS}")
    page.get_by_role("button", name="Launch run").click()

    page.wait_for_url("**/runs/*/")
    # Lost by any reload, so that what follows is proved to have come live.
    page.evaluate("window.wasNeverReloaded = true")
    header = page.locator("main")
    expect(header).to_contain_text("finished", timeout=120_000)
    expect(page.locator("#newest a[href^='/rollouts/']").first).to_be_visible()
    expect(header).to_contain_text(f"{STEPS} of {STEPS} steps")
    assert page.evaluate("window.wasNeverReloaded") is True

    run = Run.objects.get()
    assert run.state == RunState.FINISHED
    assert Step.objects.filter(run=run, split="train", is_current=True).count() == STEPS
    stored = Rollout.objects.filter(step__run=run, step__split="train", step__is_current=True)
    assert stored.count() == STEPS * PROMPTS * GROUP

    page.goto(f"/runs/{run.id}/steps/train/0/")
    page.locator("main a[href^='/rollouts/']").first.click()
    page.wait_for_url("**/rollouts/*/**")
    rollout = Rollout.objects.get(id=int(page.url.split("/rollouts/")[1].split("/")[0]))
    page.locator("#tokens .token, #tokens [data-i]").first.hover()
    inspector = page.locator("#inspector")
    expect(inspector.locator("h2")).to_have_text(f"Token 0 of 0–{rollout.length_tokens - 1}")
    told = dict(zip(inspector.locator("dt").all_inner_texts(), inspector.locator("dd").all_inner_texts(), strict=True))
    assert float(told["advantage"].replace("−", "-")) == pytest.approx(rollout.advantage, rel=5e-3)
