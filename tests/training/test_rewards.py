import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.training.golden import CASES
from training.rewards import (
    REWARDS,
    Completion,
    RewardSpan,
    Scored,
    overlong_penalty,
    score_group,
    task_checker,
)
from training.tasks.addition import FAMILY
from training.tasks.base import Task, TaskFamily

TASK = Task(family="addition", params={}, difficulty=1.0, prompt="12+34=", answer="46")


def completion(text: str, stop_reason: str = "stop") -> Completion:
    return Completion(text, token_count=len(text) + 1, stop_reason=stop_reason)


def length_penalty(
    family: TaskFamily, task: Task, completions: Sequence[Completion], params: Mapping[str, Any]
) -> list[Scored]:
    return [
        Scored(spans=(RewardSpan(0, one.token_count, -0.1 * one.token_count, "penalty", "length"),))
        for one in completions
    ]


def test_the_checker_pays_at_the_last_token() -> None:
    right, wrong = score_group(FAMILY, TASK, [completion("46"), completion("47")], [task_checker])
    assert right.spans == (RewardSpan(2, 3, 1.0, "outcome", "task"),)
    assert (right.reward, right.correct, right.parsed_answer) == (1.0, True, "46")
    assert (wrong.reward, wrong.correct, wrong.parsed_answer) == (0.0, False, "47")
    assert wrong.feedback == "Expected 46, got 47."


def test_rewards_add_up() -> None:
    (scored,) = score_group(FAMILY, TASK, [completion("46")], [task_checker, length_penalty])
    assert [span.name for span in scored.spans] == ["task", "length"]
    assert scored.reward == pytest.approx(0.7)
    assert scored.correct


def test_equal_answers_share_a_cluster() -> None:
    group = score_group(FAMILY, TASK, [completion(text) for text in ("47", "46", "?", "47")], [task_checker])
    assert [one.answer_cluster for one in group] == [0, 1, None, 0]


def test_a_failed_completion_has_no_reward_rather_than_zero() -> None:
    failed, empty = score_group(FAMILY, TASK, [completion("46", "error"), Completion("", 0, "stop")], [task_checker])
    assert failed.spans == empty.spans == ()
    assert math.isnan(failed.reward)
    assert not failed.correct


@pytest.mark.parametrize(("truncated", "reward"), [("keep", 1.0), ("mask", 1.0), ("reward_zero", 0.0)])
def test_what_a_cut_completion_counts(truncated: str, reward: float) -> None:
    cut, whole = score_group(
        FAMILY, TASK, [completion("46", "length"), completion("46")], [task_checker], truncated=truncated
    )
    assert cut.reward == reward
    assert whole.reward == 1.0
    assert sum(span.value for span in cut.spans) == reward


@pytest.mark.parametrize(
    "span",
    [
        RewardSpan(0, 4, 1.0, "outcome", "late"),
        RewardSpan(-1, 1, 1.0, "outcome", "early"),
        RewardSpan(1, 1, 1.0, "outcome", "empty"),
        RewardSpan(0, 1, math.inf, "outcome", "endless"),
        RewardSpan(0, 1, 1.0, "bonus", "unknown"),
    ],
)
def test_refuses_a_span_that_means_nothing(span: RewardSpan) -> None:
    with pytest.raises(ValueError, match="a span lies inside its completion"):
        score_group(FAMILY, TASK, [completion("46")], [lambda *_: [Scored(spans=(span,))]])


def test_the_registry_holds_the_checker() -> None:
    assert REWARDS["task"] is task_checker


def test_the_overlong_penalty_matches_the_worked_example() -> None:
    case = CASES["reward.overlong"]
    limits = {"limit_tokens": case["params"]["L_max"], "buffer_tokens": case["params"]["cache"]}
    found = [overlong_penalty(length, **limits) for length in case["inputs"]["lengths"]]
    assert found == pytest.approx(case["expected"]["openrlhf"])


def test_a_penalty_lowers_the_reward_and_not_the_outcome() -> None:
    # Three tokens with the end: (3 - 4 + 2) / 2 off.
    params = {"overlong_limit_tokens": 4, "overlong_buffer_tokens": 2}
    functions = [REWARDS["task"], REWARDS["overlong_penalty"]]
    near, short = score_group(FAMILY, TASK, [completion("46"), completion("4")], functions, params=params)
    assert (near.reward, near.outcome, near.correct) == (0.5, 1.0, True)
    assert [(span.kind, span.name, span.value) for span in near.spans[1:]] == [("penalty", "overlong", -0.5)]
    assert (short.reward, len(short.spans)) == (0.0, 1)
    (failed,) = score_group(FAMILY, TASK, [completion("4567", "error")], functions, params=params)
    assert failed.spans == () and math.isnan(failed.outcome)
