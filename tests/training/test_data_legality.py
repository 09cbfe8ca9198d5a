from typing import Any

import pytest

from training import legality
from training.config import ConfigError, RunConfig
from training.recipes import RECIPES


def config(algorithm: str, **tables: Any) -> RunConfig:
    return RunConfig.from_dict({"algorithm": algorithm, **tables})


@pytest.mark.parametrize(
    ("algorithm", "tables", "key", "said"),
    [
        ("rlve_window", {"task": {"name": "reasoning_gym:chain_sum"}}, "task.name", "levels of difficulty"),
        ("rlve_window", {"task": {"pool": 10}}, "task.pool", "set 0, got 10"),
        ("rlve_window", {"hooks": {"H9": "base_profile"}}, "hooks.H9", "take uniform"),
        ("spo", {"task": {"pool": 8}}, "task.pool", "from a pool of 8; raise it"),
        ("spo", {"truncated": "reward_zero"}, "truncated", "take keep or mask"),
        ("spo", {"hooks": {"H9": "uniform"}}, "hooks.H9", "needs the running values of tracked"),
        ("spo", {"hooks": {"H4": ["task", "overlong_penalty"]}}, "hooks.H4", "take overlong_penalty out"),
        ("ttrl", {"hooks": {"H4": ["task", "majority_vote"]}}, "hooks.H4", "take task out"),
        ("ttrl", {"hooks": {"H4": ["majority_vote", "soft_labels"]}}, "hooks.H4", "take soft_labels out"),
        ("ttrl", {"algorithm_params": {"trained_votes": 65}}, "algorithm_params.trained_votes", "got 65"),
        ("ttrl", {"algorithm_params": {"trained_votes": 1}}, "algorithm_params.trained_votes", "from 2"),
        (
            "vpg",
            {"hooks": {"H4": ["majority_vote"]}, "sampling": {"group_size": 1}},
            "sampling.group_size",
            "at least 2",
        ),
        ("restrain", {"hooks": {"H9": "uniform"}}, "hooks.H9", "set base_profile"),
        ("restrain", {"hooks": {"H4": ["task"]}}, "hooks.H4", "soft_labels; name it"),
        ("restrain", {"sampling": {"group_size": 1}}, "sampling.group_size", "at least 2"),
        ("reward_spans", {"task": {"name": "reasoning_gym:gcd"}}, "hooks.H4", "gcd does not show; take task"),
        ("grpo", {"task": {"pool": 500, "params": {"digits": 1}}, "eval": {"prompts": 4}}, "task.pool", "only about"),
        ("cbrl", {"algorithm_params": {"examples_start": 2.0}}, "algorithm_params.examples_start", "at most 1"),
        ("hardest_decile", {"algorithm_params": {"preset": "hardest"}}, "algorithm_params.preset", "did you mean"),
    ],
)
def test_parts_that_do_not_fit_are_refused_with_a_way_out(
    algorithm: str, tables: dict[str, Any], key: str, said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        legality.check(config(algorithm, **tables))
    assert caught.value.key == key
    assert said in caught.value.message


def test_a_vote_goes_with_penalties_and_rewards_of_other_things() -> None:
    legality.check(config("ttrl", hooks={"H4": ["majority_vote", "overlong_penalty"]}))


def test_a_selection_that_remembers_has_a_pool_without_being_asked() -> None:
    assert legality.resolve(config("spo")).pool == 256
    assert legality.resolve(config("spo", task={"pool": 77})).pool == 77
    assert legality.resolve(config("grpo")).pool == 0


def test_a_recipe_speaks_where_the_configuration_is_silent() -> None:
    assert config("spo").sampling.group_size == 1
    assert config("spo", sampling={"group_size": 3}).sampling.group_size == 3
    assert config("spo", sampling={"prompts_per_step": 5}).sampling.group_size == 1
    assert config("ttrl").sampling.group_size == 64
    assert config("natbool_dag").task.name == "natbool_dag"
    assert config("natbool_dag", task={"name": "addition"}).task.name == "addition"
    assert config("grpo").sampling.group_size == 8
    for name in RECIPES:
        assert RunConfig.from_dict(config(name).to_dict()) == config(name)


def test_what_a_recipe_says_hides_no_mistake() -> None:
    with pytest.raises(ConfigError, match=r"did you mean sampling\.group_size"):
        config("spo", sampling={"group_sise": 3})
    with pytest.raises(ConfigError, match="must be a table"):
        RunConfig.from_dict({"algorithm": "spo", "sampling": 3})
    with pytest.raises(ConfigError):
        RunConfig.from_dict({"algorithm": ["spo"]})
