"""Every page of a filled run: axe finds nothing, nothing scrolls sideways, no script fails."""

from collections.abc import Callable

import pytest
from django.test import Client
from playwright.sync_api import Browser, Page

from rlviewer.accounts.models import Project, User
from rlviewer.runs.models import Group, Prompt
from rlviewer.signal.pages import PAGES as SIGNAL_PAGES
from rlviewer.signal.services import compute_pending
from tests.factories import fill_run, make_run

PAGES = {
    "overview": "/runs/{run}/",
    "overlay": "/runs/{run}/?with={other}",
    "steps": "/runs/{run}/?tab=steps",
    "evaluation": "/runs/{run}/?tab=evaluation",
    "config": "/runs/{run}/?tab=config",
    "step": "/runs/{run}/steps/train/0/",
    "group": "/groups/{group}/",
    "prompts": "/runs/{run}/prompts/",
    "prompt": "/prompts/{prompt}/",
    "clusters": "/runs/{run}/clusters/",
    "algorithms": "/projects/{project}/algorithms/",
    "algorithm": "/projects/{project}/algorithms/dapo/",
    "signal over another run": "/runs/{run}/signal/costs/?with={other}&from=0&to=1",
    **{f"signal, {name}": f"/runs/{{run}}/signal/{name}/" for name in SIGNAL_PAGES},
}


@pytest.fixture
def filled(live_app: str, alice: User, project: Project) -> dict[str, int]:
    run, other = make_run(project, "a run"), make_run(project, "another run", algorithm="rloo")
    for one in (run, other):
        fill_run(one, 3, groups=3, group_size=4, tokens=16)
    compute_pending()
    group = Group.objects.filter(step__run=run, step__split="train")[0]
    return {
        "project": project.pk,
        "run": run.pk,
        "other": other.pk,
        "group": group.pk,
        "prompt": Prompt.objects.get(pk=group.prompt_id).pk,
    }


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_pages_of_a_run_are_accessible_and_fit(
    browser: Browser,
    live_app: str,
    filled: dict[str, int],
    alice: User,
    violations: Callable[[Page], list[str]],
    width: int,
    scheme: str,
) -> None:
    client = Client()
    client.force_login(alice)
    context = browser.new_context(base_url=live_app, viewport={"width": width, "height": 844}, color_scheme=scheme)
    context.add_cookies([{"name": "sessionid", "value": client.cookies["sessionid"].value, "url": live_app}])
    page = context.new_page()
    troubles: list[str] = []
    page.on("pageerror", lambda error: troubles.append(f"{page.url}: {error}"))
    for name, path in PAGES.items():
        answer = page.goto(path.format(**filled))
        assert answer is not None and answer.status == 200, name
        page.wait_for_load_state("networkidle")
        troubles += [f"{name}: {found}" for found in violations(page)]
        overflow = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        troubles += [f"{name}: {overflow} px too wide"] if overflow > 0 else []
    context.close()
    assert not troubles
