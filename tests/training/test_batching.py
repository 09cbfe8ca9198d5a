import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.training.golden import CASES
from training.batching import AGGREGATIONS, MICRO_BATCH_TOKENS, aggregate, micro_batches, rollout_scale
from training.recipes import knobs

OPTIONS = {"constant_tokens": 16}


def ragged(lengths: list[int], width: int) -> torch.Tensor:
    return torch.arange(width)[None] < torch.tensor(lengths)[:, None]


@pytest.mark.parametrize(
    ("aggregation", "key"),
    [
        ("token_mean", "token_mean"),
        ("token_sum", "token_sum"),
        ("rollout_sum", "seq_mean_token_sum_excl_masked"),
        ("token_sum_constant", "seq_mean_token_sum_norm_const16"),
        ("rollout_mean", "seq_mean_token_mean_excl_masked"),
    ],
)
def test_matches_the_worked_aggregations(aggregation: str, key: str) -> None:
    case = CASES["agg.modes"]
    loss, mask = torch.tensor(case["inputs"]["loss"]), torch.tensor(case["inputs"]["mask"])
    value = aggregate(loss, mask, rollout_scale(mask, aggregation, **OPTIONS))
    assert value.item() == pytest.approx(case["expected"][key])


def test_prompt_mean_weighs_prompts_alike() -> None:
    case = CASES["agg.prompt_mean"]
    flat = [rollout for prompt in case["inputs"]["prompts"] for rollout in prompt]
    lengths, values = [int(length) for length, _ in flat], torch.tensor([float(value) for _, value in flat])
    mask = ragged(lengths, 8)
    loss = values[:, None].expand(mask.shape)
    prompt = torch.tensor([7, 7, 3, 3])  # any numbers do
    assert aggregate(loss, mask, rollout_scale(mask, "prompt_mean", prompt_index=prompt)).item() == pytest.approx(
        case["expected"]["prompt_mean"]
    )
    assert aggregate(loss, mask, rollout_scale(mask, "token_mean")).item() == pytest.approx(
        case["expected"]["token_mean"]
    )


def test_micro_batches_share_one_denominator() -> None:
    case = CASES["agg.grad_accum"]
    mask = ragged([8, 2], 8)
    loss = torch.tensor([[1.0], [3.0]]).expand(mask.shape)
    scale = rollout_scale(mask, "token_mean")
    parts = [aggregate(loss[rows], mask[rows], scale[rows]).item() for rows in micro_batches(mask.sum(dim=1), 1)]
    assert parts == pytest.approx(case["expected"]["correct_via_global_denominator"][::-1])
    assert sum(parts) == pytest.approx(case["expected"]["correct_global_token_mean"])


def test_a_masked_rollout_leaves_both_sides_of_the_mean() -> None:
    case = CASES["agg.truncated_denominator"]
    mask = ragged([4, 0], 6)
    assert aggregate(torch.ones(2, 6), mask, rollout_scale(mask, "token_mean")).item() == pytest.approx(
        case["expected"]["correct"]
    )


@pytest.mark.parametrize(
    ("aggregation", "key"), [("rollout_mean", "grpo"), ("token_mean", "dapo"), ("token_sum_constant", "dr_grpo")]
)
def test_weight_of_one_token_by_length(aggregation: str, key: str) -> None:
    case = CASES["agg.length_bias"]
    scale = rollout_scale(ragged(case["inputs"]["lengths"], 8), aggregation, **OPTIONS)
    assert scale.tolist() == pytest.approx(case["expected"][key])


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    aggregation=st.sampled_from(AGGREGATIONS),
    size=st.integers(1, 7),
    lengths=st.lists(st.integers(0, 6), min_size=1, max_size=8),
)
def test_micro_batches_add_up_to_the_gradient_of_the_whole(
    seed: int, aggregation: str, size: int, lengths: list[int]
) -> None:
    generator = torch.Generator().manual_seed(seed)
    mask = ragged(lengths, 6)
    values = torch.randn(mask.shape, generator=generator)
    prompt = torch.arange(len(lengths)) // 2
    scale = rollout_scale(mask, aggregation, prompt_index=prompt, **OPTIONS)
    weight = torch.tensor(0.5, requires_grad=True)
    (whole,) = torch.autograd.grad(aggregate((values * weight).square(), mask, scale), weight)
    for rows in micro_batches(torch.tensor(lengths), size):
        aggregate((values[rows] * weight).square(), mask[rows], scale[rows]).backward()
    assert weight.grad is not None
    assert weight.grad.item() == pytest.approx(whole.item(), rel=1e-5, abs=1e-6)


@settings(max_examples=30, deadline=None)
@given(
    aggregation=st.sampled_from(AGGREGATIONS),
    lengths=st.lists(st.integers(0, 5), min_size=1, max_size=6),
    rng=st.randoms(),
)
def test_order_and_padding_of_rollouts_do_not_matter(aggregation: str, lengths: list[int], rng: object) -> None:
    order = list(range(len(lengths)))
    rng.shuffle(order)  # type: ignore[attr-defined]
    prompt = torch.arange(len(lengths)) % 2
    scale = rollout_scale(ragged(lengths, 5), aggregation, prompt_index=prompt, **OPTIONS)
    other = rollout_scale(ragged([lengths[i] for i in order], 9), aggregation, prompt_index=prompt[order], **OPTIONS)
    torch.testing.assert_close(other, scale[order])


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_a_batch_without_a_counted_token_is_zero_and_keeps_the_graph(aggregation: str) -> None:
    mask = torch.zeros(2, 3, dtype=torch.bool)
    loss = torch.full((2, 3), math.nan, requires_grad=True)
    value = aggregate(
        loss, mask, rollout_scale(mask, aggregation, prompt_index=torch.zeros(2, dtype=torch.int64), **OPTIONS)
    )
    value.backward()
    assert value.item() == 0.0
    assert loss.grad is not None and loss.grad.abs().sum().item() == 0.0


def test_slices_cover_every_rollout_once() -> None:
    lengths = torch.tensor([5, 1, 4, 2, 9, 2, 3])
    # Shortest first, rows of a micro-batch in their order.
    assert [rows.tolist() for rows in micro_batches(lengths, 3)] == [[1, 3, 5], [0, 2, 6], [4]]
    assert [rows.tolist() for rows in micro_batches(lengths, 7)] == [[0, 1, 2, 3, 4, 5, 6]]
    assert [rows.tolist() for rows in micro_batches(lengths[:0], 3)] == []


def test_micro_batches_of_long_rollouts_hold_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MICRO_BATCH_TOKENS, "cpu", 12)
    # Sorted 1 3 4 5 6 20: three of at most 4 are 12 tokens, two of at most 6 are 12, 20 does not fit and is alone.
    batches = micro_batches(torch.tensor([5, 1, 20, 4, 3, 6]), 256)
    assert [rows.tolist() for rows in batches] == [[1, 3, 4], [0, 5], [2]]


@pytest.mark.parametrize(
    ("aggregation", "message"),
    [("mean", "unknown aggregation"), ("prompt_mean", "prompt_index"), ("token_sum_constant", "constant_tokens")],
)
def test_refuses_what_lacks_its_denominator(aggregation: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rollout_scale(torch.ones(2, 2), aggregation)


def test_the_recipe_offers_every_aggregation() -> None:
    assert sorted(knobs.AGGREGATIONS) == sorted(AGGREGATIONS)
