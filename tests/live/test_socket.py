"""The live channel against a real server and a real Postgres: access, news, gaps, floods, revocation."""

import asyncio
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import psutil
import pytest
from django.contrib.sessions.models import Session
from django.db import connection, transaction
from websockets.asyncio.client import ClientConnection as AsyncConnection
from websockets.asyncio.client import connect as aconnect
from websockets.exceptions import ConnectionClosed, ConnectionClosedError, InvalidStatus
from websockets.sync.client import ClientConnection

from rlviewer.accounts.models import ApiToken, Member, Project, Role, User
from rlviewer.outbox.services import announce, announce_run, current_seq
from rlviewer.runs.models import Run
from tests.factories import make_project, make_run, make_user
from tests.live.conftest import APPLICATION, POOL, WebServer, cookie_of

RELAY = "rlviewer live relay"
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def team(transactional_db: None) -> Project:
    project = make_project(admin=make_user("alice"))
    Member.objects.create(project=project, user=make_user("bob"), role=Role.VIEWER)
    make_user("charlie")
    return project


def user(name: str) -> User:
    return User.objects.get(username=name)


def hear(connection: ClientConnection, timeout: float = 4) -> dict[str, Any]:
    return json.loads(connection.recv(timeout=timeout))


def say(topic: str, event: str = "step-stored", **payload: Any) -> int:
    with transaction.atomic():
        return announce(topic, event, **payload)


def close_code(connection: ClientConnection, timeout: float = 5) -> int | None:
    """Code with which the server closes; fails if it says anything else before."""
    with pytest.raises(ConnectionClosed) as closed:
        raise AssertionError(f"heard {connection.recv(timeout=timeout)!r}")
    return closed.value.rcvd.code if closed.value.rcvd else None


def test_a_viewer_hears_the_number_then_what_changes(web: WebServer, team: Project) -> None:
    run = make_run(team)
    say(f"run:{run.pk}", "created")
    with web.open(f"/ws/runs/{run.pk}/", cookie_of(user("bob"))) as page:
        assert hear(page) == {"topic": f"run:{run.pk}", "seq": 1, "event": "hello"}
        with transaction.atomic():
            announce_run(run.pk, team.pk, "step-stored", step=7)
        started = time.monotonic()
        assert hear(page) == {"topic": f"run:{run.pk}", "seq": 2, "event": "step-stored", "step": 7}
        # A notification brings it; the poll alone would take up to two seconds.
        assert time.monotonic() - started < 1


def test_project_page_hears_of_all_its_runs_and_no_others(web: WebServer, team: Project) -> None:
    other = make_project("other", admin=user("alice"))
    with web.open(f"/ws/projects/{team.pk}/", cookie_of(user("bob"))) as page:
        assert hear(page)["event"] == "hello"
        for project in (other, team):
            with transaction.atomic():
                announce_run(make_run(project).pk, project.pk, "run-created")
        assert hear(page) == {
            "topic": f"project:{team.pk}",
            "seq": 1,
            "event": "run-created",
            "run": Run.objects.get(project=team).pk,
        }


def test_an_announcement_that_is_rolled_back_is_never_heard(web: WebServer, team: Project) -> None:
    run = make_run(team)
    with web.open(f"/ws/runs/{run.pk}/", cookie_of(user("bob"))) as page:
        assert hear(page)["seq"] == 0
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            announce(f"run:{run.pk}", "lie")
            raise ZeroDivisionError
        say(f"run:{run.pk}", "truth")
        assert hear(page) == {"topic": f"run:{run.pk}", "seq": 1, "event": "truth"}


@pytest.mark.parametrize(("name", "path", "code"), [
    ("charlie", "/ws/runs/{run}/", 4404),
    ("charlie", "/ws/projects/{project}/", 4404),
    ("bob", "/ws/runs/999999/", 4404),
    (None, "/ws/runs/{run}/", 4403),
])  # fmt: skip
def test_who_may_not_listen(web: WebServer, team: Project, name: str | None, path: str, code: int) -> None:
    cookie = cookie_of(user(name)) if name else ""
    with web.open(path.format(run=make_run(team).pk, project=team.pk), cookie) as page:
        assert close_code(page) == code


