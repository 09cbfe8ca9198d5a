"""The output layer in blocks of the vocabulary, against the reference that holds all logits."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import kernels
from kernels.testing import assert_matches
from kernels.token_logprob import blocks, reference

TEMPERATURE = 0.7


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK_ELEMENTS", 64)
    monkeypatch.setattr(blocks, "MIN_COLUMNS", 4)


def layer(tokens: int, width: int, vocab: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    hidden, weight, bias = torch.randn(tokens, width), torch.randn(vocab, width), torch.randn(vocab)
    return hidden.to(dtype), weight.to(dtype), bias.to(dtype), torch.randint(vocab, (tokens,))


# 7 is one block, 37 leaves a ragged last one, 1001 is 250 blocks of the smallest width.
@pytest.mark.parametrize(("tokens", "vocab"), [(1, 7), (9, 37), (63, 1001)])
def test_values_and_gradients_match_the_reference(tokens: int, vocab: int) -> None:
    hidden, weight, bias, ids = layer(tokens, 5, vocab, torch.float32)

    def ours(hidden: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor | None, ...]:
        return kernels.linear_token_logprob(hidden, weight, bias, ids, temperature=TEMPERATURE, with_entropy=True)

    def plain(hidden: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor | None, ...]:
        return reference.linear_token_logprob(hidden, weight, bias, ids, temperature=TEMPERATURE)

    assert_matches(ours, plain, [hidden, weight, bias], atol=2e-5)


def test_the_gradient_is_that_of_finite_differences() -> None:
    hidden, weight, bias, ids = layer(5, 3, 19, torch.float64)
    leaves = [one.requires_grad_() for one in (hidden, weight, bias)]

    def both(hidden: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor | None, ...]:
        return kernels.linear_token_logprob(hidden, weight, bias, ids, temperature=TEMPERATURE, with_entropy=True)

    assert torch.autograd.gradcheck(both, leaves)


@pytest.mark.parametrize("with_entropy", [False, True])
def test_without_bias_and_with_a_loss_of_one_result_alone(with_entropy: bool) -> None:
    hidden, weight, _, ids = layer(9, 5, 37, torch.float32)
    position = int(with_entropy)

    def ours(hidden: Tensor, weight: Tensor) -> tuple[Tensor | None, ...]:
        return (kernels.linear_token_logprob(hidden, weight, None, ids, with_entropy=with_entropy)[position],)

    def plain(hidden: Tensor, weight: Tensor) -> tuple[Tensor | None, ...]:
        return (reference.linear_token_logprob(hidden, weight, None, ids)[position],)

    assert_matches(ours, plain, [hidden, weight], atol=1e-5)


def test_a_frozen_output_layer_gets_no_gradient() -> None:
    hidden, weight, bias, ids = layer(9, 5, 37, torch.float32)
    hidden.requires_grad_()
    logprobs, entropy = kernels.linear_token_logprob(hidden, weight, bias, ids)
    logprobs.sum().backward()
    assert entropy is None
    assert hidden.grad is not None
    assert weight.grad is None
    assert bias.grad is None


def test_half_precision_is_summed_in_full() -> None:
    hidden, weight, bias, ids = layer(9, 64, 301, torch.bfloat16)

    def ours(hidden: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor | None, ...]:
        return kernels.linear_token_logprob(hidden, weight, bias, ids, with_entropy=True)

    def plain(hidden: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor | None, ...]:
        return reference.linear_token_logprob(hidden, weight, bias, ids)

    values, wanted = ours(hidden, weight, bias), plain(hidden.double(), weight.double(), bias.double())
    for mine, exact in zip(values, wanted, strict=True):
        assert mine.dtype == torch.float32
        torch.testing.assert_close(mine.double(), exact, atol=2e-5, rtol=1e-5)
    # Gradients come back in bf16: eight bits.
    assert_matches(ours, plain, [hidden, weight, bias], atol=2e-3, rtol=1e-2)


def test_impossible_tokens_and_blocks_of_them_add_nothing() -> None:
    hidden, weight, bias, _ = layer(8, 5, 37, torch.float32)
    bias[:20] = -torch.inf
    bias[30] = -torch.inf
    ids = torch.full((8,), 25)

    def ours(hidden: Tensor, weight: Tensor) -> tuple[Tensor | None, ...]:
        return kernels.linear_token_logprob(hidden, weight, bias, ids, with_entropy=True)

    def plain(hidden: Tensor, weight: Tensor) -> tuple[Tensor | None, ...]:
        return reference.linear_token_logprob(hidden, weight, bias, ids)

    assert_matches(ours, plain, [hidden, weight], atol=1e-5)


def test_huge_logits_keep_their_precision() -> None:
    hidden, weight = torch.tensor([[1.0]]), torch.tensor([[3e4], [3e4], [0.0], [-3e4], [3e4]])
    logprobs, entropy = kernels.linear_token_logprob(hidden, weight, None, torch.tensor([4]), with_entropy=True)
    assert logprobs.item() == pytest.approx(-math.log(3), abs=1e-5)
    assert entropy is not None
    assert entropy.item() == pytest.approx(math.log(3), abs=1e-5)


def test_a_number_outside_of_the_vocabulary_is_no_number() -> None:
    hidden, weight, bias, _ = layer(2, 5, 37, torch.float32)
    logprobs, _ = kernels.linear_token_logprob(hidden, weight, bias, torch.tensor([36, 37]))
    assert logprobs.isfinite().tolist() == [True, False]


def test_what_does_not_belong_together_is_refused() -> None:
    hidden, weight, bias, ids = layer(4, 5, 37, torch.float32)
    with pytest.raises(ValueError, match=r"weight \[V, H\]"):
        kernels.linear_token_logprob(hidden[:, :4], weight, bias, ids)
    with pytest.raises(ValueError, match=r"token_ids must be \[4\]"):
        kernels.linear_token_logprob(hidden, weight, bias, ids[:3])
    with pytest.raises(ValueError, match="one dtype"):
        kernels.linear_token_logprob(hidden.double(), weight, bias, ids)
    with pytest.raises(ValueError, match="temperature"):
        kernels.linear_token_logprob(hidden, weight, bias, ids, temperature=0.0)


def test_the_logits_of_all_tokens_never_exist() -> None:
    hidden, weight, bias, ids = layer(64, 8, 4096, torch.float32)
    with LargestTensor() as largest:
        logprobs, entropy = kernels.linear_token_logprob(hidden.requires_grad_(), weight, bias, ids, with_entropy=True)
        assert entropy is not None
        (logprobs + entropy).sum().backward()
    # A block of logits is 64 x 4 and what is kept of each 1024 x 64; the logits would be four times that.
    assert 0 < largest.elements <= 1024 * 64


class LargestTensor(TorchDispatchMode):
    """Elements of the largest tensor that any operation made, views left out."""

    elements = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and not result._is_view():
            self.elements = max(self.elements, result.numel())
        return result
