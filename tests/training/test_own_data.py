"""Data and code of one's own: the documentation's example as it stands there, and what is refused."""

import json
import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from training import legality, own, spool
from training.attempt import Attempt
from training.config import ConfigError, RunConfig
from training.records import RolloutBatch
from training.rewards import Completion, RewardSpan, Scored, own_reward, reward_functions, score_group
from training.run import FINISHED, REFUSED, run_attempt
from training.tasks import catalog
from training.tasks.base import Task

PAGE = Path(__file__).parents[2] / "docs" / "own-data.md"
RUN_UID = "5f0c2d4e-8a51-4c2e-9d57-3b1f0a6c7e21"
FILE = re.compile(r"`([\w.]+)`:\n\n```\w+\n(.*?)```", re.DOTALL)


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files of the documentation, importable, as the working directory."""
    for name, content in FILE.findall(PAGE.read_text(encoding="utf-8")):
        (tmp_path / name).write_text(content)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    own_reward.cache_clear()
    sys.modules.pop("my_doubles", None)
    return tmp_path


def trained(folder: Path, config: str, number: int = 1, *, resume: bool = False) -> tuple[int, dict[str, Any]]:
    (folder / "run").mkdir(exist_ok=True)
    (folder / "run" / "config.toml").write_text(config)
    code = run_attempt(Attempt(folder / "run", number), RUN_UID, is_resume=resume, draws_bar=False)
    return code, json.loads((folder / "run" / "attempts" / str(number) / "status.json").read_text())


def batches(folder: Path) -> list[RolloutBatch]:
    paths = spool.waiting(folder / "run" / "spool")
    return [RolloutBatch.from_bytes(path.read_bytes(), where=path.name) for path in paths]


def test_the_file_of_the_documentation_trains_and_is_recorded(example: Path) -> None:
    runpy.run_path("make_sums.py")
    code, status = trained(example, (example / "sums.toml").read_text())
    assert code == FINISHED, status["reason"]
    assert status["plugins"]["task"]["name"] == "file:sums.jsonl"
    assert len(status["plugins"]["task"]["version"]) == 12
    rows = [json.loads(line) for line in (example / "sums.jsonl").read_text().splitlines()]
    prompts: dict[str, set[str]] = {}
    for batch in batches(example):
        for group in batch.groups.to_pylist():
            row = rows[group["task_seed"] - 1]
            assert (group["prompt"].decode(), group["answer"].decode()) == (row["prompt"], row["answer"])
            assert json.loads(group["parameters"])["metadata"] == {"source": "a loop"}
            assert (group["generator"], group["difficulty"]) == ("file:sums.jsonl", 1.0)
            prompts.setdefault(batch.header.split, set()).add(row["prompt"])
        assert any(row["correct"] for row in batch.rollouts.to_pylist())
    assert len(prompts["train"]) == 24
    assert len(prompts["heldout"]) == 16
    assert not prompts["train"] & prompts["heldout"]


def test_the_task_and_reward_of_the_documentation_train_and_are_recorded(example: Path) -> None:
    code, status = trained(example, (example / "doubles.toml").read_text())
    assert code == FINISHED, status["reason"]
    version = own.version_of(own.load("my_doubles:brief", key="x"))
    for batch in batches(example):
        groups, rollouts = batch.groups.to_pylist(), batch.rollouts.to_pylist()
        for span in batch.reward_spans.to_pylist():
            row = rollouts[span["rollout"]]
            answer = groups[row["group"]]["answer"]
            length = len(row["token_ids"])
            assert span["value"] == pytest.approx(float(row["completion"] == answer) - length / 100)
            assert (span["token_start"], span["token_end"]) == (length - 1, length)
            assert (span["kind"], span["name"], span["version"]) == ("outcome", "my_doubles:brief", version)
            assert row["correct"] == (row["parsed_answer"] == answer)
        assert {group["generator"] for group in groups} == {"my_doubles:family"}
        assert json.loads(groups[0]["oracle_trace"])[-1]["text"] == groups[0]["answer"].decode()


def test_a_resume_with_another_file_is_refused(example: Path) -> None:
    runpy.run_path("make_sums.py")
    config = (example / "sums.toml").read_text()
    assert trained(example, config)[0] == FINISHED
    with open("sums.jsonl", "a") as file:
        file.write('{"prompt": "1+1=", "answer": "2"}\n')
    code, status = trained(example, config.replace("steps = 3", "steps = 4"), 2, resume=True)
    assert code == REFUSED
    assert "not the tasks that the checkpoint was made with" in status["reason"]


def test_a_bad_row_is_refused_before_the_first_sample(example: Path) -> None:
    (example / "sums.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n{"prompt": "1+2="}\n')
    code, status = trained(example, (example / "sums.toml").read_text())
    assert code == REFUSED
    assert "sums.jsonl:2: missing answer" in status["reason"]
    assert not (example / "run" / "spool").exists()


@pytest.mark.parametrize(
    ("line", "other", "key", "said"),
    [
        ("my_doubles:family", "my_dubles:family", "task.name", "no module 'my_dubles' on the worker"),
        ("my_doubles:family", "my_doubles:familly", "task.name", "did you mean family?"),
        ("my_doubles:family", "my_doubles:generate", "task.name", "failed: TypeError"),
        ("my_doubles:family", "my_doubles:Param", "task.name", "failed: TypeError"),
        ("largest = 500", "largest = 0", "task.params.largest", "at least 1"),
        ("my_doubles:brief", "my_doubles:breif", "hooks.H4", "did you mean brief?"),
        ("my_doubles:brief", "taks", "hooks.H4", "did you mean task?"),
    ],
)
def test_code_that_cannot_be_used_is_refused_before_the_first_sample(
    example: Path, line: str, other: str, key: str, said: str
) -> None:
    code, status = trained(example, (example / "doubles.toml").read_text().replace(line, other))
    assert code == REFUSED
    assert status["error"]["where"] == key
    assert said in status["reason"]


@pytest.mark.parametrize(
    ("line", "other", "said"),
    [
        ("str(2 * number),\n        oracle", "'7',\n        oracle", "rejects the solution"),
        ('rng.randint(1, params["largest"])', "__import__('random').randint(1, 10**9)", "another task"),
        ("check=integer_text", "check=lambda task, text: True", "must return a training.tasks.base.Verdict"),
        ("answer=str(2 * number)", "answer=2 * number", "a prompt and an answer, both text"),
        ("from training", "1 / 0\nfrom training", "cannot be imported: ZeroDivisionError"),
    ],
)
def test_a_family_that_breaks_its_promises_is_refused(example: Path, line: str, other: str, said: str) -> None:
    source = (example / "my_doubles.py").read_text()
    assert line in source
    (example / "my_doubles.py").write_text(source.replace(line, other))
    code, status = trained(example, (example / "doubles.toml").read_text())
    assert code == REFUSED
    assert said in status["reason"]


def scored(results: Any, monkeypatch: pytest.MonkeyPatch) -> list[Scored]:
    monkeypatch.setattr(own, "load", lambda name, key: lambda task, completions: results)
    own_reward.cache_clear()
    completions = [Completion("46", 3, "stop"), Completion("4", 2, "stop")]
    task = Task("addition", {}, 1.0, "12+34=", "46")
    return score_group(catalog.FAMILIES["addition"], task, completions, reward_functions(["a:b"]))


def test_none_and_nan_are_not_scored_but_still_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = scored([None, float("nan")], monkeypatch)
    assert first.spans == second.spans == ()
    assert (first.correct, second.correct, second.parsed_answer) == (True, False, "4")


def test_spans_of_ones_own_keep_their_place(monkeypatch: pytest.MonkeyPatch) -> None:
    span = RewardSpan(0, 1, 0.5, "process", "first step")
    first, second = scored([Scored(spans=(span,)), 1], monkeypatch)
    assert (first.spans[0].token_start, first.spans[0].name, first.reward) == (0, "first step", 0.5)
    assert (second.spans[0].token_start, second.reward) == (1, 1.0)


@pytest.mark.parametrize(
    ("results", "said"),
    [
        ([1.0], "gave 1 rewards for 2 completions"),
        (["good", 1.0], "must give a number, None or a Scored"),
        ([float("inf"), 1.0], "finite"),
        ([Scored(spans=(RewardSpan(0, 9, 1.0, "process", "x"),)), 1.0], "lies inside its completion"),
    ],
)
def test_a_reward_that_is_none_stops_the_run(results: Any, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=said):
        scored(results, monkeypatch)


@pytest.mark.parametrize(
    ("raw", "key"),
    [
        ({"task": {"name": "file:/etc/passwd"}}, "task.name"),
        ({"task": {"name": "os:system"}}, "task.name"),
        ({"hooks": {"H4": ["task", "os:system"]}}, "hooks.H4"),
    ],
)
def test_what_is_launched_from_a_page_cannot_name_them(raw: dict[str, Any], key: str) -> None:
    config = RunConfig.from_dict(raw)
    with pytest.raises(ConfigError, match="named in a configuration file") as caught:
        legality.check(config)
    assert caught.value.key == key
    legality.check(config, takes_own=True)


def test_nothing_is_looked_up_before_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("looked up")

    monkeypatch.setattr(own, "load", never)
    monkeypatch.setattr("training.tasks.files.family", never)
    for name in ("file:/none.jsonl", "none:none"):
        config = RunConfig.from_dict({"task": {"name": name, "params": {"x": 1}}, "hooks": {"H4": ["none:none"]}})
        legality.check(config, takes_own=True)
        assert legality.resolve(config).task_params == {"x": 1}
    with pytest.raises(ConfigError, match="unknown task"):
        catalog.resolve("os:system")


MakeRun = Callable[..., Path]


def test_the_same_prompts_come_again_from_a_pool_and_a_resume_goes_on(make_run: MakeRun) -> None:
    folders = [make_run(name, steps=5, tables="[task]\npool = 4") for name in ("whole", "cut")]
    assert run_attempt(Attempt(folders[0], 1), RUN_UID, is_resume=False, draws_bar=False) == FINISHED
    text = (folders[1] / "config.toml").read_text()
    (folders[1] / "config.toml").write_text(text.replace("steps = 5", "steps = 3"))
    assert run_attempt(Attempt(folders[1], 1), RUN_UID, is_resume=False, draws_bar=False) == FINISHED
    (folders[1] / "config.toml").write_text(text)
    assert run_attempt(Attempt(folders[1], 2), RUN_UID, is_resume=True, draws_bar=False) == FINISHED
    seen = []
    for folder in folders:
        paths = spool.waiting(folder / "spool")
        stored = [RolloutBatch.from_bytes(path.read_bytes(), where=path.name) for path in paths]
        asked = [one.groups["prompt"].to_pylist() for one in stored if one.header.split == "train"]
        seen.append([prompt for prompts in asked for prompt in prompts])
    assert seen[0] == seen[1]
    assert len(seen[0]) == 15
    assert len(set(seen[0])) == 4
