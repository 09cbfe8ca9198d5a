"""Proof that the store is whole: what every table says of the others, and every chunk's checksum."""

import hashlib
import math
from collections.abc import Iterator
from typing import Any

from django.db import connection

from rlviewer.ingest.statistics import step_statistics
from rlviewer.ingest.steps import SUMMARY, stored_scores
from rlviewer.runs.models import Group, Rollout, Run, Step, TokenChunk
from rlviewer.runs.tokens import ChunkError, unpack_chunk

# A question about all rows, and what each row of its answer means. Rows answered are problems.
QUESTIONS = {
    "rollout {} points at no chunk": """
        SELECT r.id FROM runs_rollout r LEFT JOIN runs_tokenchunk c ON c.id = r.chunk_id AND c.group_id = r.group_id
        WHERE c.id IS NULL""",
    "rollout {}: its run or step differs from its group's": """
        SELECT r.id FROM runs_rollout r JOIN runs_group g ON g.id = r.group_id
        WHERE r.step_id <> g.step_id OR r.run_id <> g.run_id""",
    "group {}: its run differs from its step's": """
        SELECT g.id FROM runs_group g JOIN runs_step s ON s.id = g.step_id WHERE g.run_id <> s.run_id""",
    "step {}: its run differs from its attempt's": """
        SELECT s.id FROM runs_step s JOIN runs_attempt a ON a.id = s.attempt_id WHERE a.run_id <> s.run_id""",
    "chunk {} says it holds {} rollouts, {} rows point at it": """
        SELECT c.id, c.rollout_count, count(r.id) FROM runs_tokenchunk c LEFT JOIN runs_rollout r ON r.chunk_id = c.id
        WHERE c.kind = 'sampled' GROUP BY c.id HAVING c.rollout_count <> count(r.id)""",
    "chunk {}: two rollouts share a position, or one lies outside": """
        SELECT c.id FROM runs_rollout r JOIN runs_tokenchunk c ON c.id = r.chunk_id GROUP BY c.id
        HAVING count(DISTINCT r.position) <> count(*) OR min(r.position) < 0 OR max(r.position) >= c.rollout_count""",
    "reward parts of rollout {} belong to no rollout": """
        SELECT DISTINCT p.rollout_id FROM runs_rewardpart p LEFT JOIN runs_rollout r ON r.id = p.rollout_id
        WHERE r.id IS NULL""",
    "rollout {}: a reward part lies outside its tokens": """
        SELECT DISTINCT r.id FROM runs_rewardpart p JOIN runs_rollout r ON r.id = p.rollout_id
        WHERE p.token_start < 0 OR p.token_end < p.token_start OR p.token_end > r.length_tokens""",
    "attempt {}, {} step {}: the ledger says {} rollouts were stored, {} are": """
        SELECT attempt_id, split, step_index, coalesce(b.stored, 0), coalesce(s.stored, 0) FROM
            (SELECT attempt_id, split, step_index, sum(stored) AS stored FROM ingest_batch GROUP BY 1, 2, 3) b
        FULL JOIN
            (SELECT s.attempt_id, s.split, s.index AS step_index, count(r.id) AS stored FROM runs_step s
             LEFT JOIN runs_group g ON g.step_id = s.id LEFT JOIN runs_rollout r ON r.group_id = g.id GROUP BY 1, 2, 3) s
        USING (attempt_id, split, step_index) WHERE coalesce(b.stored, 0) <> coalesce(s.stored, 0)""",
    "batch {}: the ledger says {} rows were refused, {} are kept": """
        SELECT b.id, b.refused, count(r.id) FROM ingest_batch b LEFT JOIN ingest_refusedrow r ON r.batch_id = b.id
        GROUP BY b.id HAVING b.refused <> count(r.id)""",
    "batch {} is both stored and parked": "SELECT b.id FROM ingest_batch b JOIN ingest_parkedbatch p ON p.id = b.id",
    "run {}, {} step {}: the newest attempt that stored it is not the current one": """
        SELECT s.run_id, s.split, s.index FROM runs_step s JOIN runs_attempt a ON a.id = s.attempt_id
        GROUP BY 1, 2, 3 HAVING count(*) FILTER (WHERE s.is_current) <> 1
            OR max(a.number) FILTER (WHERE s.is_current) <> max(a.number)""",
    "run {}, metric {}: its parts have gaps, or steps and values of unequal number": """
        SELECT run_id, name FROM runs_metricchunk GROUP BY run_id, name, attempt_id
        HAVING max(part) <> count(*) - 1 OR bool_or(cardinality(steps) <> cardinality(values))""",
    "text of rollout {} belongs to no rollout": """
        SELECT t.rollout_id FROM search_rollouttext t LEFT JOIN runs_rollout r ON r.id = t.rollout_id WHERE r.id IS NULL""",
}


