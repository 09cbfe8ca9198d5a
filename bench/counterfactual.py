"""How long a worker takes to say what other algorithms would have made of a stored step."""

import threading
import time
import uuid
from pathlib import Path
from typing import Any

import psutil

from bench.generate import steps
from bench.inspect_fill import open_database
from bench.report import matmul_seconds, middle, say, table
from bench.server import BenchServer

RECIPES = ("dr_grpo", "opo", "maxrl", "gspo", "gspo_token", "cispo", "gmpo", "sapo", "dppo", "nsr", "w_reinforce")
ROLLOUTS, GROUP_SIZE = 512, 8
TOKENS = {"full": 1024, "small": 256}
ROUNDS = {"full": 5, "small": 3}
WARM_SECONDS, COLD_SECONDS = 3.0, 6.0


def run(size: str, folder: Path) -> list[str]:
    with BenchServer(folder / "counterfactual") as server:
        open_database(server.fresh_database("counterfactual"), server.home)
        seconds, counted = _measure(TOKENS[size], ROUNDS[size])
    rows = [
        [title, f"{middle(seconds[name]):.2f}", f"{max(seconds[name]):.2f}", limit]
        for name, title, limit in (
            ("cold", "no process yet: it starts, reads the step, 12 recipes", f"{COLD_SECONDS:g}"),
            ("warm", "a warm process, another step: 12 recipes", f"{WARM_SECONDS:g}"),
            ("moved", "the same step, one constant moved", ""),
        )
    ]
    return [
        f"One step of {ROLLOUTS} rollouts x {TOKENS[size]:,} tokens ({counted:,} counted) under the run's own recipe and {len(RECIPES)} others, from"
        " taking the questions to the last answer in the database: read from Postgres, unpacked, sent to the process, advantages, token"
        f" weights, clip and gradient, measures, stored. {ROUNDS[size]} rounds; every part of every answer exact. Load {psutil.getloadavg()[0]:.1f}"
        f" on {psutil.cpu_count()} cores as it began to be written.",
        "",
        *table(["what", "median (s)", "longest (s)", "at most (s)"], rows),
        "",
        f"Yardstick: 4096^3 float32 matmul {matmul_seconds():.2f} s.",
    ]  # fmt: skip


def _measure(tokens: int, rounds: int) -> tuple[dict[str, list[float]], int]:
    from rlviewer.accounts.models import Project, User
    from rlviewer.counterfactual import jobs, worker
    from rlviewer.counterfactual.jobs import Question
    from rlviewer.counterfactual.models import Replay
    from rlviewer.counterfactual.replayer import Replayer
    from rlviewer.ingest.services import store_batch
    from rlviewer.runs.models import Attempt, Run, Step
    from training.config import RunConfig

    person = User.objects.create(username="bench")
    config = RunConfig.from_dict({"sampling": {"group_size": GROUP_SIZE, "prompts_per_step": ROLLOUTS // GROUP_SIZE}})
    made = Run.objects.create(
        project=Project.objects.create(name="bench"), uid=uuid.uuid4(), algorithm="grpo", config_toml=config.to_toml()
    )
    Attempt.objects.create(run=made, number=1)
    for batch in steps(made.uid, steps=2 * rounds, groups=ROLLOUTS // GROUP_SIZE, group_size=GROUP_SIZE, tokens=tokens):
        store_batch(batch, source="bench")
    stored = iter(Step.objects.filter(run=made).order_by("index"))
    seconds: dict[str, list[float]] = {"cold": [], "warm": [], "moved": []}

    def timed(name: str, step: Any, replayer: Any, questions: list[Question], begun: float) -> None:
        jobs.ask(person, step, questions)
        worker.do(jobs.take(), replayer, threading.Event())
        seconds[name].append(time.perf_counter() - begun)
        say(f"{name} {seconds[name][-1]:.2f} s")

    everything = [Question(), *map(Question, RECIPES)]
    for _ in range(rounds):
        begun = time.perf_counter()
        with Replayer() as replayer:
            timed("cold", next(stored), replayer, everything, begun)
            step = next(stored)
            timed("warm", step, replayer, everything, time.perf_counter())
            timed("moved", step, replayer, [Question("gspo", {"clip_low": 0.01})], time.perf_counter())
    for row in Replay.objects.all():
        if row.error or {kind for kind, _ in row.labels.values()} != {"exact"}:
            raise SystemExit(f"{row.recipe} of step {row.step_id} was not worked out: {row.error} {row.labels}")
    return seconds, int(Replay.objects.earliest("pk").measures["counted_tokens"])
