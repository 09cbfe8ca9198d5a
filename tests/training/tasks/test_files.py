import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from training.config import ConfigError
from training.tasks import files
from training.tasks.base import Task
from training.tasks.pool import check_room, make_pool
from training.tasks.stream import held_out_tasks, is_held_out, task_key

PARAMS = {"answer_in": "whole"}
ROWS = [{"prompt": f"{n}+{n}=", "answer": str(2 * n)} for n in range(100)]


def written(path: Path, *rows: Any) -> str:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return str(path)


def refusal(path: str) -> str:
    with pytest.raises(ConfigError) as caught:
        files.family(path)
    assert caught.value.key == "task.name"
    return caught.value.message


def test_rows_become_tasks_split_by_the_prompt_alone(tmp_path: Path) -> None:
    path = written(tmp_path / "sums.jsonl", *ROWS)
    family = files.family(path)
    train, held_out = make_pool(family, PARAMS, 0, seed=1).tasks, held_out_tasks(family, PARAMS, 1000, 0)
    assert 5 <= len(held_out) <= 20
    assert sorted(task_key(task) for task in train + held_out) == sorted(
        task_key(Task(family.name, {}, 0, row["prompt"], row["answer"])) for row in ROWS
    )
    # Rows that are added later move no row to the other side.
    more = files.family(written(tmp_path / "sums.jsonl", {"prompt": "new", "answer": "1"}, *ROWS))
    assert {task.prompt for task in held_out} <= {task.prompt for task in held_out_tasks(more, PARAMS, 1000, 0)}
    assert len(held_out_tasks(family, PARAMS, 3, 0)) == 3
    assert (family.name, len(make_pool(family, PARAMS, 20, seed=1).tasks)) == ("file:sums.jsonl", 20)


def test_a_row_keeps_its_number_difficulty_and_metadata(tmp_path: Path) -> None:
    path = written(
        tmp_path / "rows.jsonl",
        {"prompt": "a", "answer": "b"},
        "",
        {"prompt": "c", "answer": "d", "difficulty": 3, "metadata": {"source": "x"}, "topic": [1]},
    )
    first, second = files.family(path).tasks(PARAMS)  # type: ignore[misc]
    assert (first.seed, first.difficulty, first.params) == (1, 0.0, PARAMS)
    assert (second.seed, second.difficulty) == (3, 3.0)
    assert second.payload["metadata"] == {"source": "x", "topic": [1]}
    assert second.params == {"answer_in": "whole", "metadata": {"source": "x", "topic": [1]}}


def test_parquet_holds_the_same_rows(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "sums.parquet")
    read = files.family(str(tmp_path / "sums.parquet")).tasks(PARAMS)  # type: ignore[misc]
    assert [(task.prompt, task.answer, task.seed) for task in read] == [
        (row["prompt"], row["answer"], number) for number, row in enumerate(ROWS, 1)
    ]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"prompt": "a"}, "missing answer; the row has prompt"),
        ({"answer": "a"}, "missing prompt"),
        ({"prompt": "a", "answer": 46}, "answer must be text, got 46"),
        ({"prompt": None, "answer": "b"}, "prompt must be text, got None"),
        ({"prompt": " ", "answer": "b"}, "prompt is empty"),
        ({"prompt": "a", "answer": ""}, "answer is empty"),
        ({"prompt": "a\ud800", "answer": "b"}, "half a character"),
        ({"prompt": "a", "answer": "b", "difficulty": "hard"}, "difficulty must be a finite number, got 'hard'"),
        ({"prompt": "a", "answer": "b", "difficulty": float("nan")}, "finite number"),
        ({"prompt": "a", "answer": "b", "metadata": [1]}, "metadata must be an object"),
        ({"prompt": "a", "answer": "b", "extra": float("inf")}, "cannot be stored as JSON"),
        ({"prompt": "0+0=", "answer": "1"}, "the prompt of line 1 again, with another answer"),
        ("{'prompt': 1}", "not valid JSON"),
        ("[1, 2]", "must be an object with prompt and answer, got [1, 2]"),
        ("[" * 100_000, "not valid JSON"),
    ],
)
def test_a_bad_row_is_refused_with_its_line_and_the_reason(tmp_path: Path, row: Any, said: str) -> None:
    message = refusal(written(tmp_path / "rows.jsonl", ROWS[0], ROWS[1], row, ROWS[2]))
    assert message.startswith("rows.jsonl:3: ")
    assert said in message


