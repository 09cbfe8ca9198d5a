"""The same reads from the peers: what their own pages ask their servers for, over HTTP, on the same rollouts."""

import contextlib
import http.client
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from bench.inspect_fill import peer_files, peer_rollouts
from bench.peers import MLFLOW, PHOENIX, Peer, RunningPeer, install
from bench.peers.client import PROJECT, trace_id
from bench.report import say
from bench.server import BenchServer

SPANS = """query ($id: ID!, $filter: String) { node(id: $id) { ... on Project { spans(first: 100, filterCondition: $filter,
  sort: {col: startTime, dir: desc}) { edges { span: node { id name statusCode startTime latencyMs parentId spanId
  trace { traceId } input { value: truncatedValue } output { value: truncatedValue } } } pageInfo { hasNextPage endCursor } } } } }"""
ONE = """query ($id: ID!) { node(id: $id) { ... on Span { id spanId name startTime endTime statusCode attributes
  input { value mimeType } output { value mimeType } } } }"""


@dataclass(frozen=True, slots=True)
class Read:
    """One request; `hits` counts in its answer what it should have found, None where the peer cannot ask it."""

    method: str
    path: str
    body: bytes
    hits: Callable[[Any], int]

    def once(self, connection: http.client.HTTPConnection) -> int:
        return self.hits(self.fetch(connection))

    def fetch(self, connection: http.client.HTTPConnection) -> Any:
        connection.request(self.method, self.path, self.body or None, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        data = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{self.path}: {answer.status}: {data[:500]!r}")
        return json.loads(data)


def kept(peer: Peer, size: str, folder: Path, server: BenchServer) -> RunningPeer:
    """The peer on a database that holds all rollouts of this size; sends those that are missing."""
    work = folder / peer.name / f"inspect-{size}"
    programs = install(peer, folder)
    work.mkdir(parents=True, exist_ok=True)
    name = f"{peer.name}_{size}"
    with psycopg.connect(server.url("rlviewer"), autocommit=True) as database:
        if not database.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name]).fetchone():
            database.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    running = RunningPeer(peer, work, server, programs, name)
    running.start()
    for file, first, count in peer_files(size, folder):
        have = running.rows()
        if first + count <= have:
            continue
        if first < have:
            raise RuntimeError(f"{peer.title} holds {have} rollouts, a part of a file: drop the database {name}")
        running.send(file, count)
        say(f"{peer.title}: {first + count:,} of {peer_rollouts(size):,} stored")
    with psycopg.connect(server.url(name), autocommit=True) as database:
        database.execute("ANALYZE")
    return running


def reads(peer: RunningPeer, *, key: int, word: str, low: float, high: float) -> dict[str, Read | None]:
    """What each measure asks of this peer; None where it cannot ask it."""
    return {MLFLOW.name: _mlflow_reads, PHOENIX.name: _phoenix_reads}[peer.peer.name](peer, key, word, low, high)


def _mlflow_reads(peer: RunningPeer, key: int, word: str, low: float, high: float) -> dict[str, Read | None]:
    def search(condition: str) -> Read:
        body = {
            "locations": [{"type": "MLFLOW_EXPERIMENT", "mlflow_experiment": {"experiment_id": "0"}}],
            "max_results": 100, "order_by": ["timestamp_ms DESC"], "filter": condition,
        }  # fmt: skip
        found: Callable[[Any], int] = lambda answer: len(answer.get("traces", []))  # noqa: E731
        return Read("POST", "/ajax-api/3.0/mlflow/traces/search", json.dumps(body).encode(), found)

    one = f"/ajax-api/3.0/mlflow/traces/get?trace_id=tr-{trace_id(key).hex()}"
    return {
        "list": search(""),
        "range": None,  # it compares attributes as texts only
        "word": search(f"span.content LIKE '%{word}%'"),
        "one": Read("GET", one, b"", lambda answer: len(answer["trace"]["spans"])),
    }


def _phoenix_reads(peer: RunningPeer, key: int, word: str, low: float, high: float) -> dict[str, Read | None]:
    def graphql(query: str, hits: Callable[[Any], int], **variables: Any) -> Read:
        body = json.dumps({"query": query, "variables": variables}).encode()
        return Read("POST", "/graphql", body, hits)

    def answer(read: Read) -> Any:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", peer.port, timeout=120)) as connection:
            return read.fetch(connection)

    projects = answer(graphql("query { projects { edges { node { id name } } } }", len))
    nodes = [edge["node"] for edge in projects["data"]["projects"]["edges"]]
    project = next(node["id"] for node in nodes if node["name"] == PROJECT)
    spans: Callable[[Any], int] = lambda data: len(data["data"]["node"]["spans"]["edges"])  # noqa: E731
    listed = graphql(SPANS, spans, id=project)
    span = answer(listed)["data"]["node"]["spans"]["edges"][50]["span"]["id"]
    return {
        "list": listed,
        "range": graphql(
            SPANS, spans, id=project, filter=f"{low} <= attributes['reward'] and attributes['reward'] <= {high}"
        ),
        "word": graphql(SPANS, spans, id=project, filter=f"'{word}' in output.value"),
        "one": graphql(ONE, lambda data: int(bool(data["data"]["node"]["attributes"])), id=span),
    }
