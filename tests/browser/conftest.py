"""The system's Chromium on a real web server that serves the test database."""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from django.test import Client
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from rlviewer.accounts.models import User

# The sync API of Playwright runs an event loop in this thread, from which Django would refuse the database.
os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
# Nothing but the page under test may use the network.
FLAGS = [
    "--headless=new", "--no-sandbox", "--no-first-run", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--disable-default-apps", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
]  # fmt: skip
# A busy machine may take its time; a right answer never waits for this.
expect.set_options(timeout=20_000)
AXE = (Path(__file__).parents[1] / "data" / "axe.min.js").read_text()


@pytest.fixture(scope="session")
def served_address(database_url: str) -> Iterator[str]:
    """Where the web server listens, started once."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    changed = {"DATABASE_URL": database_url, "RLVIEWER_PORT": str(port), "RLVIEWER_DB_POOL": "6"}
    process = subprocess.Popen([sys.executable, "-m", "rlviewer.embedded.web"], env={**os.environ, **changed})
    try:
        for _ in range(300):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert process.poll() is None, "the web server ended at once"
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(20)


@pytest.fixture
def live_app(transactional_db: None, served_address: str) -> str:
    """Address of the running site; what the test writes is committed, so the site sees it."""
    return served_address


# One a module: two of Playwright's sync loops cannot live in a thread at once.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture
def context(browser: Browser, live_app: str) -> Iterator[BrowserContext]:
    context = browser.new_context(base_url=live_app, viewport={"width": 1280, "height": 800})
    context.set_default_timeout(20_000)
    yield context
    context.close()


@pytest.fixture
def page(context: BrowserContext) -> Iterator[Page]:
    """A page at 1280 px; a script error or something that the policy blocked fails the test."""
    page = context.new_page()
    troubles: list[str] = []
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("console", lambda said: troubles.append(said.text) if "Content Security Policy" in said.text else None)
    yield page
    assert not troubles


@pytest.fixture
def sign_in(context: BrowserContext, live_app: str) -> Callable[[User], None]:
    """Signs a person in without the form."""

    def signed_in(user: User) -> None:
        client = Client()
        client.force_login(user)
        cookie = client.cookies["sessionid"].value
        context.add_cookies([{"name": "sessionid", "value": cookie, "url": live_app}])

    return signed_in


@pytest.fixture
def violations(browser: Browser) -> Callable[[Page], list[str]]:
    """What axe finds on a page: rule, and the first element that breaks it."""

    def found(page: Page) -> list[str]:
        # Evaluated, not added as a script tag: the page's own policy would block that, and it stays in force.
        page.evaluate(AXE)
        result = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        return [f"{v['id']}: {v['nodes'][0]['html'][:200]}" for v in result["violations"]]

    return found
