"""Pages and searches over a million rollouts, over HTTP as a browser asks for them, and the same reads from MLflow and Phoenix.

The data is kept between measurements (`bench.inspect_fill`); filling it takes about an hour the first time at full size.
"""

import contextlib
import http.client
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from html import unescape
from pathlib import Path
from typing import Any

from bench.inspect_fill import BIG, FILLED, PEERS, TEN, fill, open_database, peer_rollouts
from bench.inspect_peers import kept, reads
from bench.peers import PEERS as PEER_PROGRAMS
from bench.peers import clean_environment, free_port
from bench.report import matmul_seconds, middle, say, table
from bench.server import BenchServer

START_SECONDS = 60.0
LATE = {"full": 999_950, "small": 3_950}  # rows before the late page
REPEATS = {"full": 40, "small": 8}
PEER_REPEATS = {"full": 10, "small": 3}
SCAN_REPEATS = {"full": 5, "small": 2}
PAGE_MS, SORT_MS, COUNT_MS, SIGNAL_MS, HITS_MS, SUBSTRING_MS, REGEX_MS = 150, 400, 500, 300, 300, 2000, 4000

# Read of the list of all rollouts of the project; more can be added. {after} and the like are worked out by `places`.
PAGES = {
    "first page": "/projects/{project}/rollouts/",
    "filtered page": "/projects/{project}/rollouts/?filter=reward<0.15+task:addition+length>300",
    "filtered page of one run": "/runs/{big_run}/rollouts/?filter=correct:yes+stop:length",
    "page after row {late:,}": "/projects/{project}/rollouts/?after={late_place}",
    "last page": "/projects/{project}/rollouts/?end=1",
    "by step": "/projects/{project}/rollouts/?sort=-step",
    "by reward": "/projects/{project}/rollouts/?sort=-reward",
    "by advantage": "/projects/{project}/rollouts/?sort=advantage",
    "by length": "/projects/{project}/rollouts/?sort=-length",
    "by age": "/projects/{project}/rollouts/?sort=id",
    "by reward, from 0.1 on": "/projects/{project}/rollouts/?sort=reward&at=0.1",
    "by length of one run, from 600 on": "/runs/{big_run}/rollouts/?sort=length&at=600",
    "a group": "/groups/{group}/",
    "a step": "/runs/{big_run}/steps/train/{step}/",
    "a rollout": "/rollouts/{rollout}/",
    "a preview": "/rollouts/{rollout}/preview/?filter={word}",
}
OTHER_SORTS = (
    "-difficulty",
    "task",
    "-entropy",
    "-logprob",
    "answer",
    "prompt",
    "number",
    "-version",
    "correct",
    "stop",
)
COUNTS = {
    "count of all": "/projects/{project}/rollouts/?part=total",
    "count of a filter": "/projects/{project}/rollouts/?part=total&filter=reward<0.15+length>300",
    "count of a step range": "/projects/{project}/rollouts/?part=total&filter=step:100..200",
}
SIGNAL_VIEWS = ("dead-groups", "passes", "gains", "rewards", "costs", "trust-region", "gradient-budget")
SCANS = {
    "substring": ("'{characters}'", SUBSTRING_MS),
    "in any case": ("'{characters}'i", REGEX_MS),
    "expression": ("/{expression}/", REGEX_MS),
}
SAME_SIZE = ("first page", "by step", "by reward", "by advantage", "by length", "by age")  # also over ten thousand
# What answers as the peers' servers do, with data, and the page that a person sees.
API = "/api/v1"
OUR_READS = {
    "list": (f"{API}/runs/{{peer_run}}/rollouts?limit=100", "/runs/{peer_run}/rollouts/"),
    "range": (
        f"{API}/runs/{{peer_run}}/rollouts?limit=100&filter=reward:{{low}}..{{high}}",
        "/runs/{peer_run}/rollouts/?filter=reward:{low}..{high}",
    ),
    "word": (f"{API}/runs/{{peer_run}}/rollouts?limit=100&filter={{word}}", "/runs/{peer_run}/rollouts/?filter={word}"),
    "one": (f"{API}/rollouts/{{peer_rollout}}", "/rollouts/{peer_rollout}/"),
}
READ_WORDS = {"list": "list of 100", "range": "reward between two values", "word": "rare word", "one": "one rollout"}
WANTED = {
    ("mlflow", "list"): 5, ("mlflow", "word"): 50, ("mlflow", "one"): 10,
    ("phoenix", "list"): 20, ("phoenix", "range"): 100, ("phoenix", "word"): 100, ("phoenix", "one"): 4,
}  # fmt: skip
LOW, HIGH = 1.15, 1.16


