import random
from typing import Any

import pytest

from training.tasks import catalog
from training.tasks.pool import make_pool
from training.tasks.stream import TaskStream, is_held_out, make_task, task_key
from training.transforms import PromptContext, example_chance, worked_examples

ADDITION = catalog.FAMILIES["addition"]
PARAMS = catalog.make_params(ADDITION, {})
KNOBS = {"example_count": 2, "examples_start": 1.0, "examples_end": 1.0, "example_steps": False}


def context(supply: Any, step: int = 0, *, steps: int = 5, seed: int = 0, **knobs: Any) -> PromptContext:
    return PromptContext(step, steps, random.Random(seed), KNOBS | knobs, supply.examples)


def test_the_chance_goes_from_start_to_end_in_a_line() -> None:
    assert [example_chance(step, 5, start=0.5, end=0.0) for step in range(5)] == pytest.approx(
        [0.5, 0.375, 0.25, 0.125, 0.0]
    )
    assert example_chance(0, 1, start=0.5, end=0.0) == 0.5


def test_solved_tasks_stand_before_the_prompt_a_line_each() -> None:
    stream = TaskStream(ADDITION, PARAMS, 0)
    (task,) = stream.take(1)
    prompt = worked_examples(task, context(stream))
    *examples, last = prompt.text.split("\n")
    assert last == task.prompt
    assert len(examples) == 2
    for example in examples:
        left, right = example.removesuffix("=").split("=")
        assert sum(map(int, left.split("+"))) == int(right)
    assert (prompt.name, prompt.parameters) == ("worked_examples", {"count": 2, "chance": 1.0})
    assert {segment.origin for segment in prompt.prompt} == {"prompt"}
    assert prompt.prefix == ()


def test_worked_steps_are_shown_where_that_is_wanted() -> None:
    stream = TaskStream(ADDITION, PARAMS, 0)
    (task,) = stream.take(1)
    (first, *_) = worked_examples(task, context(stream, example_steps=True)).prompt
    assert ";" in first.text


def test_without_luck_the_prompt_is_plain() -> None:
    stream = TaskStream(ADDITION, PARAMS, 0)
    (task,) = stream.take(1)
    kinds = [
        worked_examples(task, context(stream, step=1, seed=seed, examples_start=0.5, examples_end=0.0)).name
        for seed in range(400)
    ]
    assert 100 < kinds.count("worked_examples") < 200  # a chance of 0.375
    assert worked_examples(task, context(stream, step=4, examples_start=0.5, examples_end=0.0)).text == task.prompt


def test_never_the_task_itself_nor_a_held_out_one_and_fewer_where_there_are_no_more() -> None:
    params = catalog.make_params(ADDITION, {"digits": 1})
    stream = TaskStream(ADDITION, params, 0)
    (task,) = stream.take(1)
    examples = stream.examples(task, 200, random.Random(1))
    assert 30 < len(examples) < 55
    assert task_key(task) not in map(task_key, examples)
    assert not any(map(is_held_out, examples))
    lonely = make_pool(ADDITION, PARAMS, 2, seed=0)
    assert worked_examples(lonely.tasks[0], context(lonely, example_count=9)).parameters["count"] == 1
    lonely.tasks.pop()
    assert worked_examples(lonely.tasks[0], context(lonely)).text == lonely.tasks[0].prompt


def test_an_example_can_be_made_again_from_its_seed() -> None:
    stream = TaskStream(ADDITION, PARAMS, 0)
    (task,) = stream.take(1)
    (one,) = stream.examples(task, 1, random.Random(1))
    assert make_task(ADDITION, PARAMS, one.seed) == one
