import math

import torch

from training.rewards import RewardSpan, Scored
from training.steps import step_rewards, token_rewards


def scored(*spans: tuple[int, int, float, str]) -> Scored:
    return Scored(spans=tuple(RewardSpan(start, end, value, kind, kind) for start, end, value, kind in spans))


def test_process_spans_and_the_outcome_are_the_steps_and_a_rollout_without_any_is_one_step() -> None:
    found = step_rewards(
        [
            scored((0, 2, 0.5, "process"), (2, 3, 0.25, "process"), (3, 4, 1.0, "outcome"), (3, 4, -9.0, "penalty")),
            scored((1, 2, 1.0, "outcome"), (1, 2, -0.5, "penalty")),
            Scored(),
        ],
        torch.tensor([4, 2, 3]),
    )
    assert found.exists.tolist() == [[True] * 3, [True, False, False], [False] * 3]
    assert found.values[0].tolist() == [0.5, 0.25, 1.0]
    assert found.values[1, 0].item() == 0.5
    assert found.ends[0].tolist() == [2, 3, 4]
    assert found.ends[1, 0].item() == 2
    assert math.isnan(found.values[2, 0].item())


def test_a_row_of_token_rewards_sums_to_the_reward() -> None:
    one = scored((0, 3, 1.0, "outcome"), (2, 3, -0.25, "penalty"), (0, 1, 0.5, "process"))
    out = token_rewards([one, Scored()], 4, torch.device("cpu"))
    assert out.tolist() == [[0.5, 0.0, 0.75, 0.0], [0.0] * 4]
    assert out[0].sum().item() == one.reward
