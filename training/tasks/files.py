"""Tasks from a file of one's own, `file:PATH`: prompts with answers as JSON lines or Parquet. Imports no torch.

Columns `prompt` and `answer`, both text; if wanted `difficulty`, a number, and `metadata`, an object. Any other column is
put into the metadata, which reward functions see and which is stored with the prompt.
"""

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.parquet as pq

from training.config import ConfigError
from training.tasks.base import Param, Task, TaskFamily, Verdict

PREFIX = "file:"
READERS = (".jsonl", ".parquet")
KNOWN = ("prompt", "answer", "difficulty", "metadata")
NUMBER = re.compile(r"-?[0-9][0-9,]*(?:\.[0-9]+)?")
TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
TOLD_ROWS = 3  # of the bad ones an error names these

ANSWER_IN = Param(
    "whole",
    "Where the answer stands: it is the whole completion, its last line, its last <answer> element or its last number.",
    options=("whole", "last_line", "tag", "number"),
)


def family(path: str) -> TaskFamily:
    """The tasks of the file at `path`; a relative one starts where the trainer does.

    Raises:
        ConfigError: it cannot be read, or rows are bad: names their lines and what is wrong with them.
    """
    file = Path(path).expanduser().resolve()
    if file.suffix not in READERS:
        raise ConfigError(
            "task.name", f"{file} is neither {' nor '.join(READERS)}; write the rows in one of these forms"
        )
    try:
        content = file.read_bytes()
    except OSError as error:
        raise ConfigError("task.name", f"{file} cannot be read on this worker: {error.strerror}") from None
    name = f"{PREFIX}{file.name}"[:100]
    tasks = _tasks(file, content, name)

    def generate(rng: Any, params: Mapping[str, Any]) -> NoReturn:
        raise ValueError(f"{name} is a fixed set; its tasks are drawn, not generated")

    def with_params(params: Mapping[str, Any]) -> list[Task]:
        return [replace(task, params={**params, **task.params}) for task in tasks]

    return TaskFamily(
        name=name,
        title=file.name,
        help=f"{len(tasks)} tasks of {file}.",
        params={"answer_in": ANSWER_IN},
        generate=generate,
        check=check,
        tasks=with_params,
        version=hashlib.sha256(content).hexdigest()[:12],
    )


def check(task: Task, completion: str) -> Verdict:
    """Right if the answer read from the completion is the task's; numbers are compared by value."""
    where = task.params["answer_in"]
    found, wanted = read_answer(completion, where), task.answer.strip()
    if found is None:
        return Verdict(0.0, False, None, f"No answer found (looked for: {where.replace('_', ' ')}).")
    if where == "number":
        wanted = read_answer(wanted, where) or wanted
    if found == wanted:
        return Verdict(1.0, True, found, "Right.")
    return Verdict(0.0, False, found, f"Expected {wanted[:200]}, got {found[:200]}.")


def read_answer(text: str, where: str) -> str | None:
    """The answer in `text`, None if there is none. A number loses its commas, a fraction its zeros at the end."""
    if where == "tag":
        found = TAG.findall(text)
        return (found[-1].strip() or None) if found else None
    if where == "number":
        numbers = NUMBER.findall(text)
        return _plain_number(numbers[-1]) if numbers else None
    lines = text.strip().splitlines()
    return (lines[-1] if where == "last_line" else text).strip() if lines else None


def _plain_number(text: str) -> str:
    text = text.replace(",", "")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _tasks(file: Path, content: bytes, name: str) -> list[Task]:
    rows = _json_rows(content) if file.suffix == ".jsonl" else _parquet_rows(file, content)
    tasks: list[Task] = []
    problems: list[str] = []
    seen: dict[str, Task] = {}
    for number, row in rows:
        try:
            task = _task(row, number, name)
            if (earlier := seen.setdefault(task.prompt, task)) is task:
                tasks.append(task)
            elif earlier.answer != task.answer:
                raise ValueError(f"the prompt of line {earlier.seed} again, with another answer; keep one of them")
        except ValueError as error:
            problems.append(f"{file.name}:{number}: {error}")
    if problems:
        more = f" (and {len(problems) - TOLD_ROWS} more bad rows)" if len(problems) > TOLD_ROWS else ""
        raise ConfigError("task.name", "; ".join(problems[:TOLD_ROWS]) + more)
    if not tasks:
        raise ConfigError("task.name", f"{file} holds no rows")
    return tasks


def _json_rows(content: bytes) -> Iterator[tuple[int, Any]]:
    """Lines from 1; empty ones are skipped. A line that is no JSON comes as the error that says so."""
    for number, line in enumerate(content.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        if line.strip():
            try:
                yield number, json.loads(line.decode("utf-8"))
            except (ValueError, RecursionError) as error:
                yield number, ValueError(f"not valid JSON: {error}")


def _parquet_rows(file: Path, content: bytes) -> Iterator[tuple[int, Any]]:
    """Rows from 1."""
    try:
        table = pq.read_table(pa.BufferReader(content))
    except (pa.ArrowException, OSError) as error:
        raise ConfigError("task.name", f"{file} is no readable Parquet file: {error}") from None
    number = 0
    for batch in table.to_batches():
        for row in batch.to_pylist():
            number += 1
            yield number, row


def _task(row: Any, number: int, name: str) -> Task:
    """The task of one row.

    Raises:
        ValueError: says what is wrong with the row and what to do.
    """
    if isinstance(row, ValueError):
        raise row
    if not isinstance(row, dict):
        raise ValueError(f"must be an object with prompt and answer, got {_shown(row)}")
    for column in ("prompt", "answer"):
        if column not in row:
            raise ValueError(f"missing {column}; the row has {', '.join(map(str, row)) or 'nothing'}")
        _check_text(row[column], column)
    difficulty = 0.0 if row.get("difficulty") is None else row["difficulty"]
    if isinstance(difficulty, bool) or not isinstance(difficulty, int | float) or not math.isfinite(difficulty):
        raise ValueError(f"difficulty must be a finite number, got {_shown(difficulty)}")
    metadata = {} if row.get("metadata") is None else row["metadata"]
    if not isinstance(metadata, dict):
        raise ValueError(f"metadata must be an object, got {_shown(metadata)}")
    metadata = {**metadata, **{column: value for column, value in row.items() if column not in KNOWN}}
    try:
        json.dumps(metadata, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise ValueError(f"metadata cannot be stored as JSON: {error}") from None
    return Task(
        family=name,
        params={"metadata": metadata} if metadata else {},
        difficulty=float(difficulty),
        prompt=row["prompt"],
        answer=row["answer"],
        seed=number,
        payload={"metadata": metadata},
    )


def _check_text(value: Any, column: str) -> None:
    if not isinstance(value, str):
        raise ValueError(f"{column} must be text, got {_shown(value)}")
    if not value.strip():
        raise ValueError(f"{column} is empty")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{column} holds half a character (a lone surrogate)") from None


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:40] + "..."
