"""Llama's layers with fewer passes: what transformers makes of them, their gradients, and the gradients of those."""

import copy

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from training.llama_layers import QuickAttention, QuickNorm, RmsNorm, Rotation, quicken

SHAPE = {
    "vocab_size": 40, "hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 6, "max_position_embeddings": 64,
}  # fmt: skip


def doubles(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, dtype=torch.float64, generator=generator, requires_grad=True)


@pytest.mark.parametrize("check", [torch.autograd.gradcheck, torch.autograd.gradgradcheck])
def test_gradients_agree_with_finite_differences_twice_over(check: object) -> None:
    assert callable(check)
    x, weight, cos, sin = doubles(2, 3, 8), doubles(8), doubles(3, 4).detach(), doubles(3, 4).detach()
    assert check(lambda x, weight: RmsNorm.apply(x, weight, 1e-5), (x, weight))
    assert check(lambda x: Rotation.apply(x, cos, sin), (x,))


def test_a_norm_by_hand() -> None:
    # Mean square 12.5 of 3 and 4, plus 3.5: divided by 4.
    found = RmsNorm.apply(torch.tensor([[3.0, 4.0]]), torch.tensor([2.0, 1.0]), 3.5)
    assert found.tolist() == [[1.5, 1.0]]
    assert Rotation.apply(torch.tensor([1.0, 2.0]), torch.tensor([0.0]), torch.tensor([1.0])).tolist() == [-2.0, 1.0]


@pytest.mark.parametrize("kv_heads", [2, 4])
def test_scores_and_gradients_are_those_of_transformers(kv_heads: int) -> None:
    torch.manual_seed(0)
    plain = LlamaForCausalLM(LlamaConfig(**SHAPE | {"num_key_value_heads": kv_heads})).eval()
    quick = copy.deepcopy(plain)
    quicken(quick)
    assert {type(one) for one in quick.modules()} >= {QuickNorm, QuickAttention}
    ids = torch.randint(0, 40, (3, 9), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids).index_put((torch.tensor([0, 0]), torch.tensor([0, 1])), torch.tensor(0))
    for model in (plain, quick):
        logits = model(ids, attention_mask=mask).logits
        logits.log_softmax(-1).gather(-1, ids[..., None]).sum().backward()
    assert torch.allclose(quick(ids, attention_mask=mask).logits, plain(ids, attention_mask=mask).logits, atol=1e-5)
    for (name, one), other in zip(plain.named_parameters(), quick.parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert torch.allclose(one.grad, other.grad, rtol=1e-4, atol=1e-5), name


def test_a_copy_has_layers_of_its_own_and_other_models_stay_as_they_are() -> None:
    quick = LlamaForCausalLM(LlamaConfig(**SHAPE)).eval()
    quicken(quick)
    other = copy.deepcopy(quick)
    with torch.no_grad():
        for weights in quick.parameters():
            weights.zero_()
    assert other(torch.zeros(1, 2, dtype=torch.int64)).logits.abs().sum() > 0
    assert other.state_dict().keys() == LlamaForCausalLM(LlamaConfig(**SHAPE)).state_dict().keys()
    for model in (MistralForCausalLM(MistralConfig(**SHAPE)), LlamaForCausalLM(LlamaConfig(**SHAPE)).bfloat16()):
        quicken(model)
        assert not [one for one in model.modules() if type(one) in (QuickNorm, QuickAttention)]