def test_unknown_address_is_refused(web: WebServer, team: Project) -> None:
    with pytest.raises(InvalidStatus) as refused:
        web.open("/ws/nowhere/", cookie_of(user("bob")))
    assert refused.value.response.status_code == 403


def test_a_lost_notification_is_made_good_by_looking(web: WebServer, team: Project) -> None:
    topic = f"run:{make_run(team).pk}"
    with web.open(f"/ws/runs/{topic[4:]}/", cookie_of(user("bob"))) as page:
        assert hear(page)["seq"] == 0
        time.sleep(0.3)
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO outbox_topic VALUES (%s, 1)", [topic])
            cursor.execute(
                "INSERT INTO outbox_announcement (topic, seq, event, payload, created_at) VALUES (%s, 1, 'x', '{}', now())",
                [topic],
            )
        assert hear(page) == {"topic": topic, "seq": 1, "event": "x"}


def test_relay_comes_back_after_its_connection_is_killed(web: WebServer, team: Project) -> None:
    run = make_run(team)
    with web.open(f"/ws/runs/{run.pk}/", cookie_of(user("bob"))) as page:
        assert hear(page)["seq"] == 0
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'rlviewer live relay'"
                " AND datname = current_database()"
            )
            assert cursor.fetchone()[0] == 1
        say(f"run:{run.pk}", "while-away")
        assert hear(page)["event"] == "while-away"


def test_pruned_news_become_one_refetch(web: WebServer, team: Project) -> None:
    topic = f"run:{make_run(team).pk}"
    with web.open(f"/ws/runs/{topic[4:]}/", cookie_of(user("bob"))) as page:
        assert hear(page)["seq"] == 0
        with transaction.atomic(), connection.cursor() as cursor:
            for _ in range(5):
                announce(topic, "old")
            cursor.execute("DELETE FROM outbox_announcement WHERE topic = %s AND seq <= 3", [topic])
        assert hear(page) == {"topic": topic, "seq": 5, "event": "refetch"}


# The incidents that other systems had, one test each.


def run_burst(web: WebServer, team: Project, *, events: int, clients: int, payload_bytes: int) -> list[dict[str, Any]]:
    """Write `events` while `clients` listen, every tenth of them asleep; what each heard, once all are up to date."""
    topic = f"run:{make_run(team).pk}"
    cookie, is_written, opened = cookie_of(user("bob")), threading.Event(), threading.Barrier(clients + 1)

    def open_page(is_slow: bool) -> aconnect:
        raw = socket.socket()
        if is_slow:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.connect(("127.0.0.1", web.port))
        raw.setblocking(False)
        return aconnect(
            web.url(f"/ws/runs/{topic[4:]}/"), sock=raw, origin=web.origin, compression=None, proxy=None,
            additional_headers={"Cookie": cookie}, max_queue=1, ping_interval=None,
        )  # fmt: skip

    async def hear_all(page: AsyncConnection, heard: dict[str, Any]) -> None:
        newest = 0
        while newest < events:
            frame = json.loads(await asyncio.wait_for(page.recv(), 60))
            newest = frame["seq"]
            heard["refetches" if frame["event"] in ("hello", "refetch") else "seqs"].append(newest)

    async def listen(number: int) -> dict[str, Any]:
        heard: dict[str, Any] = {"slow": number % 10 == 0, "seqs": [], "refetches": []}
        try:
            async with open_page(heard["slow"]) as page:
                assert json.loads(await page.recv())["seq"] == 0
                await asyncio.to_thread(opened.wait)
                if heard["slow"]:
                    await asyncio.to_thread(is_written.wait)
                await hear_all(page, heard)
        except ConnectionClosedError:
            # The server gave up on a sleeper, which comes back, as a page does, and reads everything again.
            assert heard["slow"]
            async with open_page(is_slow=True) as page:
                await hear_all(page, heard)
        return heard

    async def listen_all() -> list[dict[str, Any]]:
        asyncio.get_running_loop().set_default_executor(executor)
        return await asyncio.gather(*(listen(number) for number in range(clients)))

    results: list[list[dict[str, Any]]] = []
    with ThreadPoolExecutor(clients + 1) as executor:
        thread = threading.Thread(target=lambda: results.append(asyncio.run(listen_all())))
        thread.start()
        opened.wait(30)
        for _ in range(events):
            say(topic, "step-stored", filler="x" * payload_bytes)
        is_written.set()
        thread.join(600)
    assert results, "somebody never caught up"
    assert current_seq(topic) == events
    return results[0]


