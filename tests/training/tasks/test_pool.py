import json
import random
from collections import Counter

import pytest

from training.config import ConfigError
from training.tasks import catalog
from training.tasks.pool import TaskPool, make_pool
from training.tasks.stream import is_held_out, task_key

ADDITION = catalog.FAMILIES["addition"]
PARAMS = catalog.make_params(ADDITION, {})


def test_every_task_comes_once_an_epoch_in_another_order() -> None:
    pool = make_pool(ADDITION, PARAMS, 10, seed=3)
    drawn = [[task_key(task) for task in pool.take(count)] for count in (4, 6, 10, 25)]
    first, second = drawn[0] + drawn[1], drawn[2]
    assert Counter(first) == Counter(second) == Counter(map(task_key, pool.tasks))
    assert first != second
    # 25 are two epochs and a half.
    assert sorted(Counter(drawn[3]).values()) == [2] * 5 + [3] * 5


def test_a_pool_holds_distinct_training_tasks_that_follow_from_the_seed() -> None:
    pool = make_pool(ADDITION, PARAMS, 300, seed=3)
    assert len({task_key(task) for task in pool.tasks}) == 300
    assert not any(map(is_held_out, pool.tasks))
    assert make_pool(ADDITION, PARAMS, 300, seed=3).tasks == pool.tasks
    assert make_pool(ADDITION, PARAMS, 300, seed=4).tasks != pool.tasks


def test_a_restored_pool_goes_on_where_it_was() -> None:
    pool = make_pool(ADDITION, PARAMS, 7, seed=3)
    pool.take(11)
    state = json.loads(json.dumps(pool.state()))
    following = pool.take(20)
    again = make_pool(ADDITION, PARAMS, 7, seed=3)
    again.restore(state)
    assert again.take(20) == following


def test_a_checkpoint_of_other_tasks_is_refused() -> None:
    state = make_pool(ADDITION, PARAMS, 7, seed=3).state()
    with pytest.raises(ConfigError, match="not the tasks that the checkpoint was made with"):
        make_pool(ADDITION, PARAMS, 7, seed=4).restore(state)


def test_examples_are_other_tasks_of_the_pool_and_as_many_as_there_are() -> None:
    pool = make_pool(ADDITION, PARAMS, 4, seed=3)
    for task in pool.tasks:
        found = pool.examples(task, 9, random.Random(0))
        assert Counter(map(task_key, [*found, task])) == Counter(map(task_key, pool.tasks))
    assert TaskPool(pool.tasks[:1], 0).examples(pool.tasks[0], 2, random.Random(0)) == []


def test_a_family_with_too_few_tasks_is_refused() -> None:
    params = catalog.make_params(ADDITION, {"digits": 1})
    with pytest.raises(ConfigError, match="only about 4") as caught:
        make_pool(ADDITION, params, 100, seed=0)
    assert caught.value.key == "task.pool"
