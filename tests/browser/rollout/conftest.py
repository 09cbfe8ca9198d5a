"""A run whose tokens have texts, and a page that lets no text of a rollout act."""

import hashlib
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Page

from rlviewer.accounts.models import Project, User
from rlviewer.runs.models import Run, Vocabulary
from tests.factories import make_run
from training import vocabulary

PIECES = [
    b"<eos>",
    b"2",
    b"+",
    b" carry",
    b"\n",
    b"\xf0\x9f",
    b"\x00",
    "\u202e".encode(),
    b"<script>window.hacked=1</script>",
]


@pytest.fixture
def page(page: Page, live_app: str, alice: User, sign_in: Callable[[User], None]) -> Iterator[Page]:
    """Signed in as alice. Any request to another origin and any script that a text brought along fails the test."""
    sign_in(alice)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    yield page
    assert [url for url in asked if not url.startswith((live_app, "data:", "blob:"))] == []
    assert page.evaluate("window.hacked") is None


@pytest.fixture
def run(project: Project) -> Run:
    payload = vocabulary.pack(PIECES)
    digest = hashlib.sha256(payload).digest()
    stored = Vocabulary.objects.create(sha256=digest, size=len(PIECES), payload=payload)
    return make_run(project, "<b>run</b>", vocabulary=stored)
