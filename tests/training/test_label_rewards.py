import math
from typing import Any

import pytest

from training.rewards import REWARDS, Scored, evaluation_functions, score_group, task_checker
from training.spans import Completion
from training.tasks import catalog
from training.tasks.base import Task, steps

ADDITION = catalog.FAMILIES["addition"]
TASK = Task("addition", {}, 2.0, "12+34=", "46", oracle=steps("2+4=6;", "1+3=4;", "46"))
# A vocabulary of bytes, a token each, and tokens of several characters behind them.
PIECES = [bytes([value]) for value in range(256)] + [b";1+3=4", b";;", b"<eos>"]
EOS = len(PIECES) - 1


def spelled(text: str, *, stop: str = "stop", entropy: float = 0.5) -> Completion:
    ids = [*text.encode(), *([EOS] if stop == "stop" else [])]
    return Completion(text, len(ids), stop, entropy, raw=text.encode(), token_ids=ids, pieces=PIECES)


def scored(name: str, *texts: str | Completion, **params: Any) -> list[Scored]:
    completions = [one if isinstance(one, Completion) else spelled(one) for one in texts]
    return score_group(ADDITION, TASK, completions, [REWARDS[name]], params=params)


def values(results: list[Scored]) -> list[float]:
    return [one.reward for one in results]


def test_all_vote_and_the_first_train() -> None:
    results = scored("majority_vote", "7", "46", "7", "7", trained_votes=2)
    assert values(results[:2]) == [1.0, 0.0]
    assert [math.isnan(one.reward) for one in results] == [False, False, True, True]
    assert [one.drop_reason for one in results] == ["", "", "vote_only", "vote_only"]
    # What is right is seen and not learned from.
    assert [one.correct for one in results] == [False, True, False, False]
    assert results[0].feedback.startswith("Voted: 7 with 3 of 4 votes.")


def test_half_of_the_group_trains_unless_it_is_said() -> None:
    assert sum(bool(one.spans) for one in scored("majority_vote", *["46"] * 9, trained_votes=0)) == 4
    assert sum(bool(one.spans) for one in scored("majority_vote", "46", "46", trained_votes=0)) == 2


def test_a_confident_minority_keeps_some_reward() -> None:
    sure, unsure = spelled("7", entropy=0.1), spelled("46", entropy=0.4)
    results = scored("confident_vote", sure, unsure, unsure, rarity_bonus=0.0, prune_below=0.0)
    # 1/0.1 against 2/0.4.
    assert values(results) == pytest.approx([2 / 3, 1 / 3, 1 / 3], abs=1e-5)


def test_confidence_without_entropies_is_refused() -> None:
    with pytest.raises(ValueError, match="needs the sampler's entropy"):
        scored("confident_vote", spelled("7", entropy=math.nan), rarity_bonus=0.1, prune_below=0.0)


LABELS = {"label_centre": 1.0, "label_width": 0.5, "least_share": 0.5}


def test_a_soft_label_earns_its_weight_and_doubt_nothing() -> None:
    first, second = math.exp(-1 / 8), math.exp(-9 / 8)
    weights = [first / (first + second), second / (first + second)]
    assert values(scored("soft_labels", "46", "46", "46", "7", **LABELS)) == pytest.approx(
        [weights[0]] * 3 + weights[1:]
    )
    assert values(scored("soft_labels", "46", "x", "46", **LABELS)) == pytest.approx([1.0, 0.0, 1.0])
    doubted = scored("soft_labels", "46", "7", "8", **LABELS)
    assert values(doubted) == [0.0, 0.0, 0.0]
    assert doubted[0].feedback.startswith("No answer has votes enough.")
    assert values(scored("soft_labels", "x", "y", **LABELS)) == [0.0, 0.0]


def test_an_evaluation_has_the_answer_key() -> None:
    assert evaluation_functions(("majority_vote", "overlong_penalty")) == [task_checker]
    assert evaluation_functions(("task", "overlong_penalty")) == [REWARDS["task"], REWARDS["overlong_penalty"]]


def test_an_unreadable_answer_costs_one() -> None:
    completions = [spelled("46"), spelled("7"), spelled("x"), Completion("", 0, "error")]
    results = score_group(ADDITION, TASK, completions, [REWARDS["task"], REWARDS["unparsable_penalty"]])
    assert values(results[:3]) == [1.0, 0.0, -1.0]
    assert (results[2].outcome, math.isnan(results[3].reward)) == (-1.0, True)


STEPS = {"steps_weight": 0.5, "wrong_step_penalty": 0.0}


def spans(result: Scored) -> list[tuple[int, int, float]]:
    return [(span.token_start, span.token_end, span.value) for span in result.spans]


def test_each_shown_step_has_a_span_over_its_tokens() -> None:
    (result,) = scored("step_labels", "2+4=6;1+3=4;46", **STEPS)
    # Six characters a step, then two digits and the end of sequence.
    assert spans(result) == [(0, 6, 0.25), (6, 12, 0.25), (12, 15, 0.5)]
    assert {span.kind for span in result.spans} == {"process"}
    assert [span.name for span in result.spans] == ["step", "step", "answer"]
    assert (result.reward, result.correct, result.parsed_answer) == (1.0, True, "46")


def test_a_wrong_or_repeated_step_earns_nothing_or_costs() -> None:
    free, costly = (
        scored("step_labels", "1+3=4;2+4=7;1+3=4;46", steps_weight=0.5, wrong_step_penalty=penalty)[0]
        for penalty in (0.0, 2.0)
    )
    assert [value for _, _, value in spans(free)] == [0.25, 0.0, 0.0, 0.5]
    assert [value for _, _, value in spans(costly)] == [0.25, -0.5, -0.5, 0.5]


def test_without_shown_work_only_the_answer_earns() -> None:
    assert spans(scored("step_labels", "46", **STEPS)[0]) == [(0, 3, 0.5)]
    assert spans(scored("step_labels", "7", **STEPS)[0]) == [(0, 2, 0.0)]


def test_a_completion_cut_after_a_step_still_has_its_answer() -> None:
    (result,) = scored("step_labels", spelled("2+4=6;", stop="length"), **STEPS)
    assert spans(result) == [(0, 6, 0.25), (5, 6, 0.0)]


def test_steps_that_end_inside_a_token() -> None:
    # "2+4=6" and then ";1+3=4" as one token, ";;" as another: the second and the empty step both end in it.
    ids = [*b"2+4=6", 256, 257, *b"46", EOS]
    raw = b"".join(PIECES[token] for token in ids[:-1])
    one = Completion(raw.decode(), len(ids), "stop", raw=raw, token_ids=ids, pieces=PIECES)
    assert spans(scored("step_labels", one, **STEPS)[0]) == [(0, 6, 0.25), (6, 7, 0.25), (6, 7, 0.0), (7, 10, 0.5)]


def test_bytes_that_are_no_text_move_no_span() -> None:
    raw = b"\xff2+4=6;46"
    one = Completion(raw.decode("utf-8", "replace"), 10, "stop", raw=raw, token_ids=[*raw, EOS], pieces=PIECES)
    assert spans(scored("step_labels", one, **STEPS)[0]) == [(0, 7, 0.0), (7, 10, 0.5)]


def test_a_failed_completion_is_not_scored() -> None:
    assert scored("step_labels", Completion("", 0, "error"), **STEPS)[0].spans == ()
