import math
from typing import Any

import pytest
import torch

from tests.training.golden import CASES
from training.advantages import ScoredGroups
from training.advantages_tracked import tracked_advantages, voted_advantages

NAN = float("nan")
KNOBS: dict[str, Any] = {"centre": 1.0, "width": 0.5, "least_share": 0.5, "penalty": 1.0, "eps": 0.0}


def groups(rewards: list[list[float]], **more: Any) -> ScoredGroups:
    values = torch.tensor(rewards, dtype=torch.float64)
    return ScoredGroups(values, values.isfinite(), values > 0.5, torch.ones_like(values, dtype=torch.int64), **more)


def test_the_tracked_advantage_is_that_of_the_worked_example() -> None:
    expected = CASES["adv.spo"]["expected"]
    out = tracked_advantages(groups([[1.0], [0.0]], tracker_value=torch.tensor([expected["p0"], 0.5])))
    assert out.advantage.flatten().tolist() == pytest.approx([expected["raw_advantage"], -0.5])
    assert out.dead_cause == (None, None)


def test_an_unscored_rollout_has_no_tracked_advantage() -> None:
    out = tracked_advantages(groups([[NAN], [1.0]], tracker_value=torch.tensor([0.5, 0.25], dtype=torch.float64)))
    assert out.advantage.flatten().tolist() == [0.0, 0.75]
    assert out.kept.flatten().tolist() == [False, True]
    assert out.dead_cause == ("unscored", None)


def test_tracked_without_values_is_refused() -> None:
    with pytest.raises(ValueError, match=r"set hooks\.H9 to tracked"):
        tracked_advantages(groups([[1.0]]))


def voted(clusters: list[list[int]], majority: float = 1.0, **knobs: Any) -> Any:
    table = torch.tensor(clusters)
    given = groups(
        torch.zeros_like(table, dtype=torch.float64).tolist(),
        clusters=table,
        base_majority=torch.full((len(table),), majority, dtype=torch.float64),
    )
    return voted_advantages(given, **KNOBS | knobs)


def test_labels_are_weighed_by_their_votes() -> None:
    out = voted([[0, 0, 0, 1]])
    first, second = math.exp(-1 / 8), math.exp(-9 / 8)
    weight = (first - second) / (first + second)
    # Under either label the deviation is 1/2: advantages 1/2 and -3/2, and the same negated.
    assert out.advantage[0].tolist() == pytest.approx([0.5 * weight] * 3 + [-1.5 * weight])
    assert out.dead_cause == (None,)


def test_an_unreadable_answer_is_wrong_under_every_label() -> None:
    assert voted([[0, 0, 0, -1]]).advantage[0].tolist() == pytest.approx([0.5, 0.5, 0.5, -1.5])


def test_a_unanimous_group_is_dead() -> None:
    out = voted([[0, 0, 0]])
    assert out.advantage[0].tolist() == [0.0, 0.0, 0.0]
    assert out.dead_cause[0] is not None


def test_doubt_pushes_all_down_and_is_not_dead() -> None:
    for clusters in ([[0, 1, 2, 3]], [[-1, -1, -1, -1]]):
        out = voted(clusters, penalty=0.5)
        assert out.advantage[0].tolist() == [-0.5] * 4
        assert out.dead_cause == (None,)


def test_the_base_models_majority_weighs_the_prompt() -> None:
    trust = math.exp(-1 / 2)
    assert voted([[0, 1, 2, 3]], majority=0.5).advantage[0].tolist() == pytest.approx([-trust] * 4)
    assert voted([[0, 0, 0, -1]], majority=0.5).advantage[0, 3].item() == pytest.approx(-1.5 * trust)


def test_what_was_not_scored_neither_votes_nor_trains() -> None:
    given = groups(
        [[0.0, 0.0, 0.0, NAN], [0.0, NAN, NAN, NAN]],
        clusters=torch.tensor([[0, 0, 1, 1], [0, 0, 0, 0]]),
        base_majority=torch.ones(2),
    )
    out = voted_advantages(given, **KNOBS)
    alone = voted([[0, 0, 1]]).advantage[0].tolist()
    assert out.advantage[0].tolist() == pytest.approx([*alone, 0.0])
    assert out.advantage[1].tolist() == [0.0] * 4
    assert out.kept.tolist() == [[True, True, True, False], [False] * 4]


def test_voted_without_its_inputs_is_refused() -> None:
    with pytest.raises(ValueError, match="soft_labels"):
        voted_advantages(groups([[1.0, 0.0]]), **KNOBS)
