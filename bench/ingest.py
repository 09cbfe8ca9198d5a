"""Storing rollouts: speed, size, exactness and safety, ours beside MLflow and Phoenix on the same Postgres."""

import hashlib
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bench.peers import PEERS, RunningPeer
from bench.peers.client import ARRAYS
from bench.report import matmul_seconds, middle, say, table
from bench.server import BenchServer

GROUPS, GROUP_SIZE, TOKENS = 32, 8, 512
OUR_NAME = "rlviewer"
OUR_DATABASE = "bench_rlviewer"
OUR_DOOR = "spool files to committed rows through COPY, decoding and validation included"


@dataclass(frozen=True)
class Size:
    rounds: int
    our_steps: int  # of GROUPS * GROUP_SIZE rollouts, a round
    peer_rollouts: int  # a round
    read_back: int
    kills: int


SIZES = {"small": Size(3, 8, 128, 64, 1), "full": Size(7, 16, 512, 256, 5)}


@dataclass
class Measured:
    name: str
    door: str
    rates: list[float] = field(default_factory=list)
    bytes_each: float = 0.0
    bytes_with_search: float = 0.0
    equal: str = ""
    lost: str = ""


def run(size_name: str, folder: Path) -> list[str]:
    size = SIZES[size_name]
    with BenchServer(folder / "home") as server:
        os.environ["DATABASE_URL"] = server.fresh_database(OUR_DATABASE)
        ours = OurStore(server, folder)
        peers = [RunningPeer.launch(peer, folder, server) for peer in PEERS]
        try:
            return compare(size, server, folder, ours, peers)
        finally:
            for peer in peers:
                peer.kill()


def compare(size: Size, server: BenchServer, folder: Path, ours: "OurStore", peers: list[RunningPeer]) -> list[str]:
    mine = Measured(OUR_NAME, OUR_DOOR)
    theirs = [Measured(p.peer.title, p.peer.door) for p in peers]
    empty = {name: server.used_bytes(name) for name in (OUR_DATABASE, *(p.peer.name for p in peers))}
    sent = size.peer_rollouts * size.rounds
    for number in range(-1, size.rounds):
        # The first round warms everybody up and is not counted as speed.
        file = write_rollouts(folder, seed=number + 1, count=size.peer_rollouts)
        for peer, measured in zip(peers, theirs, strict=True):
            seconds = peer.send(file, size.peer_rollouts)
            measured.rates += [size.peer_rollouts / seconds] if number >= 0 else []
        result = ours.ingest(seed=number + 1, steps=size.our_steps if number >= 0 else 1)
        mine.rates += [result] if number >= 0 else []
        say(
            f"round {number + 1} of {size.rounds}: "
            + ", ".join(f"{m.name} {(m.rates or [0])[-1]:.0f}/s" for m in [mine, *theirs])
        )
    mine.bytes_each = (server.used_bytes(OUR_DATABASE) - empty[OUR_DATABASE]) / ours.stored
    index_seconds = ours.index_texts()
    mine.bytes_with_search = (server.used_bytes(OUR_DATABASE) - empty[OUR_DATABASE]) / ours.stored
    for peer, measured in zip(peers, theirs, strict=True):
        grown = server.used_bytes(peer.peer.name) - empty[peer.peer.name]
        measured.bytes_each = measured.bytes_with_search = grown / (sent + size.peer_rollouts)
    exactness(size, folder, ours, peers, mine, theirs)
    safety(size, folder, ours, peers, mine, theirs)
    return report(size, server, mine, theirs, ours.stored / index_seconds)


def exactness(
    size: Size, folder: Path, ours: "OurStore", peers: list[RunningPeer], mine: Measured, theirs: list[Measured]
) -> None:
    file = write_rollouts(folder, seed=1000, count=size.read_back)
    mine.equal = "{} of {}".format(*ours.read_back(seed=1000))
    for peer, measured in zip(peers, theirs, strict=True):
        peer.send(file, size.read_back)
        measured.equal = "{} of {}".format(*peer.read_back(file))


def safety(
    size: Size, folder: Path, ours: "OurStore", peers: list[RunningPeer], mine: Measured, theirs: list[Measured]
) -> None:
    lost = [ours.store_and_kill(seed=2000 + number) for number in range(size.kills)]
    mine.lost = f"{sum(lost)} of {size.kills * GROUPS * GROUP_SIZE}"
    for peer in peers:
        peer.kill()  # Postgres was killed under them; they start again for their own test
    for peer, measured in zip(peers, theirs, strict=True):
        missing = 0
        for number in range(size.kills):
            peer.start()
            file = write_rollouts(folder, seed=3000 + number, count=size.peer_rollouts)
            missing += peer.send_and_kill(file, size.peer_rollouts)
        measured.lost = f"{missing} of {size.kills * size.peer_rollouts}"


