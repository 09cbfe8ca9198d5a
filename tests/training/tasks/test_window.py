import json
import random

import pytest

from training.tasks import catalog
from training.tasks.base import Task
from training.tasks.stream import is_held_out, task_key
from training.tasks.window import DifficultyWindow

FAMILIES = list(catalog.FAMILIES)
LEVELLED = [name for name in FAMILIES if catalog.FAMILIES[name].at_level]


def window(name: str = "addition", **knobs: float) -> DifficultyWindow:
    family = catalog.FAMILIES[name]
    options = {"group_size": 2, "promote_above": 0.9} | knobs
    return DifficultyWindow(family, catalog.make_params(family, {}), 0, **options)  # type: ignore[arg-type]


def at(level: int) -> Task:
    return Task("addition", {}, float(level), "p", "a")


def answered(one: DifficultyWindow, level: int, right: int, wrong: int) -> dict[str, float]:
    return one.observe([(at(level), [True] * right + [False] * wrong)])


def test_every_built_in_family_has_levels() -> None:
    assert LEVELLED == FAMILIES


def test_it_starts_at_the_lowest_level() -> None:
    tasks = window().take(20)
    assert {task.difficulty for task in tasks} == {0.0}
    assert {task.params["digits"] for task in tasks} == {1}


def test_it_moves_up_after_eight_groups_that_are_right_often_enough() -> None:
    one = window()
    answered(one, 0, 15, 0)
    assert one.high == 0  # 15 of the 16 completions of 8 groups of 2
    metrics = answered(one, 0, 0, 1)
    assert metrics == {"window_low": 0, "window_high": 0, "window_accuracy": 15 / 16, "window_saturated": 0}
    assert (one.low, one.high, one.seen, one.right) == (0, 1, 0, 0)


def test_it_stays_while_too_few_are_right_and_counts_on() -> None:
    one = window()
    answered(one, 0, 14, 2)
    assert one.high == 0  # 14/16 is below 0.9
    answered(one, 0, 4, 0)
    assert one.high == 1  # 18/20 is not


def test_only_the_highest_level_is_judged() -> None:
    one = window()
    one.high = 1
    assert answered(one, 0, 40, 0)["window_accuracy"] == 0.0
    assert one.high == 1
    answered(one, 1, 16, 0)
    assert one.high == 2


def test_the_lowest_level_follows_three_behind() -> None:
    one = window()
    bounds = []
    for level in range(6):
        answered(one, level, 16, 0)
        bounds.append((one.low, one.high))
    assert bounds == [(0, 1), (0, 2), (0, 3), (1, 4), (2, 5), (3, 6)]
    assert {task.difficulty for task in one.take(200)} == {3.0, 4.0, 5.0, 6.0}


def test_the_last_level_saturates() -> None:
    one = window("countdown")
    one.high = one.family.last_level
    metrics = answered(one, one.high, 99, 0)
    assert metrics["window_saturated"] == 1.0
    assert one.high == one.family.last_level


@pytest.mark.parametrize("name", LEVELLED)
def test_every_level_has_tasks_within_the_familys_bounds_that_are_not_held_out(name: str) -> None:
    one = window(name)
    family = catalog.FAMILIES[name]
    for level in range(family.last_level + 1):
        one.low = one.high = level
        tasks = one.take(5)
        assert {task.difficulty for task in tasks} == {float(level)}
        assert not any(map(is_held_out, tasks))
        knobs = {key: value for key, value in tasks[0].params.items() if key in family.params}
        assert catalog.make_params(family, knobs) == tasks[0].params
        assert all(family.check(task, task.solution).correct for task in tasks)


def test_examples_are_other_tasks_of_the_same_level() -> None:
    one = window()
    one.high = 4
    (task,) = one.take(1)
    examples = one.examples(task, 3, random.Random(0))
    assert len(examples) == 3
    assert {example.difficulty for example in examples} == {task.difficulty}
    assert task_key(task) not in map(task_key, examples)


def test_a_restored_window_goes_on_where_it_was() -> None:
    one = window()
    answered(one, 0, 16, 0)
    one.take(5)
    answered(one, 1, 3, 2)
    state = json.loads(json.dumps(one.state()))
    again = window()
    again.restore(state)
    assert again.take(9) == one.take(9)
    answered(again, 1, 12, 0)
    answered(one, 1, 12, 0)
    assert again.state() == one.state()


def test_a_family_without_levels_is_refused() -> None:
    family = catalog.resolve("reasoning_gym:chain_sum")
    with pytest.raises(ValueError, match="no levels of difficulty"):
        DifficultyWindow(family, {}, 0, group_size=2, promote_above=0.9)
