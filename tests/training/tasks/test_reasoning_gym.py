import os
import subprocess
import sys
import time

import pytest

from training.config import ConfigError, RunConfig
from training.tasks import catalog
from training.tasks import reasoning_gym as adapter
from training.tasks.base import Task
from training.tasks.stream import held_out_tasks, make_task

# The library knows no right answer for these: every one has to be found.
WITHOUT_ANSWER = {"boxnet", "rush_hour"}
# Needs other datasets to be named.
COMPOSITE = "composite"
PLAIN = [name for name in adapter.DATASETS if name != COMPOSITE]


def make(name: str, seed: int = 7, **params: object) -> Task:
    family = catalog.resolve(adapter.PREFIX + name)
    return make_task(family, catalog.make_params(family, params), seed)


def check(task: Task, completion: str) -> tuple[float, bool, str | None]:
    verdict = catalog.resolve(task.family).check(task, completion)
    return verdict.reward, verdict.correct, verdict.parsed_answer


def test_every_dataset_of_the_library_is_offered() -> None:
    factory = pytest.importorskip("reasoning_gym.factory")
    assert tuple(sorted(factory.DATASETS)) == adapter.DATASETS
    assert {adapter.PREFIX + name for name in adapter.DATASETS} <= set(catalog.names())


@pytest.mark.parametrize("name", [name for name in PLAIN if name not in WITHOUT_ANSWER])
def test_the_librarys_own_answer_is_right_and_another_is_not(name: str) -> None:
    task = make(name)
    assert task.prompt
    assert check(task, task.solution) == (1.0, True, task.answer.strip())
    assert check(task, f"I think so.\n<answer> {task.answer} </answer>")[1]
    reward, correct, _ = check(task, "this is no answer to anything")
    assert not correct
    assert reward < 1


@pytest.mark.parametrize("name", sorted(WITHOUT_ANSWER))
def test_a_dataset_without_a_known_answer_still_scores(name: str) -> None:
    task = make(name)
    assert (task.answer, task.oracle) == ("", ())
    assert check(task, "this is no answer to anything")[1] is False
    assert check(task, "")[2] is None


def test_a_composite_mixes_what_it_is_given() -> None:
    datasets = [{"name": "chain_sum", "weight": 1}, {"name": "gcd", "config": {"min_numbers": 3, "max_numbers": 3}}]
    tasks = [make(COMPOSITE, seed, datasets=datasets) for seed in range(20)]
    assert {task.payload["entry"]["metadata"]["source_dataset"] for task in tasks} == {"chain_sum", "gcd"}
    assert all(check(task, task.answer)[1] for task in tasks)
    config = RunConfig.from_dict({"task": {"name": "reasoning_gym:composite", "params": {"datasets": datasets}}})
    assert RunConfig.from_toml(config.to_toml()) == config


@pytest.mark.parametrize(
    ("name", "params", "key", "says"),
    [
        ("chain_sum", {"min_term": 2}, "task.params.min_term", "did you mean min_terms?"),
        ("chain_sum", {"min_terms": "two"}, "task.params.min_terms", "a whole number"),
        ("chain_sum", {"min_terms": 0}, "task.params.min_terms", "min_terms must be positive"),
        ("chain_sum", {"min_terms": 9, "max_terms": 3}, "task.params.min_terms", "max_terms"),
        ("chain_sum", {"size": 3}, "task.params.size", "unknown parameter"),
        ("basic_arithmetic", {"operators": ["%"]}, "task.params", ""),
        ("word_sorting", {"transformation": "shouting"}, "task.params.transformation", "unknown choice"),
        ("time_intervals", {"min_date": "someday"}, "task.params", ""),
        ("composite", {}, "task.params.datasets", "list of tables"),
        ("composite", {"datasets": [{"name": "chain_sum", "wait": 1}]}, "task.params", "wait"),
    ],
)
def test_refuses_a_configuration_with_the_knob_at_fault(name: str, params: dict, key: str, says: str) -> None:
    family = catalog.resolve(adapter.PREFIX + name)
    with pytest.raises(ConfigError) as caught:
        catalog.make_params(family, params)
    assert caught.value.key.startswith(key)
    assert says in caught.value.message


