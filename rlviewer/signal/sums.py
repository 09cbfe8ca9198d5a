"""Sums of every rollout of a step to and from one binary column: an Arrow table, a row a rollout."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

COMPRESSION = pa.ipc.IpcWriteOptions(compression="zstd")


def pack(columns: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """Columns of equal length, bit for bit."""
    table = pa.table({name: pa.array(np.ascontiguousarray(column)) for name, column in columns.items()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=COMPRESSION) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def unpack(payload: bytes | memoryview) -> dict[str, npt.NDArray[Any]]:
    with pa.ipc.open_stream(pa.py_buffer(payload)) as reader:
        table = reader.read_all()
    return {name: table.column(name).to_numpy() for name in table.column_names}