@dataclass(frozen=True, slots=True)
class Timed:
    """Milliseconds of each try, sorted."""

    all: Sequence[float]

    @property
    def p95(self) -> float:
        return self.all[min(len(self.all) - 1, int(0.95 * len(self.all)))]

    @property
    def middle(self) -> float:
        return middle(self.all)


class Site:
    """Our web process on the filled database, and one connection to it that is signed in."""

    def __init__(self, home: Path, log: Path) -> None:
        self.port = free_port()
        environment = {
            **clean_environment(), "DATABASE_URL": os.environ["DATABASE_URL"], "RLVIEWER_HOME": str(home),
            "RLVIEWER_SECRET_KEY": os.environ["RLVIEWER_SECRET_KEY"], "RLVIEWER_PORT": str(self.port),
            "REDIS_URL": os.environ.get("REDIS_URL") or "redis://127.0.0.1:1/0",  # only sockets need it
        }  # fmt: skip
        with log.open("ab") as out:
            command = [sys.executable, "-m", "rlviewer.embedded.web"]
            self.process = subprocess.Popen(
                command, env=environment, stdout=out, stderr=out, cwd=Path(__file__).parents[1]
            )
        self.connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        self.cookie, self.token = _signed_in()
        deadline = time.monotonic() + START_SECONDS
        while not self._serves():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the web process does not answer; see {log}")
            time.sleep(0.1)

    def _serves(self) -> bool:
        with contextlib.suppress(OSError):
            self.connection.connect()
            return True
        return False

    def get(self, path: str) -> str:
        """As a browser asks for a page, and as a program asks the API."""
        headers = {"Host": f"127.0.0.1:{self.port}"}
        headers |= {"Authorization": f"Bearer {self.token}"} if path.startswith(API) else {"Cookie": self.cookie}
        if "part=" in path:
            headers["HX-Request"] = "true"
        try:
            self.connection.request("GET", path, headers=headers)
            answer = self.connection.getresponse()
        except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
            # It was idle for longer than the server keeps it, as while a peer answers.
            self.connection.close()
            self.connection.request("GET", path, headers=headers)
            answer = self.connection.getresponse()
        text = answer.read().decode()
        if answer.status != 200:
            raise RuntimeError(f"{path}: {answer.status}")
        return text

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)


def _signed_in() -> tuple[str, str]:
    """The cookie of a session, and a token for the API."""
    from django.conf import settings
    from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
    from django.contrib.sessions.backends.db import SessionStore

    from rlviewer.accounts.models import ApiToken, User

    user, _ = User.objects.get_or_create(username="bench", defaults={"is_superuser": True, "is_staff": True})
    session = SessionStore()
    session[SESSION_KEY] = str(user.pk)
    session[BACKEND_SESSION_KEY] = settings.AUTHENTICATION_BACKENDS[0]
    session[HASH_SESSION_KEY] = user.get_session_auth_hash()
    session.save()
    return f"{settings.SESSION_COOKIE_NAME}={session.session_key}", ApiToken.issue(user, "bench")[1]


def timed(times: int, work: Callable[[], object]) -> Timed:
    for _ in range(2):
        work()
    tries = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        tries.append((time.perf_counter() - start) * 1000)
    return Timed(sorted(tries))


