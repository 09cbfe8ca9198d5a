import math
from dataclasses import replace

import pytest
import torch

from tests.training.golden import CASES
from training.auxiliary import AUXILIARIES
from training.losses import LossInputs
from training.policy import entropy_of

MASK = torch.tensor([[True, True, False]])


def inputs(policy: torch.Tensor, **columns: torch.Tensor) -> LossInputs:
    zeros = torch.zeros_like(policy)
    return replace(LossInputs(policy, zeros, zeros, zeros, MASK), **columns)


def test_the_entropy_of_the_worked_example_and_its_slope() -> None:
    case = CASES["entropy.value"]
    logits = torch.tensor(case["inputs"]["logits"], dtype=torch.float64, requires_grad=True)
    entropy = entropy_of(logits.log_softmax(-1))
    assert entropy.item() == pytest.approx(case["expected"]["H"])
    (slope,) = torch.autograd.grad(entropy, logits, retain_graph=True)
    assert slope.tolist() == pytest.approx(case["expected"]["dH_dlogits"])
    # Descent on the term raises the entropy; masked tokens have no part.
    columns = torch.stack([entropy, entropy, torch.full_like(entropy, math.nan)])[None]
    term = AUXILIARIES["entropy_bonus"](inputs(torch.zeros(1, 3), policy_entropy=columns), {"entropy_coefficient": 0.5})
    assert term[0].tolist() == pytest.approx([-0.5 * case["expected"]["H"]] * 2 + [0.0])
    (descent,) = torch.autograd.grad(term[0, 0], logits)
    assert descent.tolist() == pytest.approx([-0.5 * one for one in case["expected"]["dH_dlogits"]])


def test_the_entropy_term_never_goes_without_the_policys_entropy() -> None:
    with pytest.raises(ValueError, match="policy's entropy"):
        AUXILIARIES["entropy_bonus"](inputs(torch.zeros(1, 3)), {"entropy_coefficient": 0.5})


def test_drift_costs_its_square() -> None:
    policy = torch.tensor([[-1.0, -2.0, math.nan]], requires_grad=True)
    given = inputs(policy, sampler_logprobs=torch.tensor([[-1.5, -1.0, math.inf]]))
    term = AUXILIARIES["drift_square"](given, {"drift_coefficient": 0.1})
    assert term[0].tolist() == pytest.approx([0.025, 0.1, 0.0])
    (slope,) = torch.autograd.grad(term.sum(), policy)
    assert slope[0].tolist() == pytest.approx([0.1, -0.2, 0.0])