def problems() -> Iterator[str]:
    """Everything that is wrong, one line each; nothing when the store is whole."""
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL statement_timeout = 0")
        for text, question in QUESTIONS.items():
            cursor.execute(question)
            for row in cursor.fetchall():
                yield text.format(*row)
    for step in Step.objects.order_by("id").iterator():
        yield from _step_problems(step)
    for run in Run.objects.order_by("id"):
        yield from _run_problems(run)
    for chunk in TokenChunk.objects.order_by("id").iterator(chunk_size=32):
        yield from _chunk_problems(chunk)


def _step_problems(step: Step) -> Iterator[str]:
    of, _ = stored_scores(Rollout.objects.filter(group__step=step))
    causes = list(Group.objects.filter(step=step).values_list("dead_cause", flat=True))
    for name, counted in step_statistics(of, causes).items():
        if not _agree(getattr(step, name), counted):
            yield f"step {step.pk}: {name} is {getattr(step, name)}, its rollouts give {counted}"


def _run_problems(run: Run) -> Iterator[str]:
    with connection.cursor() as cursor:
        cursor.execute(SUMMARY, {"run": run.pk})
        assert cursor.description is not None
        summary = dict(zip([column.name for column in cursor.description], cursor.fetchone(), strict=True))
        cursor.execute(
            "SELECT coalesce(sum(rollout_count), 0), coalesce(sum(tokens_sampled), 0) FROM runs_step WHERE run_id = %s",
            [run.pk],
        )
        summary["rollout_count"], summary["token_count"] = map(int, cursor.fetchone())
    for name, counted in summary.items():
        if not _agree(getattr(run, name), counted):
            yield f"run {run.pk}: {name} is {getattr(run, name)}, its steps give {counted}"


def _agree(stored: Any, counted: Any) -> bool:
    """Equal, but for the rounding of sums in another order."""
    if isinstance(stored, float) and isinstance(counted, float):
        both_nan = math.isnan(stored) and math.isnan(counted)
        return both_nan or math.isclose(stored, counted, rel_tol=1e-9, abs_tol=1e-12)
    return bool(stored == counted)


def _chunk_problems(chunk: TokenChunk) -> Iterator[str]:
    payload = bytes(chunk.payload)
    if hashlib.sha256(payload).digest() != bytes(chunk.sha256):
        yield f"chunk {chunk.pk}: its bytes are not those that were stored (SHA-256 differs)"
        return
    try:
        held = unpack_chunk(payload).rollouts
    except ChunkError as error:
        yield f"chunk {chunk.pk}: {error}"
        return
    if len(held) != chunk.rollout_count:
        yield f"chunk {chunk.pk} holds {len(held)} rollouts, its row says {chunk.rollout_count}"
        return
    rows = Rollout.objects.filter(group=chunk.group_id, chunk=chunk.pk)
    for rollout_id, position, length in rows.values_list("id", "position", "length_tokens"):
        tokens = max((len(column) for column in held[position].columns.values()), default=0)
        if tokens != length:
            yield f"rollout {rollout_id} has {tokens} tokens in its chunk, {length} in its row"
