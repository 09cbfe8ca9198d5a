from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from tests.training.test_policy import padded_tokens
from training import adapters, checkpoints
from training.config import ConfigError, ModelConfig, OptimizerConfig
from training.optimizers import Optimizer
from training.policy import BeforeLearning, Policy, Tokens, load_policy, merged_weights, put_weights, weights_of


def lora(model_folder: Path, **config: object) -> Policy:
    torch.manual_seed(0)
    return load_policy(ModelConfig(path=str(model_folder), lora_rank=2, **config))  # type: ignore[arg-type]


def tokens_of(policy: Policy) -> Tokens:
    return padded_tokens(policy, [[21, 33, 1], [40], [5, 6, 7, 8, 1], [9, 1]], [0, 0, 1, 2])


def logprobs(policy: Policy) -> torch.Tensor:
    tokens = tokens_of(policy)
    with torch.no_grad():
        return policy.score(tokens, temperature=1.0).logprobs[tokens.completion_mask]


def learned(policy: Policy, steps: int = 3) -> Optimizer:
    optimizer = Optimizer(policy.model, OptimizerConfig())
    tokens = tokens_of(policy)
    for _ in range(steps):
        optimizer.zero_grad()
        policy.score(tokens, temperature=1.0).logprobs[tokens.completion_mask].sum().backward()
        optimizer.step(1e-2)
    return optimizer


def test_fresh_adapters_change_nothing_and_only_they_learn(model_folder: Path, policy: Policy) -> None:
    adapted = lora(model_folder)
    torch.testing.assert_close(logprobs(adapted), logprobs(policy), atol=2e-6, rtol=0)
    before = {name: weight.clone() for name, weight in weights_of(adapted).items()}
    learned(adapted)
    moved = {name for name, weight in weights_of(adapted).items() if not torch.equal(weight, before[name])}
    assert moved == {name for name in before if adapters.is_of_adapter(name)}
    assert len(adapters.adapter_layers(adapted.model)) == 2 * 7
    assert (logprobs(adapted) - logprobs(policy)).abs().max() > 0.01


def test_the_reference_is_the_policy_without_what_it_learned(model_folder: Path, policy: Policy) -> None:
    adapted = lora(model_folder)
    learned(adapted)
    now = logprobs(adapted)
    assert (now - logprobs(policy)).abs().max() > 0.01
    torch.testing.assert_close(logprobs(BeforeLearning(adapted)), logprobs(policy), atol=2e-6, rtol=0)
    assert torch.equal(logprobs(adapted), now)
    assert BeforeLearning(adapted).model is adapted.model


def test_merged_weights_are_the_policy_without_adapters(model_folder: Path, policy: Policy) -> None:
    adapted = lora(model_folder, lora_alpha=3.0)
    learned(adapted)
    assert set(merged_weights(adapted)) == set(weights_of(policy))
    put_weights(policy, merged_weights(adapted))
    torch.testing.assert_close(logprobs(policy), logprobs(adapted), atol=2e-5, rtol=0)
    # alpha / rank, written out for one layer.
    layer = adapted.model.model.layers[0].mlp.up_proj
    up, down = layer.lora_B["default"].weight, layer.lora_A["default"].weight
    wanted = layer.base_layer.weight + 1.5 * up @ down
    torch.testing.assert_close(policy.model.model.layers[0].mlp.up_proj.weight, wanted)


def test_a_checkpoint_holds_the_adapters_alone_and_goes_on_bit_for_bit(model_folder: Path, tmp_path: Path) -> None:
    whole, first, second = (lora(model_folder) for _ in range(3))
    learned(whole, 5)
    saved = checkpoints.save(tmp_path, first, learned(first, 3), {}, side_state={}, step=3, keep=1)
    assert saved is not None
    assert (saved.path / "adapter_model.safetensors").stat().st_size < 40_000
    assert not (saved.path / "model.safetensors").exists()
    optimizer = Optimizer(second.model, OptimizerConfig())
    checkpoints.load(saved, second, optimizer)
    assert torch.equal(logprobs(second), logprobs(first))
    tokens = tokens_of(second)
    for _ in range(2):
        optimizer.zero_grad()
        second.score(tokens, temperature=1.0).logprobs[tokens.completion_mask].sum().backward()
        optimizer.step(1e-2)
    assert torch.equal(logprobs(second), logprobs(whole))


def test_peft_reads_a_checkpoint(model_folder: Path, tmp_path: Path) -> None:
    adapted = lora(model_folder)
    saved = checkpoints.save(tmp_path, adapted, learned(adapted), {}, side_state={}, step=3, keep=1)
    assert saved is not None
    base = AutoModelForCausalLM.from_pretrained(model_folder)
    ids = torch.tensor([adapted.encode("12+34=")])
    theirs = PeftModel.from_pretrained(base, saved.path)(input_ids=ids).logits
    torch.testing.assert_close(theirs, adapted.model(input_ids=ids).logits, atol=1e-5, rtol=0)


def test_adapters_of_small_weights_learn_in_float32(model_folder: Path) -> None:
    adapted = lora(model_folder, dtype="bfloat16")
    kinds = {adapters.is_of_adapter(name): weight.dtype for name, weight in weights_of(adapted).items()}
    assert kinds == {True: torch.float32, False: torch.bfloat16}
    learned(adapted)


@pytest.mark.parametrize("targets", ["q_proj, nothing", "", "all-linear, q_proj", "lm_head"])
def test_layers_that_are_not_there_are_refused(model_folder: Path, targets: str) -> None:
    with pytest.raises(ConfigError, match="some of down_proj, gate_proj") as refused:
        lora(model_folder, lora_targets=targets)
    assert refused.value.key == "model.lora_targets"


def test_only_the_layers_asked_for_get_adapters(model_folder: Path) -> None:
    adapted = lora(model_folder, lora_targets="q_proj, v_proj")
    assert {name.rpartition(".")[2] for name in adapters.adapter_layers(adapted.model)} == {"q_proj", "v_proj"}
