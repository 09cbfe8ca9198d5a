"""The full-text index of completions, built after the rollouts are stored; `search.compile` asks it."""

import logging
import time

from django.db import OperationalError, connection, transaction
from django.db.backends.utils import CursorWrapper
from psycopg.errors import ProgramLimitExceeded

from rlviewer.lib.text import text_from_bytes
from rlviewer.runs.models import Prompt, Rollout, TokenChunk
from rlviewer.runs.tokens import unpack_chunk
from rlviewer.search.lag import PENDING

logger = logging.getLogger(__name__)

# Postgres keeps at most 1 MB of words a text. Ordinary writing of this many characters stays far below; text that does
# not (long hyphenated words of rare characters) is halved until it fits.
TEXT_CHARS = 200_000
ROLLOUT_TEXTS = "INSERT INTO search_rollouttext (rollout_id, completion) SELECT * FROM unnest(%s::bigint[], %s::text[])"
# Another worker may store a prompt of its step at the same moment.
PROMPT_TEXTS = "INSERT INTO search_prompttext (prompt_id, text) SELECT * FROM unnest(%s::bigint[], %s::text[]) ON CONFLICT DO NOTHING"


def index_pending(limit: int = 50, *, seconds: float = 5.0) -> int:
    """Index the texts of up to `limit` steps, oldest first, a transaction each; returns how many were done.

    No step is begun after `seconds`, so that a caller with other duties gets back to them.
    """
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT s.id {PENDING} ORDER BY s.id LIMIT %s", [limit])
        step_ids = [row[0] for row in cursor.fetchall()]
    deadline, done = time.monotonic() + seconds, 0
    for step_id in step_ids:
        if time.monotonic() > deadline:
            break
        done += _index_step(step_id)
    return done


def _index_step(step_id: int) -> bool:
    with transaction.atomic(), connection.cursor() as cursor:
        # Two workers may sweep at once; the one that comes second leaves the step to the first.
        cursor.execute("SELECT id, rollout_count FROM runs_step WHERE id = %s FOR KEY SHARE", [step_id])
        found = cursor.fetchone()
        cursor.execute("SELECT pg_try_advisory_xact_lock(hashtext('search_rollouttext'), %s)", [step_id % 2**31])
        if found is None or not cursor.fetchone()[0]:
            return False
        rows = Rollout.objects.filter(step=step_id, group__step=step_id).order_by("id")
        missing = rows.filter(rollouttext__isnull=True).values_list("id", "chunk_id", "position")
        by_chunk: dict[int, dict[int, int]] = {}
        for rollout_id, chunk_id, position in missing:
            by_chunk.setdefault(chunk_id, {})[position] = rollout_id
        for chunk in TokenChunk.objects.filter(pk__in=by_chunk).only("payload").iterator(chunk_size=8):
            rollouts = unpack_chunk(chunk.payload, columns=frozenset()).rollouts
            _insert_texts(
                cursor,
                ROLLOUT_TEXTS,
                {
                    rollout_id: text_from_bytes(rollouts[position].completion)[:TEXT_CHARS]
                    for position, rollout_id in by_chunk[chunk.pk].items()
                },
            )
        prompts = Prompt.objects.filter(group__step=step_id, prompttext__isnull=True).distinct().order_by("id")
        texts = {pk: text_from_bytes(bytes(text))[:TEXT_CHARS] for pk, text in prompts.values_list("id", "text")}
        _insert_texts(cursor, PROMPT_TEXTS, texts)
        cursor.execute(
            "INSERT INTO search_indexedstep (step_id, rollout_count, indexed_at) VALUES (%s, %s, now())"
            " ON CONFLICT (step_id) DO UPDATE SET rollout_count = excluded.rollout_count, indexed_at = now()",
            found,
        )
    return True


def _insert_texts(cursor: CursorWrapper, insert: str, texts: dict[int, str]) -> None:
    try:
        with transaction.atomic():
            cursor.execute(insert, [list(texts), list(texts.values())])
    except OperationalError as error:
        if not isinstance(error.__cause__, ProgramLimitExceeded):
            raise
        if len(texts) > 1:
            for pk, text in texts.items():
                _insert_texts(cursor, insert, {pk: text})
        else:
            ((pk, text),) = texts.items()
            logger.warning("text %d: too many distinct words; only its first half is searchable", pk)
            _insert_texts(cursor, insert, {pk: text[: len(text) // 2]})
