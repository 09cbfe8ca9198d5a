"""What recording costs: its share of a step, and a step with everything running against the trainer alone, in turns."""

import json
import shutil
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import psycopg

from bench.peers import clean_environment
from bench.report import matmul_seconds, middle, say, table
from bench.stack import CHECKOUT, Stack
from rlviewer.embedded import paths

# The demo's shape, without evaluations and checkpoints in between.
CONFIG = """
name = "bench {number}"
steps = {steps}
seed = {number}
threads = 1
[task]
name = "addition"
params = {{ digits = 2, terms = 2 }}
[sampling]
group_size = 8
prompts_per_step = 32
max_new_tokens = 8
[eval]
every_steps = 0
prompts = 8
samples = 1
[checkpoint]
every_steps = {steps}
"""
SIZES = {"small": (3, 30), "full": (6, 100)}
# Steps that warm caches up.
SKIPPED = 5


def run(size: str, folder: Path) -> list[str]:
    rounds, steps = SIZES[size]
    home = folder / "trainer-home"
    shutil.rmtree(home, ignore_errors=True)
    stack = Stack(home)
    alone: list[float] = []
    together: list[float] = []
    shares: list[float] = []
    all_shares: list[float] = []
    for number in range(rounds):
        alone += alone_round(folder, number, steps)
        stack.start()
        try:
            seconds, recording, writing = round_in_the_stack(stack, number, steps)
        finally:
            stack.stop()
        together += seconds
        shares += [part / whole for part, whole in zip(recording, seconds, strict=True)]
        all_shares += [sum(parts) / whole for *parts, whole in zip(recording, writing, seconds, strict=True)]
        say(
            f"round {number + 1}: a step takes {middle(alone):.3f} s alone, {middle(together):.3f} s with everything running"
        )
    return [
        f"The demo's shape (256 rollouts a step, a model of 1 M parameters), {rounds} rounds of {steps} steps in turns. With everything"
        " running means Postgres, Redis, web, worker, and a page that is open and asks again at every step.",
        "",
        *table(
            ["", "median", "at most"],
            [
                ["recording, share of a step by the trainer's own timer", f"{middle(shares):.2%}", "3 %"],
                ["the same with the write in its own thread, beside the loop", f"{middle(all_shares):.2%}", ""],
                ["step, trainer alone", f"{middle(alone):.3f} s", ""],
                ["step, with everything running", f"{middle(together):.3f} s", ""],
                ["ratio", f"{middle(together) / middle(alone):.3f}", "1.10"],
            ],
        ),
        "",
        f"Yardstick: 4096^3 float32 matmul {matmul_seconds():.2f} s.",
    ]


def alone_round(folder: Path, number: int, steps: int) -> list[float]:
    """Seconds of each step of a trainer that writes its spool and nobody reads it."""
    from training.records import RolloutBatch
    from training.spool import waiting

    run_folder = folder / "trainer-alone"
    shutil.rmtree(run_folder, ignore_errors=True)
    (run_folder / "spool").mkdir(parents=True)
    (run_folder / "config.toml").write_text(CONFIG.format(number=number, steps=steps))
    command = [sys.executable, "-m", "training.run", "--run-dir", str(run_folder), "--run-uid", str(uuid.uuid4())]
    subprocess.run(
        [*command, "--attempt", "1"], cwd=CHECKOUT, env=clean_environment(), check=True, stdout=subprocess.DEVNULL
    )
    batches = [RolloutBatch.from_bytes(path.read_bytes(), where=path.name) for path in waiting(run_folder / "spool")]
    metrics = [
        dict(zip(*batch.metrics.to_pydict().values(), strict=True))
        for batch in batches
        if batch.header.split == "train"
    ]
    return [values["seconds_step"] for values in metrics[SKIPPED:]]


def round_in_the_stack(stack: Stack, number: int, steps: int) -> tuple[list[float], ...]:
    """Seconds of each step, of handing it to the writer and of writing it, of a run that the stack's worker trains while a page watches."""
    config = stack.home / "bench.toml"
    config.write_text(CONFIG.format(number=number, steps=steps))
    environment = {**clean_environment(), "RLVIEWER_HOME": str(stack.home)}
    command = [sys.executable, "manage.py", "launch", str(config), "--project", "bench"]
    told = subprocess.run(command, cwd=CHECKOUT, env=environment, check=True, capture_output=True, text=True).stdout
    run_id = int(told.split()[1])
    with psycopg.connect(paths.postgres_url(stack.home), autocommit=True) as database:
        with OpenPage(stack, run_id, session_of_the_admin(environment)) as page:
            wait_for_end(database, run_id)
        if page.looks == 0:
            raise RuntimeError("the open page never heard of a step, so nothing was measured")
        names = ("seconds_step", "seconds_record", "seconds_write")
        seconds, recording, writing = (points(database, run_id, name) for name in names)
    counted = range(SKIPPED, max(recording) + 1)
    return tuple([values[step] for step in counted] for values in (seconds, recording, writing))


def wait_for_end(database: psycopg.Connection[Any], run_id: int) -> None:
    while True:
        row = database.execute("SELECT state, state_reason FROM runs_run WHERE id = %s", [run_id]).fetchone()
        assert row is not None
        if row[0] == "finished":
            return
        if row[0] in {"failed", "stopped"}:
            raise RuntimeError(f"run {run_id} {row[0]}: {row[1]}")
        time.sleep(0.5)


def points(database: psycopg.Connection[Any], run_id: int, name: str) -> dict[int, float]:
    """Value of each training step. An evaluation before step n has the same number and comes first."""
    rows = database.execute(
        "SELECT steps, values FROM runs_metricchunk WHERE run_id = %s AND name = %s ORDER BY attempt_id, part",
        [run_id, name],
    ).fetchall()
    return {step: value for steps, values in rows for step, value in zip(steps, values, strict=True)}


def session_of_the_admin(environment: dict[str, str]) -> str:
    """A session key of the person that the first start made."""
    code = (
        "from django.test import Client; from rlviewer.accounts.models import User; c = Client();"
        " c.force_login(User.objects.filter(is_superuser=True).first()); print(c.cookies['sessionid'].value)"
    )
    command = [sys.executable, "manage.py", "shell", "--no-imports", "-c", code]
    done = subprocess.run(command, cwd=CHECKOUT, env=environment, check=True, capture_output=True, text=True)
    return done.stdout.split()[-1]


class OpenPage:
    """What a browser with the run's page open does: hears of each step and asks for the page again, at most once a second."""

    def __init__(self, stack: Stack, run_id: int, session: str) -> None:
        self.stack, self.run_id, self.session = stack, run_id, session
        self.looks = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "OpenPage":
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        self._thread.join(10)

    def _watch(self) -> None:
        import httpx
        from websockets.sync.client import connect
        from websockets.typing import Origin

        origin, cookie = f"http://127.0.0.1:{self.stack.port}", {"Cookie": f"sessionid={self.session}"}
        address = f"ws://127.0.0.1:{self.stack.port}/ws/runs/{self.run_id}/"
        with (
            httpx.Client(base_url=origin, headers=cookie, trust_env=False, timeout=30) as browser,
            connect(address, origin=Origin(origin), additional_headers=cookie, proxy=None) as socket,
        ):
            while not self._ended.is_set():
                try:
                    event = json.loads(socket.recv(timeout=1))["event"]
                except TimeoutError:
                    continue
                if event in {"step-stored", "refetch"}:
                    browser.get(f"/runs/{self.run_id}/").raise_for_status()
                    self.looks += 1
                    time.sleep(1)
