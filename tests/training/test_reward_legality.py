"""What H4 gives has to be what H5 and H6 take: each mismatch is refused by its key, before anything is sampled."""

from typing import Any

import pytest

from training import legality
from training.config import ConfigError, RunConfig

KL_IN_REWARD = {"kl_coefficient": 0.1, "kl_place": "reward"}


@pytest.mark.parametrize(
    ("algorithm", "tables", "key", "said"),
    [
        # Somebody has to judge, and once.
        ("grpo", {"hooks": {"H4": []}}, "hooks.H4", "an empty list scores no completion"),
        ("grpo", {"hooks": {"H4": ["unparsable_penalty"]}}, "hooks.H4", "unparsable_penalty alone"),
        ("grpo", {"hooks": {"H4": ["task", "step_labels"]}}, "hooks.H4", "count twice"),
        # Rewards out of the range that the advantage is defined on.
        ("psr", {"hooks": {"H4": ["soft_labels"]}}, "hooks.H4", "rewards of 0 and 1"),
        ("nsr", {"hooks": {"H4": ["confident_vote"]}}, "hooks.H4", "rewards of 0 and 1"),
        ("psr", {"hooks": {"H4": ["step_labels"]}}, "hooks.H4", "rewards of 0 and 1"),
        ("psr", {"task": {"name": "reasoning_gym:chain_sum"}}, "task.name", "rewards of 0 and 1"),
        ("psr", {"hooks": {"H4": ["task", "unparsable_penalty"]}}, "hooks.H4", "as it was judged"),
        ("maxrl", {"hooks": {"H4": ["task", "unparsable_penalty"]}}, "hooks.H4", "as it was judged"),
        ("tailrl", {"hooks": {"H4": ["task", "unparsable_penalty"]}}, "hooks.H4", "as it was judged"),
        ("tailrl", {"algorithm_params": {"tail_lowest": 0.5}}, "algorithm_params.tail_lowest", "lies below"),
        (
            "tailrl",
            {"hooks": {"H4": ["step_labels"]}, "algorithm_params": {"wrong_step_penalty": 1.0}},
            "algorithm_params.wrong_step_penalty",
            "no negative rewards",
        ),
        (
            "spo",
            {"hooks": {"H4": ["step_labels"]}, "algorithm_params": {"wrong_step_penalty": 1.0}},
            "algorithm_params.wrong_step_penalty",
            "from 0 to 1",
        ),
        (
            "spo",
            {"hooks": {"H4": ["confident_vote"]}, "sampling": {"group_size": 2}},
            "algorithm_params.rarity_bonus",
            "from 0 to 1",
        ),
        # What the advantage does not look at would be lost without a word.
        ("grpo_process", {"hooks": {"H4": ["step_labels", "overlong_penalty"]}}, "hooks.H4", "count for nothing"),
        ("grpo_process", {"truncated": "reward_zero"}, "truncated", "change nothing"),
        ("grpo_process", {"algorithm_params": KL_IN_REWARD}, "algorithm_params.kl_place", "count for nothing"),
        ("restrain", {"truncated": "reward_zero"}, "truncated", "change nothing"),
        ("restrain", {"algorithm_params": KL_IN_REWARD}, "algorithm_params.kl_place", "count for nothing"),
        ("passk_training", {"truncated": "reward_zero"}, "truncated", "change nothing"),
        # Without an answer key nothing may look into it, and a control run must not learn.
        ("passk_training", {"hooks": {"H4": "majority_vote"}}, "hooks.H4", "answer key"),
        ("rl_zvp", {"hooks": {"H4": "confident_vote"}}, "hooks.H4", "answer key"),
        ("grpo", {"hooks": {"H4": "majority_vote", "H5": "difficulty"}}, "hooks.H4", "answer key"),
        ("remax", {"hooks": {"H4": "majority_vote"}}, "hooks.H4", "would vote"),
        ("passk_training", {"shuffle_rewards": True}, "shuffle_rewards", "not shuffled"),
        ("restrain", {"shuffle_rewards": True}, "shuffle_rewards", "not shuffled"),
        ("rl_zvp", {"shuffle_rewards": True}, "shuffle_rewards", "not shuffled"),
        # A cut completion must not be better off than a wrong one.
        ("rlve_window", {"truncated": "reward_zero"}, "truncated", "lift the -1"),
        (
            "reward_spans",
            {"truncated": "reward_zero", "algorithm_params": {"wrong_step_penalty": 1.0}},
            "truncated",
            "wrong steps",
        ),
    ],
)
def test_rewards_that_do_not_fit_are_refused(algorithm: str, tables: dict[str, Any], key: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        legality.check(RunConfig.from_dict({"algorithm": algorithm, **tables}))
    assert caught.value.key == key
    assert said in caught.value.message


@pytest.mark.parametrize(
    ("algorithm", "tables"),
    [
        ("maxrl", {"hooks": {"H4": "confident_vote"}}),
        ("tailrl", {"hooks": {"H4": "step_labels"}}),
        ("psr", {"hooks": {"H4": "majority_vote"}}),
        ("spo", {"hooks": {"H4": "step_labels"}}),
        ("grpo_process", {"algorithm_params": {"kl_coefficient": 0.1}}),
        ("ppo", {"truncated": "reward_zero", "shuffle_rewards": True}),
    ],
)
def test_rewards_that_fit_are_taken(algorithm: str, tables: dict[str, Any]) -> None:
    legality.check(RunConfig.from_dict({"algorithm": algorithm, **tables}))


def test_a_kl_weight_that_follows_a_target_cannot_fall_below_zero() -> None:
    # Below the rollouts of a step one step of the controller would take more than all of the weight away.
    knobs = {"kl_coefficient": 0.1, "kl_target": 0.1, "kl_horizon": 255}
    with pytest.raises(ConfigError, match=r"rollouts of a step \(256\)") as caught:
        legality.check(RunConfig.from_dict({"algorithm_params": knobs}))
    assert caught.value.key == "algorithm_params.kl_horizon"
    legality.check(RunConfig.from_dict({"algorithm_params": knobs | {"kl_horizon": 256}}))