def run(size: str, folder: Path) -> list[str]:
    home = folder / "inspect"
    with BenchServer(home) as server:
        name = f"inspect_{size}"
        import psycopg
        from psycopg import sql

        with psycopg.connect(server.url("rlviewer"), autocommit=True) as database:
            if not database.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name]).fetchone():
                database.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        os.environ["RLVIEWER_SECRET_KEY"] = "only-for-the-benchmark-and-long-enough-to-be-one"  # noqa: S105
        open_database(server.url(name), home)
        fill(size, home)
        site = Site(home, folder / "inspect-web.log")
        try:
            lines = ours(size, site)
            lines += beside(size, site, folder, server)
        finally:
            site.stop()
        lines += ["", f"Yardsticks: count of 1 M rows {server.count_seconds() * 1000:.0f} ms; 4096^3 float32 matmul {matmul_seconds():.2f} s."]  # fmt: skip
        return lines


def places(size: str) -> dict[str, Any]:
    """What stands in braces in the addresses above."""
    from rlviewer.accounts.models import Project
    from rlviewer.runs.models import Group, Rollout, Run
    from rlviewer.search.models import RolloutText

    big, ten, peers = (Project.objects.get(name=name) for name in (BIG, TEN, PEERS))
    runs = list(Run.objects.filter(project=big).order_by("-rollout_count", "pk"))
    fifty = next(run for run in runs if run.rollout_count == 50_000) if size == "full" else runs[2]
    newest = Rollout.objects.filter(run_id__in=[run.pk for run in runs]).order_by("-pk")
    late = newest.values_list("pk", flat=True)[LATE[size] - 1]
    middle_rollout = Rollout.objects.filter(run_id=runs[0].pk).order_by("pk")[runs[0].rollout_count // 2]
    peer_run = Run.objects.get(project=peers)
    text = RolloutText.objects.filter(rollout__run_id=fifty.pk).order_by("-pk")[100].completion
    return {
        "project": big.pk, "ten": ten.pk, "big_run": runs[0].pk, "fifty": fifty.pk, "late": LATE[size],
        "late_place": f"={late}~{late}", "group": middle_rollout.group_id, "rollout": middle_rollout.pk,
        "step": Group.objects.select_related("step").get(pk=middle_rollout.group_id).step.index,
        "word": rare_word(), "characters": text[50:62], "expression": text[50:56] + "[a-z]+ " + "[a-z]{3,} ",
        "peer_run": peer_run.pk, "peer_rollout": Rollout.objects.filter(run_id=peer_run.pk).order_by("pk")[100].pk,
        "low": LOW, "high": HIGH,
    }  # fmt: skip


def rare_word() -> str:
    """A long word that about one rollout in two hundred has."""
    import numpy as np

    from bench.generate import vocabulary

    return vocabulary(np.random.default_rng(0))[-7].decode().strip()


def ours(size: str, site: Site) -> list[str]:
    known, times = places(size), REPEATS[size]
    rows: list[list[str]] = []
    measured: dict[str, Timed] = {}

    def measure(name: str, address: str, bar: float, repeats: int = times) -> None:
        path = address.format(**known)
        measured[name] = timed(repeats, lambda: site.get(path))
        rows.append([name.format(**known), *_cells(measured[name], bar)])
        say(f"{rows[-1][0]}: {measured[name].p95:.0f} ms")

    for name, address in PAGES.items():
        measure(name, address, PAGE_MS)
    for sort in OTHER_SORTS:
        measure(f"by {sort.strip('-')}", f"/projects/{{project}}/rollouts/?sort={sort}", SORT_MS, max(5, times // 4))
    for name, address in COUNTS.items():
        measure(name, address, COUNT_MS)
    for view in SIGNAL_VIEWS:
        measure(f"signal, {view}", f"/runs/{{big_run}}/signal/{view}/", SIGNAL_MS, max(5, times // 4))
    measure("rare word of the project", "/projects/{project}/rollouts/?filter={word}", HITS_MS)
    measure("rare word of a run", "/runs/{fifty}/rollouts/?filter={word}", HITS_MS)
    for name, (form, bar) in SCANS.items():
        text = form.format(**known).replace("+", "%2B").replace(" ", "+")
        measure(
            f"{name}, first hits",
            f"/runs/{known['fifty']}/rollouts/?filter={text.replace('{', '{{').replace('}', '}}')}",
            HITS_MS,
            max(3, times // 4),
        )
        counted = timed(
            SCAN_REPEATS[size],
            partial(_counted, site, f"/runs/{known['fifty']}/rollouts/?part=total&filter={text}"),
        )
        rows.append([f"{name}, every text read", *_cells(counted, bar)])
        say(f"{rows[-1][0]}: {counted.p95:.0f} ms")
    last = measured["last page"].p95 / measured["first page"].p95
    ratios = []
    for name in SAME_SIZE:
        path = PAGES[name].format(**known | {"project": known["ten"]})
        fewer = timed(times, partial(site.get, path))
        ratios.append(
            [
                name,
                f"{measured[name].middle:.0f}",
                f"{fewer.middle:.0f}",
                f"{measured[name].middle / fewer.middle:.2f} x",
            ]
        )
    big, ten = (sum(next(p.runs for p in FILLED[size] if p.project == which)) for which in (BIG, TEN))
    return [
        f"{big:,} rollouts of about 512 tokens in {len(next(p.runs for p in FILLED[size] if p.project == BIG))} runs of one project, asked"
        f" for over HTTP on one connection that is kept, whole pages, {times} times after two that warm up.",
        "",
        *table(["", "p95 (ms)", "median (ms)", "at most (ms)"], rows),
        "",
        f"The last page takes {last:.2f} x the first (at most 1.2 x).",
        "",
        *table(["median (ms)", f"of {big:,}", f"of {ten:,}", "ratio (at most 1.5 x)"], ratios),
    ]  # fmt: skip


def _counted(site: Site, path: str) -> None:
    """Ask for the total until every text was read, as the page does."""
    address = path
    while True:
        found = re.search(r'hx-get="([^"]+)"', site.get(address))
        if not found:
            return
        address = path.partition("?")[0] + unescape(found[1])


def _cells(measured: Timed, bar: float) -> list[str]:
    return [
        f"{measured.p95:.0f}",
        f"{measured.middle:.0f}",
        f"{bar:.0f}" + ("" if measured.p95 <= bar else " **exceeded**"),
    ]


def beside(size: str, site: Site, folder: Path, server: BenchServer) -> list[str]:
    """The same reads of the same rollouts, each peer's in turns with ours."""
    known, rows = places(size), []
    for peer in PEER_PROGRAMS:
        running = kept(peer, size, folder, server)
        try:
            connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=300)
            asked = reads(running, key=100, word=known["word"], low=LOW, high=HIGH)
            for name, read in asked.items():
                if read is None:
                    rows.append([peer.title, READ_WORDS[name], "cannot ask it", *[""] * 4])
                    continue
                data, page = (address.format(**known) for address in OUR_READS[name])
                theirs, mine, shown = _in_turns(
                    PEER_REPEATS[size], partial(read.once, connection), partial(site.get, data), partial(site.get, page)
                )
                wanted, ratio = WANTED[peer.name, name], theirs.middle / mine.middle
                rows.append([
                    peer.title, READ_WORDS[name], f"{theirs.middle:.0f}", f"{mine.middle:.0f}", f"{ratio:.1f} x",
                    f"{wanted} x" + ("" if ratio >= wanted else " **missed**"), f"{shown.middle:.0f}",
                ])  # fmt: skip
                say(
                    f"{peer.title}, {name}: {theirs.middle:.0f} ms against {mine.middle:.0f} ms, page {shown.middle:.0f} ms"
                )
        finally:
            running.kill()
    return [
        "",
        f"The same {peer_rollouts(size):,} rollouts in each peer, asked for as its own pages ask its server, medians in turns. MLflow's is"
        " `traces/search` and `traces/get`, Phoenix' its GraphQL; ours `/api/v1/runs/N/rollouts` and `/api/v1/rollouts/N` with every"
        " token, asked with a token of a person; beside it the whole page that a person sees.",
        "",
        *table(["", "read", "peer (ms)", "rlviewer (ms)", "ratio", "at least", "our page (ms)"], rows),
    ]  # fmt: skip


def _in_turns(times: int, *works: Callable[[], object]) -> list[Timed]:
    tries: list[list[float]] = [[] for _ in works]
    for number in range(-1, times):
        for work, mine in zip(works, tries, strict=True):
            start = time.perf_counter()
            work()
            if number >= 0:
                mine.append((time.perf_counter() - start) * 1000)
    return [Timed(sorted(mine)) for mine in tries]
