"""Estimators of H5 that compare in other ways than by the mean of a group."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.training.golden import CASES
from training.advantages import GroupAdvantages, ScoredGroups
from training.estimators import ADVANTAGES
from training.rewards import length_z_scores

PARAMS: dict[str, Any] = {
    "divide_by_std": True,
    "ddof": 1,
    "eps": 1e-6,
    "pass_k": 2,
    "tail_lowest": 0.0,
    "stratum_blend": 0.8,
    "lone_stratum": "global",
}


def groups(*rows: list[float], **fields: Any) -> ScoredGroups:
    """Groups whose rewards above 1/2 are right."""
    rewards = torch.tensor(rows, dtype=torch.float64)
    scored = torch.ones_like(rewards, dtype=torch.bool)
    return replace(ScoredGroups(rewards, scored, rewards > 0.5, scored.long()), **fields)


def estimate(name: str, given: ScoredGroups, **params: Any) -> GroupAdvantages:
    return ADVANTAGES[name](given, PARAMS | params)


def test_the_greedy_completion_is_the_baseline_and_does_not_train() -> None:
    case = CASES["adv.remax"]["inputs"]
    is_greedy = torch.tensor([[False, True], [False, True]])
    out = estimate("greedy_baseline", groups([case["reward"], case["greedy_reward"]], [0.0, 1.0], is_greedy=is_greedy))
    assert out.advantage[0, 0].item() == pytest.approx(CASES["adv.remax"]["expected"]["advantages"][0])
    assert out.advantage.tolist()[1] == [-1.0, 0.0]
    assert out.kept.tolist() == [[True, False], [True, False]]
    # A single sampled completion is whole: nothing is compared but with the greedy one.
    assert out.dead_cause == (None, None)


def test_without_a_scored_greedy_completion_its_prompt_does_not_train() -> None:
    is_greedy = torch.tensor([[False, False, True]])
    out = estimate("greedy_baseline", groups([1.0, 0.0, math.nan], is_greedy=is_greedy))
    assert out.advantage.tolist() == [[0.0] * 3]
    assert out.kept.tolist() == [[False] * 3]
    with pytest.raises(ValueError, match=r"set hooks\.H3 to with_greedy"):
        estimate("greedy_baseline", groups([1.0, 0.0]))


def test_a_sample_as_good_as_the_greedy_one_teaches_nothing() -> None:
    out = estimate("greedy_baseline", groups([1.0, 1.0], is_greedy=torch.tensor([[False, True]])))
    assert out.advantage.abs().sum().item() == 0.0
    assert out.dead_cause == ("all_right",)


def test_a_critics_groups_live_though_all_rewards_are_equal() -> None:
    out = estimate("critic", groups([1.0, 1.0], [0.0, math.nan], [math.nan, math.nan]))
    assert out.advantage.tolist() == [[1.0, 1.0], [0.0, 0.0], [0.0, 0.0]]
    assert out.dead_cause == (None, None, "unscored")
    assert out.kept.tolist() == [[True, True], [True, False], [False, False]]


def test_process_groups_live_by_their_steps() -> None:
    given = groups([1.0, 1.0], [1.0, 0.0], [1.0, math.nan], steps_differ=torch.tensor([True, False, True]))
    assert estimate("process", given).dead_cause == (None, "same_score", "single")
    with pytest.raises(ValueError, match="rewards of steps"):
        estimate("process", groups([1.0, 0.0]))


def test_the_tail_of_a_group_matches_the_worked_examples() -> None:
    for name in ("adv.tailrl.013", "adv.tailrl.1001"):
        case = CASES[name]
        out = estimate("tail", groups(case["inputs"]["rewards"]))
        assert out.advantage[0].tolist() == pytest.approx(case["expected"]["advantages"])


@pytest.mark.parametrize("name", ["tail", "best_of_k", "pass_at_k", "stratified"])
def test_an_unscored_rollout_changes_nothing_for_the_others(name: str) -> None:
    strata = torch.tensor([[0, 0, 1, 0, 0]])
    alone = estimate(name, groups([1.0, 0.0, 1.0, 0.0], strata=strata[:, :4]))
    beside = estimate(name, groups([1.0, 0.0, 1.0, 0.0, math.nan], strata=strata))
    assert beside.advantage[0].tolist() == pytest.approx([*alone.advantage[0].tolist(), 0.0])
    assert alone.advantage.abs().sum().item() > 0


@pytest.mark.parametrize("name", ["tail", "best_of_k", "pass_at_k", "stratified", "difficulty"])
def test_rewards_that_differ_by_rounding_teach_nothing(name: str) -> None:
    noisy = CASES["adv.grpo.float32_noise"]["inputs"]["rewards_float32_as_float64"]
    out = estimate(name, groups(noisy, strata=torch.zeros(1, len(noisy)).long()), eps=1e-8)
    assert out.advantage.abs().sum().item() == 0.0
    assert out.is_dead.tolist() == [True]


def test_a_group_smaller_than_k_compares_as_many_as_it_has() -> None:
    # Best of two, of which one is left to beat: 1 - 0.
    out = estimate("best_of_k", groups([1.0, 0.0, math.nan, math.nan]), pass_k=4)
    assert out.advantage[0].tolist() == [1.0, 0.0, 0.0, 0.0]
    # Of two with one right both draws of two hold it: no signal.
    assert estimate("pass_at_k", groups([1.0, 0.0, math.nan, math.nan]), pass_k=4).advantage.abs().sum().item() == 0.0


def test_pass_at_k_goes_by_what_is_right() -> None:
    case = CASES["adv.passk_training.n4c1k2"]["expected"]
    out = estimate("pass_at_k", groups([0.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 1.0]))
    assert out.advantage[0].tolist() == pytest.approx([case["A_neg"], case["A_pos"], case["A_neg"], case["A_neg"]])


def test_length_and_difficulty_match_the_worked_example() -> None:
    case = CASES["adv.grpo_lead"]
    right = case["inputs"]["correct"]
    scores = length_z_scores([n for n, is_right in zip(case["inputs"]["lengths"], right, strict=True) if is_right])
    rewards = [math.exp(-case["params"]["alpha"] * z) for z in scores] + [-1.0]
    assert rewards == pytest.approx(case["expected"]["shaped_rewards"])
    given = groups(rewards, correct=torch.tensor([right]))
    assert estimate("group", given).advantage[0].tolist() == pytest.approx(case["expected"]["grpo"])
    assert estimate("difficulty", given).advantage[0].tolist() == pytest.approx(case["expected"]["advantages"])


def test_a_group_that_is_all_right_learns_from_its_lengths() -> None:
    out = estimate("difficulty", groups([1.05, 0.95]))
    assert out.dead_cause == (None,)
    assert out.advantage[0, 0] > 0 > out.advantage[0, 1]


def test_strata_are_of_their_group() -> None:
    case = CASES["adv.san"]
    rows, strata = [case["inputs"]["rewards"]] * 2, torch.tensor([case["inputs"]["stratum"]] * 2)
    out = estimate("stratified", groups(*rows, strata=strata))
    for row in out.advantage.tolist():
        assert row == pytest.approx(case["expected"]["advantages"])
    with pytest.raises(ValueError, match="structure of every rollout"):
        estimate("stratified", groups([1.0, 0.0]))