def check_burst(heard: dict[str, Any]) -> None:
    """In order, nothing twice, and every number that was left out is covered by a later refetch."""
    assert heard["seqs"] == sorted(set(heard["seqs"]))
    newest_refetch = max(heard["refetches"], default=0)
    last = max([*heard["seqs"], newest_refetch])
    assert set(range(newest_refetch + 1, last + 1)) <= set(heard["seqs"])


@pytest.mark.parametrize(("events", "clients"), [
    (800, 20),
    pytest.param(10_000, 100, marks=pytest.mark.torture),
])  # fmt: skip
def test_incident_r1_burst_with_slow_clients_loses_nothing(
    web: WebServer, team: Project, events: int, clients: int
) -> None:
    everybody = run_burst(web, team, events=events, clients=clients, payload_bytes=12_000)
    for heard in everybody:
        check_burst(heard)
    # The sleepers' frames did not pile up in the server: they were told to refetch instead.
    assert all(len(heard["seqs"]) < events and heard["refetches"] for heard in everybody if heard["slow"])


@pytest.mark.parametrize("origin", [
    "https://evil.example", "null", None, "http://127.0.0.1.evil.example:{port}", "http://127.0.0.1:1", "http://127.0.0.1",
    "https://127.0.0.1:{port}x", "http://localhost:{port}", "file://",
])  # fmt: skip
def test_incident_r2_another_sites_page_opens_no_socket(web: WebServer, team: Project, origin: str | None) -> None:
    origin = origin and origin.format(port=web.port)
    with pytest.raises(InvalidStatus) as refused:
        web.open(f"/ws/projects/{team.pk}/", cookie_of(user("bob")), origin=origin)
    assert refused.value.response.status_code == 403


def test_incident_s6_foreign_host_gets_400(web: WebServer, team: Project) -> None:
    request = (
        f"GET /ws/projects/{team.pk}/ HTTP/1.1\r\nHost: evil.example\r\nOrigin: http://evil.example\r\n"
        f"Cookie: {cookie_of(user('bob'))}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", web.port)) as raw:
        raw.sendall(request.encode())
        assert raw.recv(4096).startswith(b"HTTP/1.1 400")


def sign_out(person: User, project: Project) -> None:
    for session in Session.objects.all():
        if session.get_decoded().get("_auth_user_id") == str(person.pk):
            session.delete()


def sign_out_everywhere(person: User, project: Project) -> None:
    User.objects.filter(pk=person.pk).update(session_generation=1)


def change_password(person: User, project: Project) -> None:
    person.set_password("another long one")
    person.save()


def deactivate(person: User, project: Project) -> None:
    User.objects.filter(pk=person.pk).update(is_active=False)


def leave(person: User, project: Project) -> None:
    Member.objects.filter(project=project, user=person).delete()


def test_incident_r3_no_socket_outlives_the_right_to_it(web: WebServer, team: Project) -> None:
    revocations = [sign_out, sign_out_everywhere, change_password, deactivate, leave]
    run = make_run(team)
    pages, people = [], []
    for revoke in revocations:
        people.append(make_user(revoke.__name__))
        Member.objects.create(project=team, user=people[-1], role=Role.MEMBER)
        for path in (f"/ws/runs/{run.pk}/", f"/ws/projects/{team.pk}/"):
            pages.append(web.open(path, cookie_of(people[-1])))
            assert hear(pages[-1])["event"] == "hello"
    staying = web.open(f"/ws/runs/{run.pk}/", cookie_of(user("bob")))
    assert hear(staying)["event"] == "hello"
    for revoke, person in zip(revocations, people, strict=True):
        revoke(person, team)
    deadline = time.monotonic() + 5
    for page in pages:
        assert close_code(page, deadline - time.monotonic()) == 4403
    say(f"run:{run.pk}", "still-here")
    assert hear(staying)["event"] == "still-here"
    staying.close()


