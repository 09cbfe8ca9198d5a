"""What the pages are measured on: a million rollouts of many runs, ten thousand of one, and twenty thousand for the peers too.

Filling goes on where it stopped, so that the data is kept between measurements.
"""

import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from bench.generate import steps as generate
from bench.peers.client import ARRAYS
from bench.report import say
from training.records import RolloutBatch

GROUPS, GROUP_SIZE, TOKENS = 25, 8, 512
PER_STEP = GROUPS * GROUP_SIZE
STEPS_AT_ONCE = 50  # written to the spool before they are stored


@dataclass(frozen=True, slots=True)
class Filled:
    """The rollouts of each project: one run each where `runs` names one size."""

    project: str
    runs: tuple[int, ...]  # rollouts, in the order of storing


BIG, TEN, PEERS = "a million", "ten thousand", "beside the peers"
FILLED = {
    "full": (
        Filled(BIG, (500_000, 200_000, *[50_000] * 4, *[10_000] * 10)),
        Filled(TEN, (10_000,)),
        Filled(PEERS, (20_000,)),
    ),
    "small": (Filled(BIG, (2_000, 800, *[400] * 2, *[200] * 2)), Filled(TEN, (400,)), Filled(PEERS, (400,))),
}


def fill(size: str, home: Path) -> None:
    """Everything of this size stored, indexed and analysed. Django is set up on the database to fill."""
    from django.db import connection

    from rlviewer.search.services import index_pending
    from rlviewer.signal.services import compute_pending

    stored = sum(
        _fill_run(home, part.project, number, rollouts, seed=1000 * place + number)
        for place, part in enumerate(FILLED[size])
        for number, rollouts in enumerate(part.runs)
    )
    while done := index_pending(limit=200, seconds=60):
        say(f"texts of {done} more steps indexed")
        stored += done
    while done := compute_pending(limit=200, seconds=60):
        say(f"what {done} more steps taught is worked out")
        stored += done
    if stored:
        with connection.cursor() as cursor:
            cursor.execute("VACUUM (ANALYZE)")


def _fill_run(home: Path, project_name: str, number: int, rollouts: int, *, seed: int) -> int:
    """How many rollouts were stored that were not there yet."""
    from rlviewer.accounts.models import Project
    from rlviewer.ingest.drain import drain_spool
    from rlviewer.runs.models import Attempt, Run, RunState
    from training import spool

    project, _ = Project.objects.get_or_create(name=project_name)
    run, is_new = Run.objects.get_or_create(
        project=project,
        name=f"run {number} of {rollouts:,}",
        defaults={"algorithm": "grpo", "task": "bench", "model": "bench", "seed": seed},
    )
    if is_new:
        Attempt.objects.create(run=run, number=1)
    folder = home / "runs" / str(run.uid)
    (folder / "spool").mkdir(parents=True, exist_ok=True)
    stored = drain_spool(folder).stored
    wanted = rollouts // PER_STEP
    for part in parts_of(run.uid, wanted, seed=seed, first_step=run.steps.count()):
        for batch in part:
            spool.put(folder / "spool", batch)
        stored += drain_spool(folder).stored
        say(f"{project_name}, {run.name}: {(part[-1].header.step + 1) * PER_STEP:,} stored")
    if stored:
        Run.objects.filter(pk=run.pk).update(state=RunState.FINISHED, steps_planned=wanted)
    return stored


def parts_of(run_uid: uuid.UUID | str, steps: int, *, seed: int, first_step: int = 0) -> Iterator[list[RolloutBatch]]:
    """A run's batches, STEPS_AT_ONCE together; the same for the same seed wherever one begins at such a step."""
    for first in range(first_step, steps, STEPS_AT_ONCE):
        count = min(STEPS_AT_ONCE, steps - first)
        shape = {"groups": GROUPS, "group_size": GROUP_SIZE, "tokens": TOKENS, "seed": seed}
        yield list(generate(run_uid, steps=count, varied=True, first_step=first, **shape))


def peer_rollouts(size: str) -> int:
    return sum(next(part.runs for part in FILLED[size] if part.project == PEERS))


def peer_files(size: str, folder: Path) -> Iterator[tuple[Path, int, int]]:
    """The rollouts that the peers hold as well, as Arrow files for their clients: path, first key, count."""
    place = next(place for place, part in enumerate(FILLED[size]) if part.project == PEERS)
    done = 0
    for batches in parts_of(uuid.UUID(int=0), peer_rollouts(size) // PER_STEP, seed=1000 * place):
        tables = []
        for batch in batches:
            prompts = batch.groups["prompt"].combine_chunks().take(batch.rollouts["group"].combine_chunks())
            names = ["completion", "reward", *ARRAYS]
            tables.append(batch.rollouts.select(names).append_column("prompt", prompts))
        table = pa.concat_tables(tables)
        table = table.append_column("key", pa.array(np.arange(done, done + table.num_rows)))
        path = folder / "peer-rollouts.arrow"
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
        yield path, done, table.num_rows
        done += table.num_rows


def open_database(url: str, home: Path) -> None:
    """Django on this database, with its newest tables."""
    os.environ |= {"DATABASE_URL": url, "RLVIEWER_HOME": str(home), "DJANGO_SETTINGS_MODULE": "rlviewer.settings"}
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0)
