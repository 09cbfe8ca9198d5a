"""Mistakes that trainers of this kind have made, one test each; what they are is in the test's name."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.training.builders import make_rollouts, make_scores
from tests.training.golden import CASES
from training.batching import aggregate, rollout_scale
from training.config import ConfigError, RunConfig
from training.credit import ModelColumns, Signal, assign_credit
from training.engines.base import PromptRequest, Samples
from training.engines.torch_sampler import TorchSampler
from training.legality import check, resolve
from training.losses import KEPT, LOSSES, LossInputs, PolicyLoss
from training.mismatch import bounded
from training.plans import SampleRequest
from training.policy import Policy
from training.rollouts import Rollouts, sample_rollouts
from training.selection import ChosenPrompt
from training.selections import SELECTIONS
from training.tasks.catalog import FAMILIES, make_params
from training.tasks.stream import TaskStream, make_task
from training.transforms import identity

ADDITION = FAMILIES["addition"]


def ragged(*lengths: int, width: int = 8) -> Tensor:
    return torch.arange(width) < torch.tensor(lengths)[:, None]


def credit(recipe: str, rollouts: Rollouts, rewards: Sequence[float | None], **options: Any) -> Signal:
    """The signal of a step as a run works it out."""
    config = RunConfig.from_dict({"algorithm": recipe, "algorithm_params": options.pop("params", {})})
    resolved = resolve(config)
    selection = SELECTIONS["uniform"](TaskStream(ADDITION, make_params(ADDITION, {}), 0), {}, 0)
    return assign_credit(
        rollouts,
        make_scores(rewards, rollouts),
        options.pop("columns", ModelColumns()),
        resolved.parts,
        resolved.params,
        selection,
        running_mean=0.0,
        seed=0,
        **({"truncated": "keep"} | options),
    )


def inputs(moves: list[list[float]], advantages: float | Tensor = 1.0, **columns: Any) -> LossInputs:
    """Tokens whose policy has left the sampler, both far from 1, by so many nats."""
    sampler = torch.full((len(moves), len(moves[0])), -1.0, dtype=torch.float64)
    policy = (sampler + torch.tensor(moves, dtype=torch.float64)).requires_grad_()
    ones = torch.ones_like(sampler)
    given = {"token_weights": ones, "loss_mask": ones.bool()} | columns
    return LossInputs(policy, sampler, ones * advantages, **given)


def loss_of(recipe: str, given: LossInputs, **params: Any) -> tuple[PolicyLoss, Tensor]:
    resolved = resolve(RunConfig.from_dict({"algorithm": recipe, "algorithm_params": params}))
    out = LOSSES[resolved.parts["H7"][0]](given, resolved.params)
    return out, torch.autograd.grad(out.token_loss.sum(), given.policy_logprobs)[0]


def test_one_completion_a_micro_batch_is_not_a_mean_of_means() -> None:
    mask, loss = ragged(8, 2), torch.tensor([[1.0], [3.0]]).expand(2, 8)
    scale = rollout_scale(mask, "token_mean")
    parts = [aggregate(loss[[row]], mask[[row]], scale[[row]]).item() for row in range(2)]
    assert sum(parts) == pytest.approx(1.4)


def test_averaging_the_gradients_of_ranks_needs_the_denominator_of_all_of_them() -> None:
    case = CASES["agg.data_parallel"]
    ranks = case["inputs"]["ranks"]
    mask = ragged(*[rank["tokens"] for rank in ranks])
    loss = torch.tensor([[rank["sum"] / rank["tokens"]] for rank in ranks]).expand(2, 8)
    scale = rollout_scale(mask, "token_mean")
    parts = [aggregate(loss[[row]], mask[[row]], scale[[row]]).item() * len(ranks) for row in range(2)]
    assert parts == pytest.approx(case["expected"]["rank_losses"])
    assert sum(parts) / len(ranks) == pytest.approx(case["expected"]["ddp_average"])


def test_the_denominator_is_of_the_update_and_not_of_more_rollouts_that_were_generated() -> None:
    generated = ragged(4, 6, 2, 2)
    of_update = generated[:2]
    assert rollout_scale(of_update, "token_mean").tolist() == pytest.approx([0.1, 0.1])


def test_truncated_completions_leave_the_numerator_and_the_denominator() -> None:
    rollouts = make_rollouts([4, 6], is_finished=[True, False])
    signal = credit("dapo", rollouts, [1.0, 0.0], truncated="mask")
    assert signal.kept.tolist() == [True, False]
    scale = rollout_scale(signal.loss_mask, "token_mean")
    assert aggregate(torch.ones(2, 6), signal.loss_mask, scale).item() == pytest.approx(
        CASES["agg.truncated_denominator"]["expected"]["correct"]
    )
    # It still is in the mean that the other one is compared with.
    assert signal.advantage[0].item() == pytest.approx(0.5 / (math.sqrt(0.5) + 1e-6))


def test_a_constant_divisor_is_per_rollout_and_never_the_padded_width() -> None:
    narrow, wide = ragged(4, 2), ragged(4, 2, width=100)
    for mask in (narrow, wide):
        assert rollout_scale(mask, "token_sum_constant", constant_tokens=16).tolist() == [1 / 32, 1 / 32]


@pytest.mark.parametrize("aggregation", ["token_mean", "rollout_mean", "prompt_mean", "token_sum"])
def test_no_mean_is_taken_over_padding(aggregation: str) -> None:
    owner = torch.tensor([0, 0])
    narrow, wide = (rollout_scale(ragged(4, 2, width=w), aggregation, prompt_index=owner) for w in (4, 50))
    assert torch.equal(narrow, wide)


def sampled(policy: Policy, temperature: float, engine: Any = None) -> Rollouts:
    tasks = [make_task(ADDITION, make_params(ADDITION, {}), seed) for seed in range(2)]
    return sample_rollouts(
        policy,
        engine or TorchSampler(policy),
        [ChosenPrompt(task) for task in tasks],
        [identity(task) for task in tasks],
        [SampleRequest(0, 4), SampleRequest(1, 4)],
        temperature=temperature,
        max_new_tokens=8,
        seed=3,
    )


def test_sampler_and_policy_are_compared_at_one_temperature(policy: Policy) -> None:
    rollouts = sampled(policy, 0.5)
    with torch.no_grad():
        same, other = (policy.score(rollouts.tokens, temperature=t).logprobs for t in (0.5, 1.0))
    mask = rollouts.generated
    torch.testing.assert_close(same[mask], rollouts.sampler_logprobs[mask], atol=1e-4, rtol=0)
    assert (other - rollouts.sampler_logprobs)[mask].abs().mean() > 0.1


def test_a_temperature_on_one_side_only_looks_like_a_ratio() -> None:
    case = CASES["logprob.temperature"]
    logits, token = torch.tensor(case["inputs"]["logits"], dtype=torch.float64), case["inputs"]["token"]
    plain, cooled = ((logits / t).log_softmax(-1)[token].item() for t in (1.0, case["inputs"]["temperature"]))
    assert (plain, cooled) == pytest.approx((case["expected"]["logp_T1"], case["expected"]["logp_T0.7"]))
    assert math.exp(cooled - plain) == pytest.approx(case["expected"]["spurious_ratio_if_mixed"])


@pytest.mark.parametrize("recipe", ["grpo", "gspo_token", "cispo", "sapo", "dppo", "kl_cov", "vpg", "trpo", "gmpo"])
def test_no_loss_ignores_the_weights_of_tokens(recipe: str) -> None:
    moves = [[0.0001, -0.0001]]
    _, plain = loss_of(recipe, inputs(moves))
    _, weighed = loss_of(recipe, inputs(moves, token_weights=torch.full((1, 2), 100.0, dtype=torch.float64)))
    torch.testing.assert_close(weighed, 100 * plain)
    assert plain.abs().sum() > 0


@pytest.mark.parametrize("recipe", ["grpo", "cispo", "sapo", "dppo", "gmpo", "rloo"])
def test_the_ratio_is_against_the_behaviour_policy_and_not_against_itself(recipe: str) -> None:
    _, still = loss_of(recipe, inputs([[0.0]]))
    _, moved = loss_of(recipe, inputs([[0.1]]))
    assert (moved - still).abs().item() > 1e-3


def test_with_one_update_a_batch_every_ratio_is_one_and_nothing_is_clipped() -> None:
    out, _ = loss_of("grpo", inputs([[0.0, 0.0]], -1.0))
    assert out.importance_ratio.tolist() == [[1.0, 1.0]]
    assert out.clip_flag.tolist() == [[KEPT, KEPT]]


def test_the_ratio_of_grpo_is_the_tokens_own() -> None:
    out, _ = loss_of("grpo", inputs([[0.1, -0.1]]))
    assert out.importance_ratio[0].tolist() == pytest.approx([math.exp(0.1), math.exp(-0.1)])


def test_gmpo_is_not_grpo() -> None:
    moves = [[0.3, -0.2]]
    assert not torch.allclose(loss_of("gmpo", inputs(moves))[1], loss_of("grpo", inputs(moves))[1])


def test_dppo_is_anchored_on_the_sampler_though_log_probabilities_were_recomputed() -> None:
    plain, _ = loss_of("dppo", inputs([[0.3]]))
    beside, _ = loss_of("dppo", inputs([[0.3]], recomputed_logprobs=torch.tensor([[-0.7]]).double()))
    assert beside.importance_ratio.item() == plain.importance_ratio.item() == pytest.approx(math.exp(0.3))
    clipped, _ = loss_of("grpo", inputs([[0.3]], recomputed_logprobs=torch.tensor([[-0.7]]).double()))
    assert clipped.importance_ratio.item() == pytest.approx(1.0)


@pytest.mark.parametrize("high", [0.28, 0.2])
def test_cispos_bound_is_a_ratio_and_no_distance_from_one(high: float) -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        check(RunConfig.from_dict({"algorithm": "cispo", "algorithm_params": {"ratio_high": high}}))


def test_setting_the_limit_of_dppo_has_an_effect() -> None:
    # From exp(-1) = 0.37 to 0.61, a change of 0.24.
    for limit, slope in ((0.2, 0.0), (0.3, -math.exp(0.5))):
        assert loss_of("dppo", inputs([[0.5]]), tv_limit=limit)[1].item() == pytest.approx(slope)


def test_the_cap_of_dppo_is_the_one_that_is_set() -> None:
    for cap, ratio in ((1.05, 1.05), (20.0, math.exp(0.1))):
        assert loss_of("dppo", inputs([[0.1]]), ratio_cap=cap)[1].item() == pytest.approx(-ratio)


def test_the_bounds_of_a_mismatch_are_on_the_ratio_and_not_on_its_inverse() -> None:
    assert bounded(torch.tensor([0.4, 3.0]), low=0.5, high=5.0).tolist() == [0.0, 3.0]


def test_the_deviation_divides_by_n_minus_one() -> None:
    signal = credit("grpo", make_rollouts([1] * 4), [1.0, 0.0, 0.0, 0.0])
    assert signal.advantage.tolist() == pytest.approx([1.5, -0.5, -0.5, -0.5], abs=1e-5)


def test_a_reward_that_is_not_a_number_leaves_its_group_unharmed() -> None:
    signal = credit("grpo", make_rollouts([1] * 4), [1.0, None, 0.0, 1.0])
    case = CASES["adv.grpo.nan_reward"]["expected"]["advantages"]
    assert signal.advantage.tolist() == pytest.approx(case, abs=2e-4)
    assert signal.loss_mask.tolist() == [[True], [False], [True], [True]]


@pytest.mark.parametrize("recipe", ["reinforce_plus_plus", "reinforce_plus_plus_baseline"])
def test_whitening_is_over_the_counted_tokens_of_all_rollouts(recipe: str) -> None:
    # The cut rollout would move mean and deviation; padding would, too.
    rollouts = make_rollouts([3, 1, 4, 2], is_finished=[True, True, True, False], width=9)
    params = {"kl_coefficient": 0.0} if recipe == "reinforce_plus_plus" else {}
    signal = credit(recipe, rollouts, [1.0, 0.0, 0.0, 1.0], truncated="mask", params=params)
    counted = signal.weights.token_advantages[signal.loss_mask].double()
    assert len(counted) == 8
    assert counted.mean().item() == pytest.approx(0.0, abs=1e-6)
    assert counted.std().item() == pytest.approx(1.0, abs=1e-6)


def test_the_reward_in_front_of_and_behind_tokens_of_others_reaches_what_the_policy_wrote() -> None:
    rollouts = make_rollouts([4, 4], prefix_tokens=2)
    signal = credit("reinforce", rollouts, [1.0, 0.0])
    assert signal.loss_mask.tolist() == [[False, False, True, True]] * 2
    assert signal.weights.token_advantages[0].tolist() == [0.0, 0.0, 1.0, 1.0]


def test_an_end_of_sequence_that_equals_the_padding_is_trained_and_padding_is_not(policy: Policy) -> None:
    policy.pad_id = min(policy.eos_ids)
    rollouts = sampled(policy, 3.0)
    assert bool(rollouts.is_finished.any())
    assert rollouts.generated.sum(dim=1).tolist() == rollouts.lengths.tolist()
    last = rollouts.tokens.completion_ids.gather(1, rollouts.lengths[:, None] - 1)[:, 0]
    for token, is_finished in zip(last.tolist(), rollouts.is_finished.tolist(), strict=True):
        assert (token in policy.eos_ids) == is_finished


class FixedEngine:
    """Answers every request with the same ids; one has no text, so no tokenizer finds it again."""

    def sample(self, requests: Sequence[PromptRequest], **options: Any) -> Samples:
        rows = sum(request.count for request in requests)
        ids = torch.tensor([[70, 5000, 0, 71]]).expand(rows, 4)
        nothing = torch.zeros(rows, 4)
        return Samples(ids, nothing, nothing, torch.full((rows,), 4), torch.zeros(rows, dtype=torch.bool))


def test_ids_are_kept_as_they_were_sampled_and_never_tokenised_again(policy: Policy) -> None:
    rollouts = sampled(policy, 1.0, FixedEngine())
    assert rollouts.tokens.completion_ids.tolist() == [[70, 5000, 0, 71]] * 8
    assert [policy.encode(text.decode(), is_start=False) for text in rollouts.completions[:1]] != [[70, 5000, 0, 71]]


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4, 5], [2, 0, 1, 5, 3, 4]])
def test_groups_are_whole_when_they_are_compared(order: list[int]) -> None:
    # Three rollouts of two prompts, of lengths that micro-batches would part; whatever stands first.
    rewards, lengths = [1.0, 0.0, 0.0, 5.0, 5.0, 7.0], [1, 6, 3, 2, 5, 4]
    signal = credit("dr_grpo", make_rollouts([lengths[i] for i in order], prompts=2), [rewards[i] for i in order])
    expected = [2 / 3, -1 / 3, -1 / 3, -2 / 3, -2 / 3, 4 / 3]
    assert signal.advantage.tolist() == pytest.approx([expected[i] for i in order])


def test_advantages_are_not_normalised_twice() -> None:
    with pytest.raises(ConfigError, match="scale a second time"):
        check(RunConfig.from_dict({"hooks": {"H6": "whitened"}}))


def test_zero_times_not_a_number_does_not_leak_from_masked_tokens() -> None:
    given = inputs([[0.0, math.nan]], loss_mask=torch.tensor([[True, False]]))
    out, gradient = loss_of("grpo", given)
    assert out.token_loss[0].tolist() == [-1.0, 0.0]
    assert gradient[0].tolist() == [-1.0, 0.0]
