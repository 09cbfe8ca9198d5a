import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.training.golden import CASES, numbers
from training.advantages import ScoredGroups, group_advantages
from training.estimators import ADVANTAGES

REWARD = st.floats(-100, 100)


def rewards_of(rows: list[list[float]]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize(
    "case",
    [
        case
        for name, case in CASES.items()
        if name.startswith("adv.grpo.") and "ddof" in case["params"] and "rewards" in case["inputs"]
    ],
    ids=lambda case: case["id"],
)
def test_matches_the_worked_examples(case: dict) -> None:
    out = group_advantages(
        rewards_of([numbers(case["inputs"]["rewards"])]), ddof=case["params"]["ddof"], eps=case["params"]["eps"]
    )
    assert out.advantage[0].tolist() == pytest.approx(case["expected"]["advantages"], abs=1e-8)


def test_centring_alone_matches_dr_grpo() -> None:
    case = CASES["adv.drgrpo.1000"]
    out = group_advantages(rewards_of([case["inputs"]["rewards"]]), divide_by_std=False)
    assert out.advantage[0].tolist() == pytest.approx(case["expected"]["advantages"])


def test_rounding_noise_of_float32_is_no_signal() -> None:
    case = CASES["adv.grpo.float32_noise"]
    noisy = rewards_of([case["inputs"]["rewards_float32_as_float64"]])
    out = group_advantages(noisy, eps=1e-8)
    assert out.advantage.abs().max().item() == 0.0
    assert out.dead_cause == ("same_score",)
    # The noise would otherwise have become half a standard deviation (inputs are given to ten digits).
    undivided = (noisy - noisy.mean()) / (noisy.std() + 1e-8)
    assert undivided[0, -1].item() == pytest.approx(case["expected"]["adv_last"]["eps_1e-8"], abs=5e-3)


def test_twelve_equal_float32_rewards_have_no_signal() -> None:
    out = group_advantages(torch.full((1, 12), 0.7), eps=1e-8)
    assert out.advantage.tolist() == [[0.0] * 12]
    assert out.reward_mean.item() == pytest.approx(0.7, abs=1e-7)


def test_a_difference_above_the_tolerance_is_signal() -> None:
    # 2e-6 apart: mean 1e-6, deviation sqrt(2) * 1e-6; the sign shows who is better.
    out = group_advantages(rewards_of([[0.0, 2e-6]]), eps=0.0)
    assert out.dead_cause == (None,)
    assert out.advantage[0].tolist() == pytest.approx([-1 / math.sqrt(2), 1 / math.sqrt(2)])


def test_rows_are_groups_of_their_own() -> None:
    # means 0.5 and 12; deviations sqrt(1/3) and 2
    out = group_advantages(rewards_of([[1, 0, 0, 1], [10, 12, 14, 12]]), eps=0.0)
    spread = math.sqrt(8 / 3)
    assert out.advantage[0].tolist() == pytest.approx(
        [0.5 * math.sqrt(3), -0.5 * math.sqrt(3), -0.5 * math.sqrt(3), 0.5 * math.sqrt(3)]
    )
    assert out.advantage[1].tolist() == pytest.approx([-2 / spread, 0, 2 / spread, 0])
    assert out.reward_mean.tolist() == [0.5, 12.0]
    assert out.reward_std.tolist() == pytest.approx([math.sqrt(1 / 3), spread])


def test_dead_groups_say_why() -> None:
    nan = math.nan
    out = group_advantages(
        rewards_of([[1, 1, 1], [0, 0, 0], [0.5, 0.5, 0.5], [1, nan, nan], [nan, nan, nan], [1, nan, 1]])
    )
    assert out.dead_cause == ("all_right", "all_wrong", "same_score", "single", "unscored", "all_right")
    assert out.advantage.abs().sum().item() == 0.0
    assert out.kept.tolist() == [[True] * 3, [True] * 3, [True] * 3, [False] * 3, [False] * 3, [True, False, True]]
    assert out.size_got.tolist() == [3, 3, 3, 1, 0, 2]
    assert out.is_dead.tolist() == [True] * 6
    diagnostics = out.diagnostics()
    assert diagnostics["dead_share"] == 1.0
    assert diagnostics["dead_all_right_share"] == pytest.approx(2 / 6)
    assert diagnostics["unscored_rollouts"] == 6.0


def test_what_is_right_may_be_said_apart_from_the_reward() -> None:
    # A format bonus of 0.1 on wrong answers: no reward is 0, yet all are wrong.
    out = group_advantages(rewards_of([[0.1, 0.1], [0.9, 0.9]]), correct=torch.tensor([[False, False], [True, True]]))
    assert out.dead_cause == ("all_wrong", "all_right")


def test_an_excluded_rollout_counts_like_one_without_a_reward() -> None:
    masked = group_advantages(rewards_of([[1, 7, 0, 1]]), torch.tensor([[True, False, True, True]]))
    missing = group_advantages(rewards_of([[1, math.nan, 0, 1]]))
    assert masked.advantage.tolist() == missing.advantage.tolist()
    assert masked.kept.tolist() == missing.kept.tolist() == [[True, False, True, True]]


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ((4,), {}, "P, G"),
        ((4, 1), {}, "G >= 2"),
        ((2, 2), {"valid": torch.ones(2, 3, dtype=torch.bool)}, "valid"),
        ((2, 2), {"ddof": 2}, "ddof"),
    ],
)
def test_refuses_what_it_cannot_compute(shape: tuple[int, ...], options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        group_advantages(torch.zeros(shape), **options)


@given(st.lists(REWARD, min_size=2, max_size=8), st.randoms())
def test_order_inside_a_group_does_not_matter(rewards: list[float], rng: object) -> None:
    order = list(range(len(rewards)))
    rng.shuffle(order)  # type: ignore[attr-defined]
    straight = group_advantages(rewards_of([rewards])).advantage[0]
    shuffled = group_advantages(rewards_of([[rewards[i] for i in order]])).advantage[0]
    torch.testing.assert_close(shuffled, straight[order], rtol=1e-9, atol=1e-9)


@given(st.lists(REWARD, min_size=2, max_size=8), st.floats(0.5, 2), st.floats(-10, 10))
def test_a_group_sums_to_zero_and_units_cancel(rewards: list[float], scale: float, shift: float) -> None:
    spread = max(rewards) - min(rewards)
    out = group_advantages(rewards_of([rewards]), eps=0.0)
    assert out.advantage.sum().item() == pytest.approx(0.0, abs=1e-6)
    moved = group_advantages(rewards_of([[scale * r + shift for r in rewards]]), eps=0.0)
    assert spread < 1e-5 or moved.advantage[0].tolist() == pytest.approx(out.advantage[0].tolist(), abs=1e-5)


@given(st.lists(REWARD, min_size=2, max_size=6), st.integers(0, 4))
def test_unscored_rollouts_change_nothing_for_the_others(rewards: list[float], unscored: int) -> None:
    alone = group_advantages(rewards_of([rewards]))
    padded = group_advantages(rewards_of([rewards + [math.nan] * unscored]))
    assert padded.advantage[0, : len(rewards)].tolist() == pytest.approx(alone.advantage[0].tolist(), abs=1e-12)
    assert padded.advantage[0, len(rewards) :].tolist() == [0.0] * unscored


def scored(*rows: list[float], running_mean: float = 0.0) -> ScoredGroups:
    """Groups whose rewards above 1/2 are right."""
    rewards = rewards_of([list(row) for row in rows])
    everywhere = torch.ones_like(rewards, dtype=torch.bool)
    return ScoredGroups(rewards, everywhere, rewards > 0.5, everywhere.long(), running_mean)


@pytest.mark.parametrize("name", ["adv.rloo.1001", "adv.rloo.312"])
def test_leaving_one_out_matches_the_worked_examples(name: str) -> None:
    case = CASES[name]
    out = ADVANTAGES["leave_one_out"](scored(case["inputs"]["rewards"]), {})
    assert out.advantage[0].tolist() == pytest.approx(case["expected"]["advantages"])


def test_leaving_one_out_counts_only_the_scored_others() -> None:
    # Of 1, 0 and one unscored: each has one other.
    out = ADVANTAGES["leave_one_out"](scored([1.0, 0.0, math.nan], [1.0, math.nan, math.nan]), {})
    assert out.advantage.tolist() == [[1.0, -1.0, 0.0], [0.0, 0.0, 0.0]]


def test_the_length_weighted_baseline_is_the_mean_reward_of_the_tokens() -> None:
    # (1 * 6 + 0 * 1 + 0.5 * 1) / 8 = 0.8125; an unscored rollout weighs nothing; equal rewards teach nothing.
    groups = scored([1.0, 0.0, 0.5, math.nan], [0.7, 0.7, 0.7, 0.7], [1.0, math.nan, math.nan, math.nan])
    lengths = torch.tensor([[6, 1, 1, 9], [1, 2, 3, 4], [2, 2, 2, 2]])
    out = ADVANTAGES["length_weighted"](replace(groups, lengths=lengths), {})
    assert out.advantage[0].tolist() == pytest.approx([0.1875, -0.8125, -0.3125, 0.0])
    assert out.advantage[1:].abs().sum().item() == 0.0
    assert out.dead_cause == (None, "all_right", "single")


@given(st.lists(st.tuples(REWARD, st.integers(0, 50)), min_size=2, max_size=8))
def test_the_length_weighted_baseline_varies_the_gradient_least(rollouts: list[tuple[float, int]]) -> None:
    rewards, lengths = [reward for reward, _ in rollouts], [length for _, length in rollouts]
    out = ADVANTAGES["length_weighted"](replace(scored(rewards), lengths=torch.tensor([lengths])), {})

    def spread(baseline: float) -> float:
        """A gradient of T tokens has the square T, each token adding 1 in a direction of its own."""
        return math.fsum(n * (reward - baseline) ** 2 for reward, n in zip(rewards, lengths, strict=True))

    found = math.fsum(n * a * a for a, n in zip(out.advantage[0].tolist(), lengths, strict=True))
    if max(rewards) - min(rewards) > 1e-6:
        others = [*rewards, sum(rewards) / len(rewards), 0.0]
        assert found <= min(map(spread, others)) * (1 + 1e-9) + 1e-6
    equal = ADVANTAGES["length_weighted"](replace(scored(rewards), lengths=torch.full((1, len(rewards)), 7)), {})
    torch.testing.assert_close(equal.advantage, group_advantages(rewards_of([rewards]), divide_by_std=False).advantage)


def test_the_length_weighted_baseline_refuses_lengths_of_other_groups() -> None:
    with pytest.raises(ValueError, match=r"lengths must be \[1, 2\] like advantages, got \[1, 3\]"):
        ADVANTAGES["length_weighted"](replace(scored([1.0, 0.0]), lengths=torch.ones(1, 3)), {})


@pytest.mark.parametrize("name", ["adv.maxrl.1000", "adv.maxrl.0000"])
def test_maximum_likelihood_matches_the_worked_examples(name: str) -> None:
    case = CASES[name]
    out = ADVANTAGES["max_likelihood"](scored(case["inputs"]["rewards"]), case["params"])
    assert out.advantage[0].tolist() == pytest.approx(case["expected"]["advantages"], abs=1e-9)


def test_maximum_likelihood_refuses_negative_rewards() -> None:
    with pytest.raises(ValueError, match=r"must not be negative, a group has the mean -0\.25"):
        ADVANTAGES["max_likelihood"](scored([0.5, -1.0]), {"eps": 1e-6})


@pytest.mark.parametrize(
    ("name", "weights"), [("positive", (1.0, 0.0)), ("negative", (0.0, 1.0)), ("weighted", (0.1, 1.0))]
)
def test_signed_matches_the_worked_examples(name: str, weights: tuple[float, float]) -> None:
    case = CASES[f"adv.psr_nsr.{name}"]
    params = dict(zip(("positive_weight", "negative_weight"), weights, strict=True))
    out = ADVANTAGES["signed"](scored(case["inputs"]["rewards"], [math.nan, 1.0, 1.0, 1.0]), params)
    assert out.advantage[0].tolist() == pytest.approx(case["expected"]["advantages"])
    assert out.kept[0].tolist() == case["expected"]["sample_used"]
    # One group is all right: only what is trained keeps it alive. What is unscored never trains.
    assert out.dead_cause == (None, None if weights[0] else "all_right")
    assert out.kept[1].tolist() == [False] + [weights[0] > 0] * 3


def test_signed_refuses_graded_rewards() -> None:
    with pytest.raises(ValueError, match=r"rewards of 0 and 1, got 0\.5"):
        ADVANTAGES["signed"](scored([0.5, 1.0]), {"positive_weight": 1.0, "negative_weight": 1.0})


def test_the_running_mean_is_used_before_it_is_moved() -> None:
    case = CASES["adv.reinforce.ema_baseline"]
    baseline, advantages = 0.0, []
    for reward in case["inputs"]["reward_sequence"]:
        out = ADVANTAGES["running_mean"](
            scored([reward], running_mean=baseline), {"baseline_decay": case["params"]["decay"]}
        )
        advantages.append(out.advantage.item())
        assert out.running_mean is not None
        baseline = out.running_mean
    assert advantages == pytest.approx(case["expected"]["advantages"])
    assert baseline == pytest.approx(case["expected"]["final_baseline"])


def test_a_step_moves_the_running_mean_by_its_mean_reward_whatever_the_order() -> None:
    params = {"baseline_decay": 0.9}
    # 0.9 * 0.5 + 0.1 * (1 + 0 + 1) / 3
    for rows in ([1.0, 0.0, 1.0, math.nan], [math.nan, 1.0, 1.0, 0.0]):
        out = ADVANTAGES["running_mean"](scored(rows, running_mean=0.5), params)
        assert out.running_mean == pytest.approx(0.45 + 0.2 / 3)
    nothing = ADVANTAGES["running_mean"](scored([math.nan, math.nan], running_mean=0.5), params)
    assert nothing.running_mean == 0.5
    assert nothing.dead_cause == ("unscored",)


def test_baselines_of_the_batch_need_no_group() -> None:
    # The mean over the four scored rollouts is 0.5.
    groups = scored([1.0, 1.0], [0.0, math.nan], [0.0, math.nan])
    out = ADVANTAGES["batch_mean"](groups, {})
    assert out.advantage.tolist() == [[0.5, 0.5], [-0.5, 0.0], [-0.5, 0.0]]
    assert out.kept.tolist() == [[True, True], [True, False], [True, False]]
    assert out.dead_cause == (None, None, None)
    plain = ADVANTAGES["no_baseline"](groups, {})
    assert plain.advantage.tolist() == [[1.0, 1.0], [0.0, 0.0], [0.0, 0.0]]
    assert plain.dead_cause == (None, "all_wrong", "all_wrong")


def test_a_batch_of_equal_rewards_has_no_signal_against_its_mean() -> None:
    # Twelve float32 rewards of 0.7 have a float32 mean that is off by one unit in the last place.
    out = ADVANTAGES["batch_mean"](scored(torch.full((12,), 0.7).tolist(), torch.full((12,), 0.7).tolist()), {})
    assert out.advantage.abs().max().item() == 0.0
    assert out.dead_cause == ("all_right", "all_right")


@given(st.lists(REWARD, min_size=2, max_size=8))
def test_centring_is_leaving_one_out_scaled_down(rewards: list[float]) -> None:
    # Dr. GRPO's advantage is RLOO's times (G - 1) / G.
    centred = group_advantages(rewards_of([rewards]), divide_by_std=False).advantage[0]
    left_out = ADVANTAGES["leave_one_out"](scored(rewards), {}).advantage[0]
    size = len(rewards)
    torch.testing.assert_close(centred, left_out * (size - 1) / size)
    others = [(sum(rewards) - reward) / (size - 1) for reward in rewards]
    is_dead = max(rewards) - min(rewards) <= 1e-6
    assert left_out.tolist() == pytest.approx(
        [0.0] * size if is_dead else [r - o for r, o in zip(rewards, others, strict=True)], abs=1e-6
    )


def test_the_entry_of_the_registry_passes_the_switches_on() -> None:
    rewards = rewards_of([[1, 0, 0, 0]])
    groups = ScoredGroups(rewards, torch.ones(1, 4, dtype=torch.bool), rewards > 0, torch.ones(1, 4, dtype=torch.int64))
    out = ADVANTAGES["group"](groups, {"divide_by_std": True, "ddof": 0, "eps": 1e-8})
    assert out.advantage[0].tolist() == pytest.approx(CASES["adv.grpo.1000.ddof0"]["expected"]["advantages"])
