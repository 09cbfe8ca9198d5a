import math

import pytest
import torch

from kernels.token_logprob import reference
from tests.training.golden import CASES


def test_matches_the_worked_example_at_two_temperatures() -> None:
    case = CASES["logprob.temperature"]
    logits, token = torch.tensor([case["inputs"]["logits"]]), torch.tensor([case["inputs"]["token"]])
    assert reference.token_logprob(logits, token).item() == pytest.approx(case["expected"]["logp_T1"], abs=1e-6)
    scaled = reference.token_logprob(logits / case["inputs"]["temperature"], token)
    assert scaled.item() == pytest.approx(case["expected"]["logp_T0.7"], abs=1e-6)


def test_entropy_matches_the_worked_example_in_value_and_slope() -> None:
    case = CASES["entropy.value"]
    logits = torch.tensor([case["inputs"]["logits"]], requires_grad=True)
    _, entropy = reference.token_logprob_and_entropy(logits, torch.tensor([0]))
    entropy.sum().backward()
    assert entropy.item() == pytest.approx(case["expected"]["H"], abs=1e-6)
    assert logits.grad is not None
    assert logits.grad[0].tolist() == pytest.approx(case["expected"]["dH_dlogits"], abs=1e-6)


def test_an_impossible_token_adds_nothing_to_the_entropy() -> None:
    logits = torch.tensor([[0.0, 0.0, -math.inf]], requires_grad=True)
    logprob, entropy = reference.token_logprob_and_entropy(logits, torch.tensor([1]))
    (logprob + entropy).sum().backward()
    assert logprob.item() == pytest.approx(-math.log(2))
    assert entropy.item() == pytest.approx(math.log(2))
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()


def test_rows_are_independent_and_half_precision_is_summed_in_full() -> None:
    torch.manual_seed(0)
    logits, ids = torch.randn(7, 513, dtype=torch.bfloat16), torch.randint(513, (7,))
    logprob, entropy = reference.token_logprob_and_entropy(logits, ids)
    assert logprob.dtype == entropy.dtype == torch.float32
    exact = logits.double().log_softmax(-1)
    torch.testing.assert_close(logprob.double(), exact[torch.arange(7), ids], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(entropy.double(), -(exact.exp() * exact).sum(-1), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(reference.token_logprob(logits, ids), logprob)


def test_refuses_shapes_that_do_not_pair_up() -> None:
    with pytest.raises(ValueError, match="token_ids"):
        reference.token_logprob(torch.zeros(2, 3), torch.zeros(3, dtype=torch.int64))
