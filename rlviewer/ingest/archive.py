"""A run as a folder of files: what `export_run` writes and `import_run` reads.

`manifest.json` describes the run and its attempts and names every other file with its size in rows and its SHA-256; the
files are Parquet with the columns of `training.records`, each row led by the attempt, split and step it belongs to. The
folder holds what was recorded, not what a database made of it: no keys, no clocks of a server, nobody's account.
"""

import hashlib
import json
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rlviewer.lib.json import JsonError, loads
from training.records import EXTRA_PREFIX, GROUPS, REWARD_SPANS, ROLLOUTS

FORMAT = "rlviewer run"
VERSION = 1
MANIFEST = "manifest.json"
VOCABULARY = "vocabulary.bin"
MAX_FILE_BYTES = 4 * 1024**3
# Rollouts are cut into files of whole steps, so that neither side holds a long run in memory.
ROLLOUTS_PER_FILE = 4096
FILE_NAME = re.compile(
    r"(steps|metrics|trackers|checkpoints|refused)\.parquet|(rollouts|groups|spans)-\d{5}\.parquet|vocabulary\.bin"
)

PLACE = [("attempt", pa.int32()), ("split", pa.string()), ("step", pa.int32())]
TRACKER_COLUMNS = (
    "base_pass_rate", "base_samples", "tracker_value", "tracker_count", "tracker_last_seen", "sampling_weight", "queue_state",
)  # fmt: skip

STEPS = pa.schema(
    [*PLACE, ("phase_seconds", pa.string()), ("events", pa.string()), ("written_at", pa.timestamp("us", "UTC"))]
)
ARCHIVED_GROUPS = pa.schema([*PLACE, *(field for field in GROUPS if field.name not in TRACKER_COLUMNS)])
# `group` is the group's index in its step.
ARCHIVED_ROLLOUTS = pa.schema([*PLACE, *ROLLOUTS])
SPANS = pa.schema(
    [
        *PLACE,
        ("group", pa.int32()),
        ("number", pa.int16()),
        *(field for field in REWARD_SPANS if field.name != "rollout"),
    ]
)
METRIC_POINTS = pa.schema(
    [("attempt", pa.int32()), ("name", pa.string()), ("step", pa.int32()), ("value", pa.float64())]
)
TRACKERS = pa.schema([("prompt", pa.binary()), *((name, GROUPS.field(name).type) for name in TRACKER_COLUMNS)])
CHECKPOINTS = pa.schema(
    [("attempt", pa.int32()), ("step", pa.int32()), ("size_bytes", pa.int64()), ("sha256", pa.string()),
     ("saved_at", pa.timestamp("us", "UTC"))]
)  # fmt: skip
REFUSED = pa.schema([*PLACE, ("row_index", pa.int32()), ("reason", pa.string()), ("payload", pa.large_binary())])


class ArchiveError(ValueError):
    """A folder that cannot be imported, or a place where nothing can be exported; says what was found."""


class ArchiveWriter:
    """Writes the files of a folder, and the manifest last."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[str, dict[str, Any]] = {}

    def add_table(self, name: str, table: pa.Table) -> None:
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="zstd")
        self.add_bytes(name, sink.getvalue(), table.num_rows)

    def add_bytes(self, name: str, data: Any, rows: int) -> None:
        write_durably(self.folder / name, data)
        self._files[name] = {"rows": rows, "sha256": hashlib.sha256(data).hexdigest()}

    def finish(self, run: dict[str, Any], attempts: list[dict[str, Any]]) -> None:
        manifest = {"format": FORMAT, "version": VERSION, "run": run, "attempts": attempts, "files": self._files}
        text = json.dumps(manifest, indent=1, sort_keys=True, allow_nan=False, ensure_ascii=False)
        write_durably(self.folder / MANIFEST, (text + "\n").encode())


def write_durably(path: Path, data: Any) -> None:
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


@dataclass(frozen=True, slots=True)
class ArchiveReader:
    """A folder whose manifest has been read. Nothing in it is trusted: names, sizes, digests and types are checked."""

    folder: Path
    run: dict[str, Any]
    attempts: list[dict[str, Any]]
    files: dict[str, dict[str, Any]]

    @classmethod
    def open(cls, folder: Path) -> "ArchiveReader":
        try:
            manifest = loads(_read_plain_file(folder, MANIFEST))
        except JsonError as error:
            raise ArchiveError(f"{folder / MANIFEST}: {error}") from error
        if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
            raise ArchiveError(f"{folder / MANIFEST}: not the manifest of an exported run")
        if manifest.get("version") != VERSION:
            raise ArchiveError(
                f"{folder / MANIFEST}: version {manifest.get('version')!r}; this rlviewer reads {VERSION}"
            )
        run, attempts, files = (manifest.get(name) for name in ("run", "attempts", "files"))
        if not isinstance(run, dict) or not isinstance(attempts, list) or not isinstance(files, dict):
            raise ArchiveError(f"{folder / MANIFEST}: run, attempts or files is missing")
        for name, facts in files.items():
            if not FILE_NAME.fullmatch(name):
                raise ArchiveError(f"{folder / MANIFEST}: {name[:80]!r} is no file of an exported run")
            if not isinstance(facts, dict) or not isinstance(facts.get("sha256"), str):
                raise ArchiveError(f"{folder / MANIFEST}: {name} has no checksum")
        return cls(folder, run, attempts, files)

    def check_all(self) -> None:
        """Read every file once, so that damage is found before anything is stored."""
        for name in self.files:
            self.read_bytes(name)

    def parts(self) -> list[str]:
        """Numbers of the rollout files, in order; the groups and spans of the same steps carry the same number."""
        return sorted(
            name.removeprefix("rollouts-").removesuffix(".parquet") for name in self.files if name[0:9] == "rollouts-"
        )

    def read_bytes(self, name: str) -> bytes:
        if name not in self.files:
            raise ArchiveError(f"{self.folder}: the manifest lists no {name}")
        data = _read_plain_file(self.folder, name)
        if hashlib.sha256(data).hexdigest() != self.files[name]["sha256"]:
            raise ArchiveError(f"{self.folder / name}: damaged: its SHA-256 is not the one in the manifest")
        return data

    def read_table(self, name: str, schema: pa.Schema) -> pa.Table:
        """A table with exactly the columns of `schema`; further per-token columns follow where it has rollouts."""
        where = self.folder / name
        try:
            table = pq.ParquetFile(pa.BufferReader(self.read_bytes(name))).read()
            table.validate(full=True)
            extras = (
                [field for field in table.schema if field.name.startswith(EXTRA_PREFIX)]
                if "token_ids" in schema.names
                else []
            )
            expected = pa.schema([*schema, *(pa.field(field.name, pa.list_(pa.float32())) for field in extras)])
            if table.schema.names != expected.names:
                raise ArchiveError(f"{where}: its columns are {', '.join(table.schema.names)[:300]}")
            return table.cast(expected)
        except (pa.ArrowException, OSError) as error:
            raise ArchiveError(f"{where}: not a readable Parquet file: {error}") from error


def _read_plain_file(folder: Path, name: str) -> bytes:
    """The bytes of a file that lies in the folder itself: no link, no device, no path."""
    path = folder / name
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise ArchiveError(f"{path}: {error.strerror}") from error
    with open(descriptor, "rb") as file:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode):
            raise ArchiveError(f"{path}: not a plain file")
        if facts.st_size > MAX_FILE_BYTES:
            raise ArchiveError(f"{path}: {facts.st_size} bytes; the limit is {MAX_FILE_BYTES}")
        return file.read()