def test_a_line_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_bytes(b'{"prompt": "a", "answer": "b"}\n{"prompt": "\xff", "answer": "b"}\n')
    assert "rows.jsonl:2: not valid JSON" in refusal(str(tmp_path / "rows.jsonl"))


def test_many_bad_rows_are_counted(tmp_path: Path) -> None:
    message = refusal(written(tmp_path / "rows.jsonl", *({"prompt": "a"} for _ in range(10))))
    assert message.count("missing answer") == 3
    assert "and 7 more bad rows" in message


def test_a_row_twice_is_one_task(tmp_path: Path) -> None:
    assert len(files.family(written(tmp_path / "rows.jsonl", ROWS[0], ROWS[0])).tasks(PARAMS)) == 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("rows.csv", "a,b", "neither .jsonl nor .parquet"),
        ("rows.jsonl", "\n\n", "holds no rows"),
        ("rows.parquet", "no", "no readable Parquet file"),
    ],
)
def test_a_file_that_is_none_is_refused(tmp_path: Path, name: str, content: str, said: str) -> None:
    (tmp_path / name).write_text(content)
    assert said in refusal(str(tmp_path / name))


def test_a_missing_file_is_refused_and_named(tmp_path: Path) -> None:
    assert f"{tmp_path}/none.jsonl cannot be read on this worker: No such file" in refusal(f"{tmp_path}/none.jsonl")


def test_a_file_without_held_out_rows_is_refused(tmp_path: Path) -> None:
    family = files.family(written(tmp_path / "rows.jsonl", *ROWS))
    row = next(task for task in family.tasks(PARAMS) if not is_held_out(task))  # type: ignore[misc]
    family = files.family(written(tmp_path / "rows.jsonl", {"prompt": row.prompt, "answer": row.answer}))
    with pytest.raises(ConfigError, match="falls to the evaluation"):
        held_out_tasks(family, PARAMS, 4, 0)


def test_a_prompt_that_leaves_no_room_is_refused(tmp_path: Path) -> None:
    family = files.family(written(tmp_path / "rows.jsonl", ROWS[0], {"prompt": "x" * 60, "answer": "b"}))
    check_room(family, PARAMS, len, max_new_tokens=4, context_tokens=64)
    with pytest.raises(ConfigError, match="row 2: the prompt takes 60 tokens"):
        check_room(family, PARAMS, len, max_new_tokens=5, context_tokens=64)


@pytest.mark.parametrize(
    ("where", "completion", "answer", "parsed", "right"),
    [
        ("whole", " 46\n", "46", "46", True),
        ("whole", "it is 46", "46", "it is 46", False),
        ("whole", "", "46", None, False),
        ("last_line", "12+34\n\n46 ", "46", "46", True),
        ("tag", "<answer>4</answer> or <answer> 46 </answer>", "46", "46", True),
        ("tag", "46", "46", None, False),
        ("number", "so 12 and 34 are 46.", "46", "46", True),
        ("number", "1,234.50 dollars", "1234.5", "1234.5", True),
        ("number", "it costs 7", "$7.00", "7", True),
        ("number", "none", "46", None, False),
    ],
)
def test_the_answer_is_read_where_the_knob_says(
    where: str, completion: str, answer: str, parsed: str | None, right: bool
) -> None:
    verdict = files.check(Task("file:x", {"answer_in": where}, 0, "p", answer), completion)
    assert (verdict.parsed_answer, verdict.correct, verdict.reward) == (parsed, right, float(right))
