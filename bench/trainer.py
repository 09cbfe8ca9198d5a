"""What recording costs: its share of a step, steps with it against steps without, and everything running against the trainer alone."""

import json
import shutil
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import psycopg

from bench.peers import clean_environment
from bench.report import best_of, matmul_seconds, middle, say, table
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
# Rounds, steps of each, and pairs of blocks with and without recording.
SIZES = {"small": (3, 30, 20), "full": (6, 100, 60)}
# Steps that warm caches up.
SKIPPED = 5
BLOCK_STEPS = 5

TIMERS = ("seconds_step", "seconds_record", "seconds_write", "seconds_write_cpu")
Steps = list[dict[str, float]]


def run(size: str, folder: Path) -> list[str]:
    rounds, steps, pairs = SIZES[size]
    home = folder / "trainer-home"
    shutil.rmtree(home, ignore_errors=True)
    stack = Stack(home)
    alone: Steps = []
    together: Steps = []
    for number in range(rounds):
        alone += alone_round(folder, number, steps)
        stack.start()
        try:
            together += round_in_the_stack(stack, number, steps)
        finally:
            stack.stop()
        say(
            f"round {number + 1}: a step takes {step_seconds(alone)} alone, {step_seconds(together)} with everything running"
        )
    ratios = ratios_of_recording(folder, pairs, steps)
    say(f"a step with recording takes {middle(ratios):.3f} of one without")
    slowdown = middle([step["seconds_step"] for step in together]) / middle([step["seconds_step"] for step in alone])
    return [
        f"The demo's shape (256 rollouts a step, a model of 1 M parameters), {rounds} rounds of {steps} steps in turns. With everything"
        " running means Postgres, Redis, web, worker, and a page that is open and asks again at every step. Medians. The"
        " trainer's own timer counts what recording takes from the step: what holds the loop up, waits and flushes included, and the"
        " processor time of the writer's thread beside it. While that thread waits for the disk, the loop goes on; the time is given,"
        " without a bar. The last row is a clock over whole blocks of steps and misses nothing.",
        "",
        *table(
            ["", "trainer alone", "everything running", "at most"],
            [
                [
                    "recording, share of a step by the trainer's own timer",
                    *shares(alone, together, recording),
                    "3 %",
                ],
                ["of it, holding the loop up", *shares(alone, together, holding), ""],
                ["of it, the writer's processor time", *shares(alone, together, computing), ""],
                [
                    "beside it, the writer waiting for the disk and its turn",
                    *shares(alone, together, waiting_beside),
                    "",
                ],
                ["step", step_seconds(alone), step_seconds(together), ""],
                ["step, against the trainer alone", "1", f"{slowdown:.3f}", "1.10"],
                [
                    f"step with recording, against one without ({pairs} blocks of {BLOCK_STEPS} each, in turns)",
                    f"{middle(ratios):.3f}",
                    "",
                    "",
                ],
            ],
        ),
        "",
        f"Yardsticks: 4096^3 float32 matmul {matmul_seconds():.2f} s; a file of 48 kB written and fsynced {fsync_seconds(folder) * 1000:.1f} ms.",
    ]


def recording(step: dict[str, float]) -> float:
    return step["seconds_record"]


def holding(step: dict[str, float]) -> float:
    return step["seconds_record"] - step["seconds_write_cpu"]


def computing(step: dict[str, float]) -> float:
    return step["seconds_write_cpu"]


def waiting_beside(step: dict[str, float]) -> float:
    return step["seconds_write"] - step["seconds_write_cpu"]


def shares(alone: Steps, together: Steps, part: Callable[[dict[str, float]], float]) -> list[str]:
    return [f"{middle([part(step) / step['seconds_step'] for step in steps]):.2%}" for steps in (alone, together)]


def step_seconds(steps: Steps) -> str:
    return f"{middle([step['seconds_step'] for step in steps]):.3f} s"


def fsync_seconds(folder: Path) -> float:
    from training.spool import write_bytes

    return best_of(20, lambda: write_bytes(folder / "fsync", bytes(48_000)))


def make_run_folder(folder: Path, number: int, steps: int) -> Path:
    run_folder = folder / "trainer-alone"
    shutil.rmtree(run_folder, ignore_errors=True)
    (run_folder / "spool").mkdir(parents=True)
    (run_folder / "config.toml").write_text(CONFIG.format(number=number, steps=steps))
    return run_folder


def alone_round(folder: Path, number: int, steps: int) -> Steps:
    """The steps of a trainer that writes its spool and nobody reads it."""
    from training.records import RolloutBatch
    from training.spool import waiting

    run_folder = make_run_folder(folder, number, steps)
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
    return metrics[SKIPPED:]


def ratios_of_recording(folder: Path, pairs: int, steps: int) -> list[float]:
    """Seconds of a block of steps that are recorded by those of a block beside it that are not, of one trainer."""
    from training import run as trainer
    from training.attempt import Attempt
    from training.config import RunConfig

    run_folder = make_run_folder(folder, 0, steps)
    config = RunConfig.from_file(run_folder / "config.toml")
    run = trainer.prepare(config, Attempt(run_folder, 1), str(uuid.uuid4()))
    recorder = run.recorder
    assert recorder is not None, "one process records itself"
    progress = mock.Mock()  # draws nothing
    done = 0

    def block() -> float:
        nonlocal done
        started = time.perf_counter()
        for _ in range(BLOCK_STEPS):
            trainer.train_step(run, done, progress)
            done += 1
        recorder.flush()
        return time.perf_counter() - started

    def unrecorded_block() -> float:
        with mock.patch.object(trainer, "record_step"):
            return block()

    block()
    ratios = []
    for number in range(pairs):
        if number % 2:
            recorded, unrecorded = block(), unrecorded_block()
        else:
            unrecorded, recorded = unrecorded_block(), block()
        ratios.append(recorded / unrecorded)
    recorder.close()
    return ratios


def round_in_the_stack(stack: Stack, number: int, steps: int) -> Steps:
    """The timers of each step of a run that the stack's worker trains while a page watches."""
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
        timers = {name: points(database, run_id, name) for name in TIMERS}
    counted = range(SKIPPED, max(timers["seconds_record"]) + 1)
    return [{name: values[step] for name, values in timers.items()} for step in counted]


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