def test_incident_r4_big_or_compressed_frame_is_closed_without_growing(web: WebServer, team: Project) -> None:
    server = psutil.Process(web.pid)
    path, cookie = f"/ws/projects/{team.pk}/", cookie_of(user("bob"))
    web.open(path, cookie).close()
    before = server.memory_info().rss
    with web.open(path, cookie, compression="deflate") as page:
        # Not agreed to, so there is nothing to inflate.
        assert "Sec-WebSocket-Extensions" not in page.response.headers
        assert hear(page)["event"] == "hello"
        with pytest.raises(ConnectionClosed) as closed:
            page.send("0" * 6_000_000)
            page.recv(timeout=30)
    assert closed.value.rcvd is None or closed.value.rcvd.code == 1009
    with web.open(path, cookie) as page:
        assert hear(page)["event"] == "hello"
        page.send("x" * 65_537)
        assert close_code(page) == 1009
    assert server.memory_info().rss - before < 50_000_000


def test_small_words_of_a_client_are_ignored(web: WebServer, team: Project) -> None:
    with web.open(f"/ws/projects/{team.pk}/", cookie_of(user("bob"))) as page:
        assert hear(page)["event"] == "hello"
        for words in ("{}", b"\x00\xff", '{"event":"refetch"}'):
            page.send(words)
        say(f"project:{team.pk}", "fine")
        assert hear(page)["event"] == "fine"


async def ask_as_everybody(
    web: WebServer, tokens: dict[str, str], requests: int, at_once: int
) -> list[tuple[str, str]]:
    limit = asyncio.Semaphore(at_once)
    async with httpx.AsyncClient(base_url=web.origin, trust_env=False, timeout=60) as client:

        async def ask(name: str) -> tuple[str, str]:
            async with limit:
                answer = await client.get("/api/v1/me", headers={"Authorization": f"Bearer {tokens[name]}"})
            return name, answer.json()["username"]

        names = list(tokens)
        return await asyncio.gather(*(ask(names[i % len(names)]) for i in range(requests)))


@pytest.mark.parametrize("requests", [300, pytest.param(5000, marks=pytest.mark.torture)])
def test_incident_r5_every_answer_goes_to_its_asker(web: WebServer, team: Project, requests: int) -> None:
    tokens = {name: ApiToken.issue(make_user(name), "test")[1] for name in ("dora", "emil", "frida", "gus")}
    answers = asyncio.run(ask_as_everybody(web, tokens, requests=requests, at_once=40))
    assert len(answers) == requests
    assert all(asked == answered for asked, answered in answers)


def connections_of(*applications: str) -> int:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = ANY(%s)",
            [list(applications)],
        )
        return cursor.fetchone()[0]


@pytest.mark.parametrize(("sockets", "requests"), [
    (60, 60),
    pytest.param(500, 200, marks=pytest.mark.torture),
])  # fmt: skip
def test_incident_r6_connections_to_postgres_stay_few(
    web: WebServer, team: Project, sockets: int, requests: int
) -> None:
    cookie, tokens = cookie_of(user("bob")), {"alice": ApiToken.issue(user("alice"), "test")[1]}
    most = 0
    pages = [web.open(f"/ws/projects/{team.pk}/", cookie) for _ in range(sockets)]
    assert all(hear(page)["event"] == "hello" for page in pages)
    asking = threading.Thread(
        target=lambda: asyncio.run(ask_as_everybody(web, tokens, requests=2 * requests, at_once=requests))
    )
    asking.start()
    while asking.is_alive():
        most = max(most, connections_of(APPLICATION, RELAY))
        time.sleep(0.02)
    assert 1 < most <= POOL + 1
    for page in pages:
        page.close()
    deadline = time.monotonic() + 5
    while connections_of(RELAY) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert connections_of(RELAY) == 0
