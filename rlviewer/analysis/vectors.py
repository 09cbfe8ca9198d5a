"""Vectors in Postgres: whether they can be kept there, storing them, and which lie near."""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from django.db import DatabaseError, connection, transaction
from django.db.models import F, FloatField, Func, QuerySet, Value
from django.db.models.functions import Cast

from rlviewer.analysis.models import RolloutEmbedding, VectorField
from rlviewer.runs.models import Rollout
from training.sentences import DIMENSIONS, MODEL_KEY

TABLE = RolloutEmbedding._meta.db_table
VECTOR = struct.Struct(f"<{DIMENSIONS}f")
NEEDS_EXTENSION = (
    "The database has no extension for vectors. Ask its administrator to run CREATE EXTENSION vector in this database."
)


def is_ready() -> bool:
    """Whether the database holds vectors."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT EXISTS (SELECT FROM pg_attribute"
            " WHERE attrelid = to_regclass(%s) AND attname = 'vector' AND NOT attisdropped)",
            [TABLE],
        )
        return bool(cursor.fetchone()[0])


def ensure() -> bool:
    """Make room for vectors; False where the extension is missing and we may not create it. Safe to repeat."""
    if is_ready():
        return True  # altering locks the table, also where nothing changes
    with connection.cursor() as cursor:
        try:
            with transaction.atomic():
                cursor.execute("CREATE EXTENSION IF NOT EXISTS vector")
        except DatabaseError:
            return False
        cursor.execute(f"ALTER TABLE {TABLE} ADD COLUMN IF NOT EXISTS vector vector({DIMENSIONS}) NOT NULL")
    return True


@dataclass(frozen=True, slots=True)
class Embedded:
    """One answer of the model."""

    vector: bytes  # DIMENSIONS float32
    is_cut: bool


def store(embedded: Mapping[int, Embedded]) -> None:
    """Keep the vectors of rollouts. One kept before stays, of another model it is replaced; deleted rollouts are left out."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {TABLE} (rollout_id, run_id, model, is_cut, vector)"  # noqa: S608
            " SELECT r.id, r.run_id, %s, given.is_cut, given.vector::vector"
            " FROM unnest(%s::bigint[], %s::boolean[], %s::text[]) given (id, is_cut, vector)"
            " JOIN runs_rollout r ON r.id = given.id ORDER BY r.id"
            " ON CONFLICT (rollout_id) DO UPDATE SET model = excluded.model, is_cut = excluded.is_cut,"
            f"  vector = excluded.vector WHERE {TABLE}.model <> excluded.model",
            [
                MODEL_KEY,
                list(embedded),
                [one.is_cut for one in embedded.values()],
                [literal(one.vector) for one in embedded.values()],
            ],
        )


def literal(vector: bytes) -> str:
    """A vector as Postgres reads it, exact."""
    return f"[{','.join(map(repr, VECTOR.unpack(vector)))}]"


def embedded_ids(ids: Sequence[int]) -> set[int]:
    """Those of `ids` that this model has embedded."""
    rows = RolloutEmbedding.objects.filter(pk__in=ids, model=MODEL_KEY)
    return set(rows.values_list("pk", flat=True))


def vectors_of(ids: Sequence[int]) -> dict[int, bytes]:
    """The vectors of those of `ids` that this model has embedded, as float32, in the order of ids."""
    with connection.cursor() as cursor:
        # Its binary form: two numbers of 16 bits, then the values, all with the high byte first.
        cursor.execute(
            f"SELECT rollout_id, vector_send(vector) FROM {TABLE}"  # noqa: S608
            " WHERE rollout_id = ANY(%s) AND model = %s ORDER BY rollout_id",
            [list(ids), MODEL_KEY],
        )
        big_endian = struct.Struct(f">{DIMENSIONS}f")
        return {pk: VECTOR.pack(*big_endian.unpack_from(sent, 4)) for pk, sent in cursor.fetchall()}


@dataclass(frozen=True, slots=True)
class Near:
    id: int
    similarity: float  # cosine, 1 for the same direction


def nearest(rows: QuerySet[Rollout], vector: bytes, *, limit: int) -> list[Near]:
    """The embedded ones among `rows` whose vectors lie nearest. Exact: it compares every one."""
    there = Cast(Value(literal(vector)), VectorField())
    distance = Func(F("rolloutembedding__vector"), there, arg_joiner=" <=> ", template="(%(expressions)s)")
    found = (
        rows.filter(rolloutembedding__model=MODEL_KEY)
        .annotate(distance=Cast(distance, FloatField()))
        .order_by("distance", "pk")
        .values_list("pk", "distance")[:limit]
    )
    return [Near(pk, 1 - value) for pk, value in found]
