"""Prompts of a project, found by the digest of their content; many writers may bring the same one at once."""

import hashlib
from typing import Any

from django.db.backends.utils import CursorWrapper

Groups = list[dict[str, Any]]


def prompt_digest(group: dict[str, Any]) -> bytes:
    """blake2b-128 of generator, text and answer, each with its length, so that no two contents run together."""
    digest = hashlib.blake2b(digest_size=16)
    for part in ((group["generator"] or "").encode(), group["prompt"], group["answer"]):
        digest.update(b"-" if part is None else b"%d:" % len(part))
        digest.update(part or b"")
    return digest.digest()


def upsert_prompts(cursor: CursorWrapper, project_id: int, groups: Groups) -> list[int]:
    """The prompt's id of each group. Race-safe: of several writers one inserts, the others wait and find its row."""
    digests = [prompt_digest(group) for group in groups]
    by_digest = dict(zip(digests, groups, strict=True))
    ids = _find(cursor, project_id, list(by_digest))
    # In the order of digests, so that two writers with the same prompts never wait for each other in a circle.
    if missing := sorted(by_digest.keys() - ids.keys()):
        _insert(cursor, project_id, missing, [by_digest[digest] for digest in missing])
        ids |= _find(cursor, project_id, missing)
    return [ids[digest] for digest in digests]


def _find(cursor: CursorWrapper, project_id: int, digests: list[bytes]) -> dict[bytes, int]:
    cursor.execute(
        "SELECT digest, id FROM runs_prompt WHERE project_id = %s AND digest = ANY(%s)", [project_id, digests]
    )
    return {bytes(digest): prompt_id for digest, prompt_id in cursor.fetchall()}


def _insert(cursor: CursorWrapper, project_id: int, digests: list[bytes], groups: Groups) -> None:
    cursor.execute(
        "INSERT INTO runs_prompt (project_id, digest, generator, parameters, difficulty, text, answer, oracle_trace)"
        " SELECT %s, * FROM unnest(%s::bytea[], %s::text[], %s::jsonb[], %s::float8[], %s::bytea[], %s::bytea[], %s::bytea[])"
        " ON CONFLICT (project_id, digest) DO NOTHING",
        [
            project_id,
            digests,
            [group["generator"] or "" for group in groups],
            [group["parameters"] or "{}" for group in groups],
            [group["difficulty"] for group in groups],
            [group["prompt"] for group in groups],
            [group["answer"] for group in groups],
            [group["oracle_trace"] for group in groups],
        ],
    )


TRACKED = {
    "base_pass_rate": "base_pass_rate",
    "base_samples": "base_samples",
    "tracker_value": "value",
    "tracker_count": "effective_count",
    "tracker_last_seen": "last_seen_step",
    "sampling_weight": "sampling_weight",
    "queue_state": "queue_state",
}


def update_trackers(cursor: CursorWrapper, run_id: int, groups: Groups, prompt_ids: list[int]) -> None:
    """Keep what the run knows of its prompts; groups that bring nothing change nothing. Needs the run's row lock."""
    rows = {
        prompt_id: [group[name] for name in TRACKED]
        for prompt_id, group in zip(prompt_ids, groups, strict=True)
        if any(group[name] is not None for name in TRACKED)
    }
    if not rows:
        return
    columns = list(TRACKED.values())
    kept = ", ".join(f"{name} = coalesce(excluded.{name}, t.{name})" for name in columns if name != "queue_state")
    order = sorted(rows)
    cursor.execute(
        f"INSERT INTO runs_prompttracker AS t (run_id, prompt_id, {', '.join(columns)})"  # noqa: S608 (our own names)
        " SELECT %s, p, a, b, c, d, e, f, coalesce(g, '') FROM unnest(%s::bigint[], %s::float8[], %s::int[], %s::float8[],"
        " %s::float8[], %s::int[], %s::float8[], %s::text[]) AS u(p, a, b, c, d, e, f, g)"
        f" ON CONFLICT (run_id, prompt_id) DO UPDATE SET {kept},"
        " queue_state = CASE excluded.queue_state WHEN '' THEN t.queue_state ELSE excluded.queue_state END",
        [run_id, order, *(list(column) for column in zip(*(rows[prompt_id] for prompt_id in order), strict=True))],
    )
