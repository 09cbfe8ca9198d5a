"""COPY: rows to Postgres at the speed of its loader, inside the caller's transaction."""

import io
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv
from django.db import models
from django.db.backends.utils import CursorWrapper


def take_ids(cursor: CursorWrapper, model: type[models.Model], count: int) -> npt.NDArray[np.int64]:
    """`count` fresh primary keys, so that rows that point at each other can be copied without asking back."""
    cursor.execute(
        "SELECT nextval(pg_get_serial_sequence(%s, 'id')) FROM generate_series(1, %s)", [model._meta.db_table, count]
    )
    return np.fromiter((row[0] for row in cursor.fetchall()), dtype=np.int64, count=count)


def copy_table(cursor: CursorWrapper, model: type[models.Model], table: pa.Table) -> None:
    """Copy narrow rows. CSV, because Arrow writes it for whole columns at once; NaN, infinities and -0.0 survive it."""
    if not table.num_rows:
        return
    text = io.BytesIO()
    pyarrow.csv.write_csv(table, text, pyarrow.csv.WriteOptions(include_header=False))
    # Django wraps the errors of its own calls only; COPY speaks to psycopg directly.
    with cursor.db.wrap_database_errors, cursor.copy(f"{_copy_into(model, table.column_names)} (FORMAT csv)") as copy:
        copy.write(text.getbuffer())


def copy_binary(
    cursor: CursorWrapper, model: type[models.Model], columns: dict[str, str], rows: Iterable[Sequence[Any]]
) -> None:
    """Copy wide rows; `columns` gives each column's Postgres type. Bytes go as they are, not as hexadecimal text."""
    with cursor.db.wrap_database_errors, cursor.copy(f"{_copy_into(model, list(columns))} (FORMAT binary)") as copy:
        copy.set_types(list(columns.values()))
        for row in rows:
            copy.write_row(row)


def _copy_into(model: type[models.Model], columns: list[str]) -> str:
    names = ", ".join(f'"{name}"' for name in columns)
    return f'COPY "{model._meta.db_table}" ({names}) FROM STDIN'
