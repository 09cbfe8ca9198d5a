import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.training.golden import CASES
from training.mismatch import bounded, effective_sample_share, mismatch_ratio, sequence_kept


def row(values: list[float]) -> torch.Tensor:
    return torch.tensor([values], dtype=torch.float64)


def pair(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    inputs = CASES[name]["inputs"]
    return row(inputs["logp_train_old"]), row(inputs["logp_rollout"])


def test_ratios_outside_the_bounds_are_dropped_as_in_the_worked_example() -> None:
    case = CASES["corr.icepop"]
    ratio = mismatch_ratio(*pair("corr.icepop"), torch.ones(1, 3))
    found = bounded(ratio, low=case["params"]["lo"], high=case["params"]["hi"])
    assert found[0].tolist() == pytest.approx(case["expected"]["weight"])


def test_a_completion_is_kept_by_its_geometric_mean_as_in_the_worked_example() -> None:
    case = CASES["corr.seq_mask_tis"]
    near, far = pair("corr.seq_mask_tis"), pair("corr.icepop")
    ones = torch.ones(1, 3)
    mean = mismatch_ratio(*near, ones, level="sequence_mean")
    assert mean[0].tolist() == pytest.approx([case["expected"]["geo_mean"]] * 3)
    assert sequence_kept(*near, ones, low=0.999, high=1.002).tolist() == [case["expected"]["keep"]]
    assert sequence_kept(*far, ones, low=0.999, high=1.002).tolist() == [case["expected"]["previous_case_keep"]]
    assert mismatch_ratio(*near, ones)[0].tolist() == pytest.approx(case["expected"]["token_weight"])


def test_the_sum_collapses_with_the_length_and_the_mean_does_not() -> None:
    # Every token 2 % less likely for the trainer.
    short, long = torch.zeros(1, 10), torch.zeros(1, 1000)
    for tokens in (short, long):
        mean = mismatch_ratio(tokens - 0.02, tokens, tokens == 0, level="sequence_mean")
        assert mean[0, 0].item() == pytest.approx(math.exp(-0.02), rel=1e-5)
    total = [mismatch_ratio(t - 0.02, t, t == 0, level="sequence_sum")[0, 0].item() for t in (short, long)]
    assert total == pytest.approx([math.exp(-0.2), math.exp(-20)], rel=1e-3)


def test_masked_tokens_never_matter() -> None:
    mask = torch.tensor([[1, 0, 1], [0, 0, 0]])
    trainer = torch.tensor([[-1.0, math.nan, -1.0], [math.nan] * 3])
    engine = torch.tensor([[-1.5, 0.0, -0.5], [-math.inf] * 3])
    assert mismatch_ratio(trainer, engine, mask)[0].tolist() == pytest.approx([math.exp(0.5), 1.0, math.exp(-0.5)])
    for level in ("sequence_mean", "sequence_sum"):
        assert mismatch_ratio(trainer, engine, mask, level=level).tolist() == [[1.0] * 3] * 2
    assert sequence_kept(trainer, engine, mask, low=0.999, high=1.001).tolist() == [True, True]


def test_a_runaway_mismatch_is_clamped() -> None:
    found = mismatch_ratio(torch.tensor([[0.0, -500.0]]), torch.tensor([[-500.0, 0.0]]), torch.ones(1, 2))
    assert found[0].tolist() == pytest.approx([math.exp(20), math.exp(-20)])
    with pytest.raises(ValueError, match="unknown mismatch level 'rollout'; known: token, sequence_mean"):
        mismatch_ratio(torch.zeros(1, 1), torch.zeros(1, 1), torch.ones(1, 1), level="rollout")


@given(st.lists(st.floats(0.01, 10), min_size=1, max_size=6))
def test_the_effective_sample_share_is_one_for_equal_weights_and_less_else(weights: list[float]) -> None:
    found = effective_sample_share(row(weights), torch.ones(1, len(weights)))
    assert 1 / len(weights) - 1e-9 <= found <= 1 + 1e-9
    assert effective_sample_share(row([2.0, 2.0, 9.0]), row([1, 1, 0])) == pytest.approx(1.0)
    # (1 + 3)^2 / (2 (1 + 9))
    assert effective_sample_share(row([1.0, 3.0]), torch.ones(1, 2)) == pytest.approx(0.8)
    assert effective_sample_share(row([0.0]), torch.ones(1, 1)) == 0.0
