"""Durable ingest of our own store: spool files to committed rows, decoding and validation included."""

import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from django.db import connection

from bench.generate import steps as generate
from rlviewer.accounts.models import Project
from rlviewer.ingest.drain import drain_spool
from rlviewer.runs.models import Attempt, Run
from training import spool

TABLES = {
    "chunks": "runs_tokenchunk",
    "rollouts": "runs_rollout",
    "reward_parts": "runs_rewardpart",
    "groups": "runs_group",
    "prompts": "runs_prompt",
    "metrics": "runs_metricchunk",
    "ledger": "ingest_batch",
    "texts": "search_rollouttext",
}


@dataclass(frozen=True, slots=True)
class IngestResult:
    run_id: int
    rollouts: int
    seconds: float
    bytes_by_table: dict[str, int]  # growth, indexes and TOAST included

    @property
    def per_second(self) -> float:
        return self.rollouts / self.seconds


def table_bytes() -> dict[str, int]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT " + ", ".join(f"pg_total_relation_size('{table}')" for table in TABLES.values()))
        return dict(zip(TABLES, cursor.fetchone(), strict=True))


def measure(
    project: Project, home: Path, *, steps: int, groups: int = 32, group_size: int = 8, tokens: int = 512, seed: int = 0
) -> IngestResult:
    """Write `steps` batch files of a new run into `home`, then time their way into the database."""
    run = Run.objects.create(project=project, name=f"bench {seed}", algorithm="grpo", task="bench", model="bench")
    Attempt.objects.create(run=run, number=1)
    folder = home / "runs" / str(run.uid)
    (folder / "spool").mkdir(parents=True)
    for batch in generate(run.uid, steps=steps, groups=groups, group_size=group_size, tokens=tokens, seed=seed):
        spool.put(folder / "spool", batch)
    before = table_bytes()
    start = time.perf_counter()
    result = drain_spool(folder)
    seconds = time.perf_counter() - start
    after = table_bytes()
    shutil.rmtree(folder)
    if result.stored != steps * groups * group_size:
        raise RuntimeError(f"stored {result.stored} of {steps * groups * group_size} rollouts: {result}")
    return IngestResult(run.pk, result.stored, seconds, {name: after[name] - before[name] for name in TABLES})
