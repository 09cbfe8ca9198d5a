import math

import pytest
import torch

from tests.training.builders import make_rollouts, make_scores
from tests.training.golden import CASES
from training.returns import return_to_go
from training.reward_shaping import ShapedRewards, kl_in_reward

RPP = CASES["adv.rpp.kl_in_reward.gamma1"]


def shaped(estimator: str = "k1") -> ShapedRewards:
    """The worked example: three tokens with a score of 1, two with 0."""
    rollouts = make_rollouts([3, 2], width=4)
    old, reference = (torch.tensor(RPP["inputs"][key]) for key in ("logp_old", "logp_ref"))
    # What stands at padding never matters.
    padding = torch.tensor(RPP["inputs"]["mask"]) == 0
    return kl_in_reward(
        rollouts,
        make_scores([float(score) for score in RPP["inputs"]["scores"]], rollouts),
        old.masked_fill(padding, math.nan),
        reference.masked_fill(padding, math.inf),
        coefficient=RPP["params"]["beta"],
        estimator=estimator,
    )


def test_the_penalty_stands_at_every_token_as_in_the_worked_example() -> None:
    out = shaped()
    torch.testing.assert_close(
        out.token_rewards,
        torch.tensor(RPP["expected"]["token_rewards"], dtype=torch.float64),
        atol=1e-8,
        rtol=0,
    )
    to_go = return_to_go(out.token_rewards, torch.tensor(RPP["inputs"]["mask"]))
    torch.testing.assert_close(to_go, torch.tensor(RPP["expected"]["returns"], dtype=torch.float64), atol=1e-7, rtol=0)


def test_the_reward_of_a_completion_is_the_sum_of_its_tokens() -> None:
    out = shaped()
    assert out.scores.rewards.tolist() == pytest.approx(out.token_rewards.sum(dim=1).tolist())
    assert [span.kind for span in out.scores.scored[0].spans] == ["outcome", "penalty"]
    assert (out.scores.scored[0].spans[1].token_start, out.scores.scored[0].spans[1].token_end) == (0, 3)
    # The outcome itself stays as it was judged.
    assert [one.outcome for one in out.scores.scored] == [1.0, 0.0]
    assert out.scores.correct.tolist() == [True, False]
    # Five counted tokens: 0.1, 0.4, -0.5, 0, -1.
    assert out.mean_kl == pytest.approx(-0.2)


def test_a_whole_completion_matches_the_worked_example() -> None:
    case = CASES["kl.in_reward.sequence"]
    rollouts = make_rollouts([3])
    out = kl_in_reward(
        rollouts,
        make_scores([case["inputs"]["score"]], rollouts),
        torch.tensor([case["inputs"]["logp_old"]]),
        torch.tensor([case["inputs"]["logp_ref"]]),
        coefficient=case["params"]["beta"],
        estimator="k1",
    )
    assert out.scores.rewards.item() == pytest.approx(case["expected"]["reward"])
    assert 3 * out.mean_kl == pytest.approx(case["expected"]["sum_k1"])


def test_other_estimators_penalise_by_their_own_value() -> None:
    # k3 of d = log ref - log old = -0.1, -0.4, 0.5: exp(d) - 1 - d.
    out = shaped("k3")
    expected = [math.expm1(d) - d for d in (-0.1, -0.4, 0.5)]
    assert (out.token_rewards[0, :3] * -10).tolist() == pytest.approx(
        [expected[0], expected[1], expected[2] - 10], rel=1e-5
    )


def test_tokens_the_policy_did_not_sample_cost_nothing_and_an_unscored_completion_stays_unscored() -> None:
    rollouts = make_rollouts([3, 3], prefix_tokens=1)
    out = kl_in_reward(
        rollouts,
        make_scores([0.0, None], rollouts),
        torch.tensor([[math.nan, -1.0, -1.0]] * 2),
        torch.tensor([[math.nan, -2.0, -2.0]] * 2),
        coefficient=0.5,
        estimator="k1",
    )
    assert out.token_rewards.tolist() == [[0.0, -0.5, -0.5], [0.0, 0.0, 0.0]]
    assert out.scores.rewards[0].item() == -1.0
    assert out.scores.rewards[1].isnan()
    assert out.scores.scored[1].spans == ()
