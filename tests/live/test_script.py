"""static/js/live.js in a real browser, with a socket that the test speaks through."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, Route, WebSocketRoute, sync_playwright

from rlviewer.lib.csp import POLICY

SCRIPT = (Path(__file__).parents[2] / "static/js/live.js").read_text()
LISTEN = """
window.heard = [];
for (const name of ["step-stored", "state", "refetch"])
  document.body.addEventListener("live:" + name, (event) => heard.push([name, event.detail.seq]));
"""


class Talk:
    """The server's side of the page's sockets."""

    def __init__(self) -> None:
        self.sockets: list[WebSocketRoute] = []

    def say(self, event: str, seq: int, **more: Any) -> None:
        self.sockets[-1].send(json.dumps({"topic": "run:1", "seq": seq, "event": event, **more}))


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        yield browser.new_page()
        browser.close()


@pytest.fixture
def talk(page: Page) -> Iterator[Talk]:
    talk = Talk()
    page.unroute_all()
    page.route_web_socket("**/ws/**", lambda socket: talk.sockets.append(socket))
    yield talk
    page.goto("about:blank")


def open_page(page: Page, attributes: str = 'data-live-url="/ws/runs/1/" data-live-seq="4"') -> None:
    body = f'<body {attributes}><i data-live-dot><b data-live-label></b></i><script src="/listen.js"></script><script src="/live.js"></script>'
    answers = {
        "/": ("text/html", body),
        "/live.js": ("text/javascript", SCRIPT),
        "/listen.js": ("text/javascript", LISTEN),
    }

    def answer(route: Route) -> None:
        kind, text = answers.get("/" + route.request.url.split("/", 3)[3], ("text/plain", ""))
        route.fulfill(content_type=kind, body=text, headers={"Content-Security-Policy": POLICY})

    page.route("http://rlviewer.test/**", answer)
    page.goto("http://rlviewer.test/")


def heard(page: Page, count: int, timeout: float = 5) -> list[Any]:
    deadline = time.monotonic() + timeout
    while len(found := page.evaluate("heard")) < count and time.monotonic() < deadline:
        page.wait_for_timeout(20)
    return found


def state(page: Page) -> str:
    return page.evaluate("document.querySelector('[data-live-dot]').dataset.state")


def test_frames_in_order_become_events_and_nothing_is_refetched(page: Page, talk: Talk) -> None:
    open_page(page)
    talk.say("hello", 4)
    talk.say("step-stored", 5, step=7)
    talk.say("state", 6)
    talk.say("beat", 6)
    page.wait_for_timeout(1200)
    assert page.evaluate("heard") == [["step-stored", 5], ["state", 6]]
    assert state(page) == "live"


@pytest.mark.parametrize(("frames", "expected"), [
    ([("hello", 4), ("state", 7)], [["state", 7], ["refetch", 7]]),  # 5 and 6 were lost
    ([("hello", 6)], [["refetch", 6]]),  # something changed between the page and the socket
    ([("hello", 4), ("beat", 5)], [["refetch", 5]]),  # the frame before the beat was lost
    ([("hello", 4), ("refetch", 900)], [["refetch", 900]]),
    ([("hello", 4), ("state", 5), ("state", 5), ("state", 4)], [["state", 5]]),  # twice and late
])  # fmt: skip
def test_a_gap_means_refetch(page: Page, talk: Talk, frames: list[tuple[str, int]], expected: list[Any]) -> None:
    open_page(page)
    for event, seq in frames:
        talk.say(event, seq)
    assert heard(page, len(expected)) == expected
    page.wait_for_timeout(100)
    assert page.evaluate("heard") == expected


def test_page_without_a_number_refetches_once(page: Page, talk: Talk) -> None:
    open_page(page, 'data-live-url="/ws/runs/1/"')
    talk.say("hello", 3)
    assert heard(page, 1) == [["refetch", 3]]


def test_a_flood_of_refetches_costs_one_a_second(page: Page, talk: Talk) -> None:
    open_page(page)
    talk.say("hello", 4)
    for seq in range(5, 105):
        talk.say("refetch", seq)
    page.wait_for_timeout(1500)
    refetches = page.evaluate("heard")
    assert refetches[-1] == ["refetch", 104]
    assert len(refetches) <= 4


def test_lost_socket_comes_back_and_asks_only_if_it_missed_something(page: Page, talk: Talk) -> None:
    open_page(page)
    talk.say("hello", 4)
    for newest, expected in ((4, []), (9, [["refetch", 9]])):
        sockets = len(talk.sockets)
        talk.sockets[-1].close(code=1012)
        page.wait_for_timeout(50)
        assert state(page) == "reconnecting"
        deadline = time.monotonic() + 5
        while len(talk.sockets) == sockets and time.monotonic() < deadline:
            page.wait_for_timeout(20)
        talk.say("hello", newest)
        assert heard(page, len(expected)) == expected
        assert state(page) == "live"


def test_refused_socket_stays_closed_and_the_page_asks_once(page: Page, talk: Talk) -> None:
    open_page(page)
    talk.say("hello", 4)
    talk.sockets[-1].close(code=4403)
    assert heard(page, 1) == [["refetch", 4]]
    page.wait_for_timeout(1500)
    assert (state(page), len(talk.sockets)) == ("paused", 1)


def test_page_without_a_live_address_opens_nothing(page: Page, talk: Talk) -> None:
    open_page(page, "")
    page.wait_for_timeout(200)
    assert talk.sockets == []
