"""Which parts go together: every rule is refused by its key, with a reason and a way out, and what is right passes."""

from typing import Any

import pytest

from training import legality
from training.config import ConfigError, RunConfig
from training.recipes import PRESETS, RECIPES, named

KL_IN_REWARD = {"kl_coefficient": 0.1, "kl_place": "reward"}


@pytest.mark.parametrize(
    ("raw", "key", "says"),
    [
        (
            {"algorithm": "pkpo", "algorithm_params": {"pass_k": 9}},
            "algorithm_params.pass_k",
            "at most the completions",
        ),
        ({"algorithm": "passk_training", "algorithm_params": {"pass_k": 8}}, "algorithm_params.pass_k", "8"),
        ({"algorithm": "passk_training", "algorithm_params": {"pass_k": 9}}, "algorithm_params.pass_k", "got 9"),
        ({"algorithm": "remax", "hooks": {"H3": "plain"}}, "hooks.H3", "set both or neither"),
        ({"hooks": {"H3": "with_greedy"}}, "hooks.H3", "set both or neither"),
        ({"algorithm": "remax", "hooks": {"H9": "mixed_only"}}, "hooks.H9", "take uniform"),
        ({"algorithm": "ppo", "hooks": {"H9": "mixed_only"}}, "hooks.H9", "take uniform"),
        # Normalised twice.
        ({"algorithm": "tailrl", "hooks": {"H6": "whitened"}}, "hooks.H6", "undo the scale"),
        ({"algorithm": "pkpo", "hooks": {"H6": "whitened"}}, "hooks.H6", "undo the scale"),
        ({"algorithm": "passk_training", "hooks": {"H6": "whitened"}}, "hooks.H6", "undo the scale"),
        ({"algorithm": "stratified_grpo", "hooks": {"H6": "whitened"}}, "hooks.H6", "undo the scale"),
        ({"algorithm": "grpo_process", "hooks": {"H6": ["process", "whitened"]}}, "hooks.H6", "undo the scale"),
        ({"algorithm": "grpo_lead", "hooks": {"H6": "whitened"}}, "algorithm_params.divide_by_std", "a second time"),
        # The chain of H6.
        ({"algorithm": "ppo", "hooks": {"H6": ["whitened", "gae"]}}, "hooks.H6", "in the order gae, whitened"),
        ({"hooks": {"H6": []}}, "hooks.H6", "take uniform"),
        ({"algorithm": "ppo", "hooks": {"H6": ["return_to_go", "gae"]}}, "hooks.H6", "name one"),
        ({"hooks": {"H6": ["truncated_mismatch", "bounded_mismatch"]}}, "hooks.H6", "corrected twice"),
        ({"algorithm": "grpo", "hooks": {"H6": "return_to_go"}}, "hooks.H6", "which group has scaled"),
        ({"algorithm": "grpo_process", "hooks": {"H6": "uniform"}}, "hooks.H6", "set both or neither"),
        ({"hooks": {"H6": "process"}}, "hooks.H6", "set both or neither"),
        ({"hooks": {"H6": "covariance_top"}}, "hooks.H7", "the loss unclipped"),
        ({"algorithm": "dppo", "hooks": {"H6": "truncated_mismatch"}}, "hooks.H6", "correct twice"),
        ({"algorithm": "tis", "sampling": {"top_p": 0.9}}, "hooks.H6", "sample from all tokens"),
        ({"algorithm": "icepop", "sampling": {"top_k": 20}}, "hooks.H6", "sample from all tokens"),
        ({"algorithm": "sequence_mask", "sampling": {"min_p": 0.1}}, "hooks.H6", "sample from all tokens"),
        # The critic's three parts.
        ({"algorithm": "ppo", "hooks": {"H10": "none"}}, "hooks.H10", "set all three or none"),
        ({"algorithm": "ppo", "hooks": {"H6": "whitened"}}, "hooks.H6", "set all three or none"),
        ({"hooks": {"H10": "critic"}}, "hooks.H5", "set all three or none"),
        # Losses.
        ({"algorithm": "trpo", "optimizer": {"updates_per_step": 2}}, "optimizer.updates_per_step", "take 1 update"),
        (
            {
                "algorithm": "trpo",
                "algorithm_params": {"kl_place": "loss", "kl_coefficient": 0.1, "kl_estimator": "k3"},
            },
            "hooks.H8",
            "no further loss",
        ),
        ({"algorithm": "remax", "optimizer": {"updates_per_step": 2}}, "optimizer.updates_per_step", "no importance"),
        ({"algorithm": "gspo", "hooks": {"H6": "top_entropy"}}, "hooks.H6", "take uniform, or a token-level loss"),
        ({"algorithm": "gspo", "hooks": {"H6": "truncated_mismatch"}}, "hooks.H6", "unlike signals"),
        ({"algorithm": "gmpo", "hooks": {"H6": "ends_first"}}, "hooks.H6", "unlike signals"),
        ({"algorithm": "rloo", "hooks": {"H6": "return_to_go"}}, "hooks.H6", "unlike signals"),
        # KL.
        ({"algorithm_params": {"kl_target": 0.1}}, "algorithm_params.kl_coefficient", "must start above 0"),
        ({"hooks": {"H8": ["ref_kl"]}, "algorithm_params": KL_IN_REWARD}, "hooks.H8", "in the reward already"),
        ({"algorithm": "psr", "algorithm_params": KL_IN_REWARD}, "algorithm_params.kl_place", "set kl_place to loss"),
        ({"algorithm": "maxrl", "algorithm_params": KL_IN_REWARD}, "algorithm_params.kl_place", "as it was judged"),
        ({"algorithm": "tailrl", "algorithm_params": KL_IN_REWARD}, "algorithm_params.kl_place", "as it was judged"),
    ],
)
def test_refuses_with_the_key_and_a_way_out(raw: dict[str, Any], key: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        legality.check(RunConfig.from_dict(raw))
    assert caught.value.key == key
    assert says in caught.value.message


@pytest.mark.parametrize(
    "raw",
    [
        {"algorithm": "gspo_token", "hooks": {"H6": "top_entropy"}},
        {
            "algorithm": "gspo",
            "hooks": {"H6": "truncated_mismatch"},
            "algorithm_params": {"mismatch_level": "sequence_mean"},
        },
        {"algorithm": "dr_grpo", "hooks": {"H6": "whitened"}},
        {"algorithm": "vpg", "hooks": {"H6": "return_to_go"}, "algorithm_params": KL_IN_REWARD},
        {"algorithm": "ppo", "hooks": {"H6": ["gae", "whitened", "truncated_mismatch"]}},
        {"algorithm": "grpo", "algorithm_params": KL_IN_REWARD | {"kl_target": 0.1, "kl_estimator": "k1"}},
        {"algorithm": "tis", "sampling": {"top_p": 1.0, "temperature": 0.7}},
        {"algorithm": "remax", "sampling": {"group_size": 1}},
        {"algorithm": "opo", "hooks": {"H6": "return_to_go", "H9": "mixed_only"}},
    ],
)
def test_takes_what_is_right(raw: dict[str, Any]) -> None:
    legality.check(RunConfig.from_dict(raw))


@pytest.mark.parametrize("name", [*RECIPES, *PRESETS])
def test_every_name_resolves_and_is_legal(name: str) -> None:
    config = RunConfig.from_dict({"algorithm": name, "eval": {"prompts": 1}})
    legality.check(config)
    resolved, recipe = legality.resolve(config), named(name)
    assert recipe is not None and resolved.recipe == recipe
    # A default that no part of the recipe knows would be left out without a word.
    assert set(recipe.defaults) <= set(recipe.params)
    moved = {key: value for key, value in recipe.defaults.items() if value or not isinstance(value, int)}
    assert resolved.params.items() >= moved.items()


def test_a_preset_is_its_recipe_with_other_numbers_that_a_run_may_still_override() -> None:
    preset = legality.resolve(RunConfig.from_dict({"algorithm": "grpo@trl", "algorithm_params": {"eps": 0.01}}))
    assert preset.parts == legality.resolve(RunConfig()).parts
    assert preset.params["aggregation"] == "token_mean"
    assert preset.params["eps"] == 0.01
    with pytest.raises(ConfigError, match=r"did you mean grpo@trl\?"):
        legality.check(RunConfig.from_dict({"algorithm": "grpo@tlr"}))