def report(size: Size, server: BenchServer, mine: Measured, theirs: list[Measured], index_rate: float) -> list[str]:
    rows = []
    for measured in [mine, *theirs]:
        spread = f"{min(measured.rates):.0f} to {max(measured.rates):.0f}"
        rows.append([
            measured.name, f"{middle(measured.rates):,.0f} ({spread})", f"{measured.bytes_each:,.0f}",
            f"{measured.bytes_with_search:,.0f}", measured.equal, measured.lost,
        ])  # fmt: skip
    ratios = [
        [
            f"rlviewer against {other.name}",
            f"{middle(mine.rates) / middle(other.rates):.0f} x",
            f"1/{other.bytes_each / mine.bytes_each:.2f}",
            f"1/{other.bytes_with_search / mine.bytes_with_search:.2f}",
        ]
        for other in theirs
    ]
    return [
        f"Rollouts of {TOKENS} tokens with ids, two log-probability arrays, advantages and 2 KB of text, in one PostgreSQL"
        f" {server.version()} with the same settings (fsync on). The same generated rollouts for all, {size.rounds} rounds in"
        f" turns: {size.our_steps * GROUPS * GROUP_SIZE} a round for us, {size.peer_rollouts} for a peer.",
        "",
        *[f"- {m.name}: {m.door}." for m in [mine, *theirs]],
        "- Arrays go to the peers as JSON lists with the nine digits that give a float32 back.",
        "",
        *table(
            ["", "durable rollouts/s, median (range)", "bytes each", "with text search", "equal SHA-256", "lost by kill -9 after the answer"],
            rows,
        ),
        "",
        *table(["ratio", "speed", "disk", "disk with text search"], ratios),
        "",
        f"Text search is indexed after the answer, at {index_rate:,.0f} rollouts/s; the peers search without an index. Killed was"
        " the whole Postgres under us, and the peer's own server for the peers.",
        "",
        f"Yardsticks: count of 1 M rows {server.count_seconds() * 1000:.0f} ms; 4096^3 float32 matmul {matmul_seconds():.2f} s.",
    ]  # fmt: skip


def rollouts_of(seed: int, steps: int = 1) -> Any:
    from bench.generate import steps as generate

    run_uid = "00000000-0000-0000-0000-000000000000"
    return generate(run_uid, steps=steps, groups=GROUPS, group_size=GROUP_SIZE, tokens=TOKENS, seed=seed)


def write_rollouts(folder: Path, *, seed: int, count: int) -> Path:
    """An Arrow file of the first `count` rollouts of a seed, for the peers' clients."""
    parts = []
    for batch in rollouts_of(seed, -(-count // (GROUPS * GROUP_SIZE))):
        prompts = batch.groups["prompt"].combine_chunks().take(batch.rollouts["group"].combine_chunks())
        names = ["completion", "reward", *ARRAYS]
        parts.append(batch.rollouts.select(names).append_column("prompt", prompts))
    rollouts = pa.concat_tables(parts).slice(0, count)
    rollouts = rollouts.append_column("key", pa.array(np.arange(count) + seed * 1_000_000))
    path = folder / "rollouts.arrow"
    with pa.ipc.new_file(path, rollouts.schema) as writer:
        writer.write_table(rollouts)
    return path


class OurStore:
    """Our own side, in this process, on a migrated database of the benchmark's server."""

    def __init__(self, server: BenchServer, folder: Path) -> None:
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "rlviewer.settings")
        os.environ["RLVIEWER_HOME"] = str(folder / "home")
        import django
        from django.core.management import call_command

        django.setup()
        call_command("migrate", verbosity=0)
        from rlviewer.accounts.models import Project

        self.server = server
        self.home = folder / "home"
        self.project = Project.objects.create(name="bench")
        self.stored = 0

    def ingest(self, *, seed: int, steps: int) -> float:
        """Durable rollouts a second."""
        from bench.ingest_ours import measure

        result = measure(
            self.project, self.home, steps=steps, groups=GROUPS, group_size=GROUP_SIZE, tokens=TOKENS, seed=seed
        )
        self.stored += result.rollouts
        self.last_run = result.run_id
        return result.per_second

    def index_texts(self) -> float:
        from rlviewer.search.services import index_pending

        start = time.perf_counter()
        while index_pending():
            pass
        return time.perf_counter() - start

    def read_back(self, *, seed: int) -> tuple[int, int]:
        """Every array and text of one step through the API's Arrow door, against what was generated."""
        from rlviewer.runs.api import read
        from rlviewer.runs.api_schemas import RolloutOut
        from rlviewer.runs.arrow import rollout_stream
        from rlviewer.runs.models import Rollout

        self.ingest(seed=seed, steps=1)
        (batch,) = rollouts_of(seed)
        stored = Rollout.objects.filter(run_id=self.last_run).order_by("pk")
        rows = list(read(stored, RolloutOut, "chunk_id", "position", "group_id"))
        body, _ = rollout_stream(rows, max_bytes=2**40)
        got = pa.ipc.open_stream(body).read_all()
        prompts = batch.groups["prompt"].combine_chunks().take(batch.rollouts["group"].combine_chunks())
        wanted = batch.rollouts.append_column("prompt", prompts)
        names = ["prompt", "completion", *ARRAYS]
        pairs = [
            (digest(a, name), digest(b, name)) for name in names for a, b in zip(wanted[name], got[name], strict=True)
        ]
        return sum(a == b for a, b in pairs), len(pairs)

    def store_and_kill(self, *, seed: int) -> int:
        """Kill Postgres as soon as the store says that it is done; how many rollouts are missing after its recovery."""
        from rlviewer.embedded.database import disconnect
        from rlviewer.runs.models import Rollout

        self.ingest(seed=seed, steps=1)
        self.server.kill()
        disconnect()
        return GROUPS * GROUP_SIZE - Rollout.objects.filter(run_id=self.last_run).count()


def digest(value: Any, name: str) -> str:
    data = np.array(value.as_py(), ARRAYS[name]).tobytes() if name in ARRAYS else value.as_py()
    return hashlib.sha256(data).hexdigest()
