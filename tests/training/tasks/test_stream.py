import json

import pytest

from training.config import ConfigError
from training.tasks import catalog
from training.tasks.base import Task
from training.tasks.stream import TaskStream, held_out_tasks, is_held_out, make_task, task_key

FAMILIES = list(catalog.FAMILIES)


def params(name: str, **raw: int) -> dict:
    return catalog.make_params(catalog.FAMILIES[name], raw)


def sum_of(prompt: str, operands: str) -> Task:
    return Task(family="addition", params={}, difficulty=1.0, prompt=prompt, answer="46", operands=operands)


@pytest.mark.parametrize("name", FAMILIES)
def test_training_never_sees_held_out_operands(name: str) -> None:
    family = catalog.FAMILIES[name]
    held_out = {task_key(task) for seed in (0, 1) for task in held_out_tasks(family, params(name), 200, seed)}
    trained = {task_key(task) for seed in (0, 1, 2) for task in TaskStream(family, params(name), seed).take(500)}
    assert len(held_out) >= 200
    assert not held_out & trained


@pytest.mark.parametrize("name", FAMILIES)
def test_about_one_in_eight_is_held_out(name: str) -> None:
    keys = {
        task_key(task): task for task in (make_task(catalog.FAMILIES[name], params(name), seed) for seed in range(3000))
    }
    share = sum(map(is_held_out, keys.values())) / len(keys)
    assert 0.09 < share < 0.16


def test_the_order_of_summands_does_not_decide() -> None:
    by_operands: dict[str, set[bool]] = {}
    prompts: dict[str, set[str]] = {}
    for seed in range(5000):
        task = make_task(catalog.FAMILIES["addition"], params("addition", digits=1), seed)
        by_operands.setdefault(task.operands, set()).add(is_held_out(task))
        prompts.setdefault(task.operands, set()).add(task.prompt)
    assert prompts["3+4"] == {"3+4=", "4+3="}
    assert all(len(decisions) == 1 for decisions in by_operands.values())


@pytest.mark.parametrize(
    ("name", "knobs"),
    [
        ("addition", {"digits": 1}),
        ("multiplication", {"digits": 1, "other_digits": 1}),
        ("sorting", {"count": 2, "digits": 1}),
    ],
)
def test_equal_sets_of_numbers_have_equal_operands(name: str, knobs: dict[str, int]) -> None:
    seen: dict[tuple[str, ...], set[str]] = {}
    for seed in range(2000):
        task = make_task(catalog.FAMILIES[name], params(name, **knobs), seed)
        numbers = tuple(sorted(char for char in task.prompt if char.isdigit()))
        seen.setdefault(numbers, set()).add(task.operands)
    assert all(len(operands) == 1 for operands in seen.values())
    assert len({operands for group in seen.values() for operands in group}) == len(seen) == 55


def test_the_prompt_decides_where_there_are_no_operands() -> None:
    assert task_key(sum_of("12+34=", "")) != task_key(sum_of("34+12=", ""))
    assert task_key(sum_of("12+34=", "12+34")) == task_key(sum_of("34+12=", "12+34"))
    assert isinstance(is_held_out(sum_of("\ud800\x00", "")), bool)


def test_held_out_tasks_are_distinct_and_repeatable() -> None:
    family = catalog.FAMILIES["addition"]
    tasks = held_out_tasks(family, params("addition"), 256, seed=3)
    assert len({task_key(task) for task in tasks}) == 256
    assert all(map(is_held_out, tasks))
    assert tasks == held_out_tasks(family, params("addition"), 256, seed=3)
    assert tasks != held_out_tasks(family, params("addition"), 256, seed=4)


def test_too_few_held_out_tasks_are_an_error_with_a_way_out() -> None:
    with pytest.raises(ConfigError, match="raise the difficulty or ask for fewer") as caught:
        held_out_tasks(catalog.FAMILIES["addition"], params("addition", digits=1), 256, seed=0)
    assert caught.value.key == "eval.prompts"


def test_a_family_without_training_tasks_is_an_error() -> None:
    family = catalog.FAMILIES["addition"]
    prompts = (sum_of(f"{n}+0=", f"0+{n}") for n in range(1000))
    only = next(task for task in prompts if is_held_out(task))
    stuck = type(family)("addition", "", "", {}, lambda rng, params: only, family.check)
    with pytest.raises(ConfigError, match="no task to train on"):
        TaskStream(stuck, {}, 0).take(1)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_restored_stream_goes_on_where_it_was(name: str) -> None:
    family = catalog.FAMILIES[name]
    stream = TaskStream(family, params(name), seed=11)
    stream.take(7)
    state = json.loads(json.dumps(stream.state()))
    following = stream.take(9)
    restored = TaskStream(family, params(name), seed=0)
    restored.restore(state)
    assert restored.take(9) == following
    assert TaskStream(family, params(name), seed=12).take(9) != following


def test_a_task_is_made_again_from_its_seed() -> None:
    for task in TaskStream(catalog.FAMILIES["sorting"], params("sorting"), 5).take(20):
        assert make_task(catalog.FAMILIES["sorting"], task.params, task.seed) == task
        assert 0 <= task.seed < 2**63