def test_knobs_reach_the_dataset() -> None:
    task = make("chain_sum", min_terms=6, max_terms=6, min_digits=1, max_digits=1)
    assert task.payload["entry"]["metadata"]["num_terms"] == 6
    assert make("word_sorting", transformation="uppercase").answer.isupper()
    assert task.params["min_terms"] == 6


def test_an_unknown_dataset_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"did you mean chain_sum\?") as caught:
        catalog.resolve("reasoning_gym:chain_sums")
    assert caught.value.key == "task.name"


@pytest.mark.parametrize("name", sorted(adapter.SLOW_TO_BUILD))
def test_a_dataset_built_once_draws_what_a_new_one_would(name: str) -> None:
    factory = pytest.importorskip("reasoning_gym.factory")
    for seed in (3, 4, 3):
        family = catalog.resolve(adapter.PREFIX + name)
        kept = adapter._dataset(name, catalog.make_params(family, {}), seed)[0]
        new = factory.create_dataset(name, size=1, seed=seed)[0]
        assert (kept["question"], kept["answer"]) == (new["question"], new["answer"])


def test_tasks_are_the_same_in_another_process() -> None:
    # These walk over sets of texts.
    names = ["isomorphic_strings", "list_functions", "polynomial_multiplication", "ransom_note", "word_ladder"]
    script = (
        "from tests.training.tasks.test_reasoning_gym import make\n"
        f"print([(make(name, seed).prompt, make(name, seed).answer) for name in {names} for seed in range(3)])"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONWARNINGS": "ignore"}
    runs = [subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=environment) for _ in range(2)]
    outputs = [run.communicate(timeout=120)[0] for run in runs]
    assert outputs[0] == outputs[1]
    assert len(outputs[0]) > 1000


def test_prompts_decide_what_is_held_out() -> None:
    family = catalog.resolve("reasoning_gym:chain_sum")
    tasks = held_out_tasks(family, catalog.make_params(family, {}), 20, seed=0)
    assert len({task.prompt for task in tasks}) == 20


EVIL = [
    "__import__('os').abort()",
    "open(0)",
    "exec(chr(97))",
    "exit()",
    "().__class__",
    "x.__class__",
    "9**9**9**9",
    "2^99^99",
    "((9**99)**99)**99",
    "x**99999999",
    "9**(99)**99",
    "1e999999",
    "factorial(99999)",
    "Integral(x, x)",
    "(" * 5000,
    "9" * 5000,
    "5" * 5_000_000,
    "٤٢",
    "\x00",
    "\ud800",
    "",
]


@pytest.mark.parametrize("name", sorted(adapter.EVALUATED))
def test_an_answer_that_would_be_evaluated_reaches_no_interpreter(name: str) -> None:
    task = make(name)
    started = time.perf_counter()
    verdicts = [catalog.resolve(task.family).check(task, text) for text in EVIL]
    assert time.perf_counter() - started < 5
    assert not any(verdict.correct for verdict in verdicts)
    for verdict in verdicts:
        verdict.feedback.encode()


@pytest.mark.parametrize("name", sorted(adapter.EVALUATED))
def test_what_is_kept_from_the_interpreter_is_never_a_right_answer(name: str) -> None:
    for seed in range(8):
        task = make(name, seed)
        assert check(task, task.answer)[1], task.answer


@pytest.mark.parametrize("name", ["calendar_arithmetic", "rectangle_count", "gcd"])
def test_digits_of_other_scripts_are_no_answer(name: str) -> None:
    task = next(task for task in (make(name, seed) for seed in range(50)) if task.answer.isdigit())
    foreign = "".join(chr(0x0660 + int(digit)) for digit in task.answer)
    assert check(task, foreign) == (0.0, False, None)


@pytest.mark.parametrize(
    "name", ["chain_sum", "sudoku", "graph_color", "jugs", "knight_swap", "boxnet", "codeio", "tower_of_hanoi"]
)
def test_a_hostile_completion_is_wrong_and_never_a_crash(name: str) -> None:
    task = make(name)
    for text in [
        *EVIL,
        "[" * 100_000,
        '{"a": ' * 2000,
        "--5",
        "1" * 5000 + ".5",
        "<answer></answer>",
        "</answer><answer>",
    ]:
        assert not check(task, text)[1]
