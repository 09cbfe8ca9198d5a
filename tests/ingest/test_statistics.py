"""The numbers of groups and steps, worked out by hand."""

import numpy as np
import pyarrow as pa
import pytest

from rlviewer.ingest.statistics import Scores, group_statistics, rollout_statistics, step_statistics
from training.records import ROLLOUTS, complete

NAN, INF = float("nan"), float("inf")


def floats(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float64)


@pytest.mark.parametrize(
    ("reward", "correct", "cause"),
    [
        ([1, 1], [1, 1], "all_right"),
        ([0, 0], [0, 0], "all_wrong"),
        ([0.5, 0.5], [0, 1], "same_score"),
        ([0.5, 0.5], [NAN, NAN], "same_score"),
        ([1], [1], "single"),
        ([0, 1], [0, 1], ""),
        ([0, NAN], [0, 0], ""),
        ([], [], ""),
    ],
)
def test_why_a_group_is_dead(reward: list[float], correct: list[float], cause: str) -> None:
    assert group_statistics(floats(*reward), floats(*correct))["dead_cause"] == cause


def test_means_of_a_group_leave_out_what_is_no_number() -> None:
    found = group_statistics(floats(1, 3, NAN, INF, -INF), floats(1, 0, 1, NAN, NAN))
    # mean (1 + 3) / 2; deviation sqrt((1 + 1) / (2 - 1)); success 2 of 3
    assert found["reward_mean"] == 2
    assert found["reward_std"] == pytest.approx(2**0.5)
    assert found["success_share"] == pytest.approx(2 / 3)


def test_a_group_without_scores_has_no_mean() -> None:
    assert group_statistics(floats(NAN), floats(NAN)) == {
        "reward_mean": None, "reward_std": None, "success_share": None, "dead_cause": ""
    }  # fmt: skip


def test_a_step_counts_what_it_leaves_out() -> None:
    of = Scores(
        reward=floats(1, 0, NAN, INF),
        correct=floats(1, 0, NAN, 1),
        kept=np.array([True, True, False, True]),
        is_truncated=np.array([True, False, False, False]),
        entropy_mean=floats(0.5, 1.5, NAN, NAN),
        length_tokens=np.array([2, 4, 6, 8]),
    )
    found = step_statistics(of, ["all_right", "", "all_wrong", "same_score"])
    assert found == {
        "group_count": 4, "rollout_count": 4, "kept_count": 3, "reward_mean": 0.5, "reward_std": pytest.approx(0.5**0.5),
        "pass_rate": pytest.approx(2 / 3), "dead_groups": 3, "dead_right": 1, "dead_wrong": 1, "unscored_count": 2,
        "length_mean": 5.0, "truncated_share": 0.25, "entropy_mean": 1.0,
    }  # fmt: skip


def test_rollout_means_are_over_counted_finite_tokens() -> None:
    rollouts = complete(
        pa.table(
            {
                "token_ids": pa.array([[1, 2, 3], [4, 5], [], [6]], pa.list_(pa.int32())),
                "loss_mask": pa.array([[1, 0, 1], None, [], [0]], pa.list_(pa.uint8())),
                "sampler_logprobs": pa.array([[-1, -9, NAN], [-2, -4], [], [-1]], pa.list_(pa.float32())),
                "entropy": pa.array([[0.5, 9, 1.5], None, [], [2]], pa.list_(pa.float32())),
                "clip_flag": pa.array([[1, 1, 3], [0, 2], None, [1]], pa.list_(pa.uint8())),
                "origin": pa.array([[1, 2, 2], None, [], [3]], pa.list_(pa.uint8())),
            }
        ),
        ROLLOUTS,
    )
    found = rollout_statistics(rollouts)
    assert found.length_tokens.tolist() == [3, 2, 0, 1]
    assert found.sampled_tokens.tolist() == [2, 2, 0, 0]  # prefix and feedback are not sampled
    assert found.counted_tokens.tolist() == [2, 2, 0, 0]
    np.testing.assert_array_equal(found.logprob_mean, [-1, -3, NAN, NAN])
    np.testing.assert_array_equal(found.entropy_mean, [1.0, NAN, NAN, NAN])
    np.testing.assert_array_equal(found.clip_share, [0.5, 0.5, NAN, NAN])
