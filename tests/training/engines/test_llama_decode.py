from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from training.engines.llama_decode import LlamaDecoder
from training.engines.torch_sampler import Decoder, ModelDecoder, TorchSampler, decoder_of, left_padded
from training.llama_layers import is_plain_llama
from training.policy import Policy

SHAPE: dict[str, Any] = {
    "vocab_size": 258,
    "hidden_size": 48,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    # Apart from hidden_size / heads.
    "head_dim": 16,
    "initializer_range": 0.2,
    "eos_token_id": 1,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}


def with_model(policy: Policy, **settings: Any) -> Policy:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SHAPE | settings)).eval()
    for name, weight in model.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(weight, 0.5, 1.5)
    return Policy(model, policy.tokenizer, policy.device)


def logits_of(policy: Policy, prompts: list[list[int]], make: Callable[..., Decoder]) -> list[torch.Tensor]:
    """Of three completions a prompt, five tokens; two rows leave after the second."""
    ids, mask = left_padded(prompts, 0, policy.device)
    owner = torch.arange(len(prompts)).repeat_interleave(3)
    tokens = torch.randint(2, 258, (len(owner), 5), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        decoder = make(policy, policy.prefill(ids, mask, owner), 5)
        found = []
        for column in range(5):
            found.append(decoder.next_logits(tokens[:, column : column + 1]))
            if column == 1:
                going = torch.tensor([0, 2, 3, *range(5, len(owner))])
                decoder.keep(going)
                tokens = tokens[going]
    return found


EVEN = [[5, 6, 7, 8], [9, 10, 11, 12]]
RAGGED = [[5, 6, 7, 8, 9, 10, 11], [9, 10], [13, 14, 15, 16]]


@pytest.mark.parametrize("prompts", [EVEN, RAGGED], ids=["even", "ragged"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"num_key_value_heads": 6},
        {"rope_parameters": LLAMA3, "max_position_embeddings": 64},
        {"hidden_act": "gelu"},
    ],
    ids=["grouped", "own-keys", "llama3", "gelu"],
)
def test_logits_are_those_of_the_model(policy: Policy, settings: dict[str, Any], prompts: list[list[int]]) -> None:
    llama = with_model(policy, **settings)
    ours = logits_of(llama, prompts, lambda policy, *start: LlamaDecoder(policy.model, *start))
    for mine, models in zip(ours, logits_of(llama, prompts, ModelDecoder), strict=True):
        torch.testing.assert_close(mine, models, atol=1e-5, rtol=1e-5)


def test_half_precision_differs_by_its_rounding_alone(policy: Policy) -> None:
    exact = with_model(policy)
    expected = logits_of(exact, RAGGED, ModelDecoder)
    exact.model.bfloat16()
    assert is_plain_llama(exact.model)
    errors = []
    for make in (decoder_of, ModelDecoder):
        found = logits_of(exact, RAGGED, make)
        assert found[0].dtype == torch.bfloat16
        errors.append(torch.stack([(a.float() - b).abs().mean() for a, b in zip(found, expected, strict=True)]).mean())
    assert errors[0] < 1.2 * errors[1]


def test_it_reads_the_weights_as_they_are(policy: Policy) -> None:
    llama = with_model(policy)
    before = logits_of(llama, EVEN, decoder_of)
    with torch.no_grad():
        llama.model.model.layers[1].self_attn.v_proj.weight.mul_(2)
    after = logits_of(llama, EVEN, decoder_of)
    assert not torch.allclose(before[0], after[0])
    torch.testing.assert_close(after, logits_of(llama, EVEN, ModelDecoder), atol=1e-5, rtol=1e-5)


def plain(model: LlamaForCausalLM) -> None:
    pass


def with_other_matrix(model: LlamaForCausalLM) -> None:
    class Quantised(torch.nn.Linear):
        pass

    model.model.layers[2].mlp.up_proj.__class__ = Quantised


@pytest.mark.parametrize(
    ("settings", "change", "is_taken"),
    [
        ({}, plain, True),
        ({"attention_bias": True}, plain, False),
        ({"mlp_bias": True}, plain, False),
        ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}}, plain, False),
        ({}, with_other_matrix, False),
    ],
    ids=["plain", "attention-bias", "mlp-bias", "dynamic-rotation", "other-matrix"],
)
def test_what_it_was_not_made_for_goes_through_the_model(
    policy: Policy, settings: dict[str, Any], change: Callable[[LlamaForCausalLM], None], is_taken: bool
) -> None:
    llama = with_model(policy, **settings)
    change(llama.model)
    assert is_plain_llama(llama.model) == is_taken
    ids, mask = left_padded(EVEN, 0, llama.device)
    decoder = decoder_of(llama, llama.prefill(ids, mask, torch.arange(2)), 2)
    assert type(decoder) is (LlamaDecoder if is_taken else ModelDecoder)


def test_relatives_of_llama_go_through_the_model(policy: Policy) -> None:
    assert not is_plain_llama(MistralForCausalLM(MistralConfig(**SHAPE)))
    assert is_plain_llama(policy.model)
    assert isinstance(TorchSampler(policy).policy.model, LlamaForCausalLM)
