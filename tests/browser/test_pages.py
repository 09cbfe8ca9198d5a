"""Every page of the shell at both widths and in both themes: axe finds nothing, nothing scrolls sideways."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Browser, Page

from rlviewer.accounts.models import ApiToken, Project, User
from rlviewer.accounts.services import record
from tests.factories import make_run, make_user

LONG = "a-name-that-goes-on-" * 9
PAGES = {
    "sign-in": "/sign-in/?x",
    "home": "/",
    "new project": "/projects/new/",
    "runs": "/projects/{project}/",
    "no run matches": "/projects/{project}/?search=zzz",
    "empty project": "/projects/{empty}/",
    "launch": "/projects/{project}/launch/",
    "launch with errors": "/projects/{project}/launch/?sampling.group_size=1&optimizer.learning_rate=nan&task.name=adition",
    "members": "/projects/{project}/members/",
    "audit": "/projects/{project}/audit/",
    "account": "/account/",
    "people": "/people/",
    "workers": "/workers/",
    "style guide": "/_styleguide/",
    "nothing there": "/projects/987654321/",
}


@pytest.fixture
def filled(live_app: str, alice: User, project: Project) -> dict[str, int]:
    root = make_user("root", is_superuser=True)
    for number, state in enumerate(["running", "finished", "failed", "queued", "silent", "stopped", "paused"]):
        make_run(project, f"run {number}", state=state, state_reason="because", latest_reward=0.5, created_by=alice)
    make_run(project, LONG, task="reasoning_gym:" + LONG[:90], model="/models/" + LONG, tags=[LONG[:60]])
    record(root, "launch", "run:1", project, name=LONG)
    ApiToken.issue(root, LONG[:100])
    empty = Project.objects.create(name=LONG[:100], description=LONG)
    return {"project": project.id, "empty": empty.id}


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")])
def test_pages_are_accessible_and_fit(
    browser: Browser,
    live_app: str,
    filled: dict[str, int],
    violations: Callable[[Page], list[str]],
    width: int,
    scheme: str,
    client_cookie: str,
) -> None:
    context = browser.new_context(base_url=live_app, viewport={"width": width, "height": 844}, color_scheme=scheme)
    page = context.new_page()
    troubles = []
    for name, path in PAGES.items():
        cookies = [] if name == "sign-in" else [{"name": "sessionid", "value": client_cookie, "url": live_app}]
        context.clear_cookies()
        context.add_cookies(cookies)
        page.goto(path.format(**filled))
        troubles += [f"{name}: {found}" for found in violations(page)]
        overflow = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        troubles += [f"{name}: {overflow} px too wide"] if overflow > 0 else []
    context.close()
    assert not troubles


@pytest.fixture
def client_cookie(filled: dict[str, int]) -> str:
    from django.test import Client

    client = Client()
    client.force_login(User.objects.get(username="root"))
    return client.cookies["sessionid"].value
