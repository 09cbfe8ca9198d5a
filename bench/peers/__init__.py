"""The peers: installed into environments of their own, started on the benchmark's Postgres, fed by their own Python."""

import contextlib
import hashlib
import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import psutil

from bench.report import say

if TYPE_CHECKING:  # beside the trainer Postgres' driver would count as its memory
    from bench.server import BenchServer

HERE = Path(__file__).parent
START_SECONDS = 180.0


@dataclass(frozen=True)
class Peer:
    name: str
    title: str
    package: str
    driver: str  # SQLAlchemy's name of the Postgres driver
    command: tuple[str, ...]
    environment: dict[str, str]
    health: str
    door: str
    count: str = "SELECT count(*) FROM spans"


MLFLOW = Peer(
    name="mlflow",
    title="MLflow 3.18 traces",
    package="mlflow",
    driver="postgresql+psycopg2",
    command=(
        "mlflow", "server", "--backend-store-uri", "{url}", "--artifacts-destination", "{folder}/artifacts",
        "--host", "127.0.0.1", "--port", "{port}", "--workers", "1",
    ),
    environment={
        "MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true",
        # Eight more processes that do nothing here but take the processor from it.
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    },
    health="/health",
    door="OTLP over HTTP, 32 traces a request, protobuf; answered after its commit",
)  # fmt: skip
PHOENIX = Peer(
    name="phoenix",
    title="Phoenix 20.26",
    package="arize-phoenix",
    driver="postgresql",
    command=("phoenix", "serve"),
    environment={
        "PHOENIX_SQL_DATABASE_URL": "{url}", "PHOENIX_PORT": "{port}", "PHOENIX_GRPC_PORT": "{second_port}",
        "PHOENIX_HOST": "127.0.0.1", "PHOENIX_WORKING_DIR": "{folder}", "PHOENIX_TELEMETRY_ENABLED": "false",
        "PHOENIX_ALLOW_EXTERNAL_RESOURCES": "false",
    },
    health="/healthz",
    door="OTLP over HTTP, 32 traces a request, protobuf; answered before its commit, timed until the rows are there",
)  # fmt: skip
PEERS = (MLFLOW, PHOENIX)


def install(peer: Peer, folder: Path) -> Path:
    """The `bin` folder of the peer's environment, made from its pinned list when that has changed."""
    wanted = HERE / f"{peer.name}.txt"
    environment = folder / peer.name / "venv"
    stamp, digest = environment / "installed", hashlib.sha256(wanted.read_bytes()).hexdigest()
    if not stamp.exists() or stamp.read_text() != digest:
        say(f"installing {peer.title} into {environment} (once; it takes minutes)")
        subprocess.run([sys.executable, "-m", "venv", "--clear", environment], check=True)
        pip = [str(environment / "bin" / "pip"), "install", "--quiet", "--no-deps", "-r", str(wanted)]
        subprocess.run(pip, check=True, stderr=subprocess.DEVNULL)
        stamp.write_text(digest)
    return environment / "bin"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@dataclass
class RunningPeer:
    """A peer's server on a fresh database, and the client that feeds it."""

    peer: Peer
    folder: Path
    server: "BenchServer"
    programs: Path
    database: str
    port: int = 0
    start_seconds: list[float] = field(default_factory=list)
    process: subprocess.Popen[bytes] | None = None

    @classmethod
    def launch(cls, peer: Peer, folder: Path, server: "BenchServer") -> "RunningPeer":
        programs = install(peer, folder)
        work = folder / peer.name / "work"
        work.mkdir(exist_ok=True)
        server.fresh_database(peer.name)
        running = cls(peer, work, server, programs, peer.name)
        running.start()
        return running

    def start(self) -> None:
        self.port = free_port()
        values = {
            "url": self.server.url(self.database).replace("postgresql", self.peer.driver, 1),
            "port": str(self.port), "second_port": str(free_port()), "folder": str(self.folder),
        }  # fmt: skip
        changes = {name: text.format(**values) for name, text in self.peer.environment.items()}
        words = [word.format(**values) for word in self.peer.command]
        start = time.perf_counter()
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                [str(self.programs / words[0]), *words[1:]],
                env={**clean_environment(), **changes}, cwd=self.folder, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        while not self._answers():
            if self.process.poll() is not None or time.perf_counter() - start > START_SECONDS:
                raise RuntimeError(f"{self.peer.title} did not start; see {self.folder / 'server.log'}")
            time.sleep(0.05)
        self.start_seconds.append(time.perf_counter() - start)

    def _answers(self) -> bool:
        import http.client

        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", self.peer.health)
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def rows(self) -> int:
        return self.server.value(self.database, self.peer.count)

    def send(self, rollouts: Path, count: int) -> float:
        """Seconds from reading the rollouts' file to the last row in Postgres; starting the client is not counted."""
        before = self.rows()
        with self.client("send", rollouts) as client:
            start = client.go()
            client.answer()
            self.server.wait_for_rows(self.database, self.peer.count, before + count, timeout=600)
            return time.perf_counter() - start

    def send_and_kill(self, rollouts: Path, count: int) -> int:
        """Kill the peer's server right after its last acknowledgement; how many rollouts are missing then."""
        before = self.rows()
        with self.client("send", rollouts) as client:
            client.go()
            client.answer()
            self.kill()
        time.sleep(1.0)
        return before + count - self.rows()

    def read_back(self, rollouts: Path) -> tuple[int, int]:
        """How many arrays and texts come back with an equal digest, and of how many."""
        with self.client("read", rollouts) as client:
            client.go()
            answer = client.answer()
        return answer["equal"], answer["compared"]

    def client(self, what: str, rollouts: Path) -> "Client":
        return Client(
            [
                str(self.programs / "python"),
                str(HERE / "client.py"),
                self.peer.name,
                str(self.port),
                what,
                str(rollouts),
            ]
        )

    def kill(self) -> None:
        if self.process is None:
            return
        leader = psutil.Process(self.process.pid)
        for process in [leader, *leader.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()
        self.process = None


class Client:
    """The peer's client script: says that it is ready, waits for a word, works, answers with one line of JSON."""

    def __init__(self, command: list[str]) -> None:
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=clean_environment()
        )

    def __enter__(self) -> Self:
        self.answer()
        return self

    def go(self) -> float:
        assert self.process.stdin is not None
        start = time.perf_counter()
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return start

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("the peer's client ended; what it said is above")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def __exit__(self, *exception: object) -> None:
        self.process.terminate()
        self.process.wait()


def clean_environment() -> dict[str, str]:
    """Nothing of ours for the peer to stumble over."""
    ours = ("RLVIEWER_", "DATABASE_URL", "REDIS_URL", "DJANGO_", "PYTHON", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}
