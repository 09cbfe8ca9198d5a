from typing import Any

import pytest

from training import legality
from training.config import ConfigError, RunConfig


def test_the_default_configuration_is_legal() -> None:
    legality.check(RunConfig())
    resolved = legality.resolve(RunConfig())
    assert resolved.params["aggregation"] == "rollout_mean"
    assert resolved.params["constant_tokens"] == RunConfig().sampling.max_new_tokens
    assert resolved.task_params == {"digits": 2, "terms": 2}
    assert resolved.parts["H8"] == ()


def test_a_kl_coefficient_brings_its_term() -> None:
    config = RunConfig.from_dict({"algorithm_params": {"kl_coefficient": 0.04}})
    legality.check(config)
    assert legality.resolve(config).parts["H8"] == ("ref_kl",)


@pytest.mark.parametrize(
    ("raw", "key", "says"),
    [
        ({"algorithm": "grop"}, "algorithm", "did you mean grpo?"),
        ({"task": {"name": "adition"}}, "task.name", "did you mean addition?"),
        ({"task": {"name": "reasoning_gym:chain_sums"}}, "task.name", "did you mean chain_sum?"),
        ({"task": {"params": {"digit": 2}}}, "task.params.digit", "did you mean digits?"),
        ({"task": {"params": {"digits": 0}}}, "task.params.digits", "at least 1"),
        ({"task": {"params": {"digits": 101}}}, "task.params.digits", "at most 100"),
        ({"task": {"params": {"digits": 2.5}}}, "task.params.digits", "a whole number"),
        ({"task": {"params": {"digits": True}}}, "task.params.digits", "a whole number"),
        ({"sampling": {"group_size": 1}}, "sampling.group_size", "at least 2"),
        ({"algorithm_params": {"clip_hgh": 0.1}}, "algorithm_params.clip_hgh", "did you mean clip_high?"),
        ({"algorithm_params": {"clip_high": -0.1}}, "algorithm_params.clip_high", "at least 0"),
        ({"algorithm_params": {"eps": float("nan")}}, "algorithm_params.eps", "finite"),
        (
            {"algorithm_params": {"aggregation": "token_meen"}},
            "algorithm_params.aggregation",
            "did you mean token_mean?",
        ),
        (
            {"algorithm_params": {"kl_coefficient": 0.1, "kl_estimator": "k1"}},
            "algorithm_params.kl_estimator",
            "k2 or k3",
        ),
        ({"algorithm_params": {"eps": 10**400}}, "algorithm_params.eps", "finite"),
        ({"optimizer": {"learning_rate": -(10**400)}}, "optimizer.learning_rate", "finite"),
        ({"hooks": {"H8": ["ref_kl"]}}, "algorithm_params.kl_coefficient", "above 0"),
        ({"hooks": {"H7": "cliped"}}, "hooks.H7", "did you mean clipped?"),
        ({"optimizer": {"warmup_steps": 101}}, "optimizer.warmup_steps", "at most steps"),
        ({"task": {"params": {"digits": 1}}}, "eval.prompts", "raise the difficulty or ask for fewer"),
        # The tasks of seed 10 would just do; every run is judged on those of the one seed.
        ({"seed": 10, "eval": {"prompts": 544}}, "eval.prompts", "raise the difficulty or ask for fewer"),
        (
            {"task": {"params": {"digits": 90}}, "sampling": {"max_new_tokens": 8}},
            "sampling.max_new_tokens",
            "91 tokens",
        ),
        ({"task": {"name": "natbool_dag", "params": {"inputs": 2, "fan_in": 3}}}, "task.params.fan_in", "at most"),
    ],
)
def test_refuses_with_the_key_and_a_way_out(raw: dict[str, Any], key: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        legality.check(RunConfig.from_dict(raw))
    assert caught.value.key == key
    assert says in caught.value.message


def test_a_model_of_ones_own_may_take_fewer_tokens_for_an_answer() -> None:
    legality.check(
        RunConfig.from_dict(
            {"model": {"path": "/models/large"}, "task": {"params": {"digits": 90}}, "sampling": {"max_new_tokens": 40}}
        )
    )
