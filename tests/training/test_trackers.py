import json
import math
import random
from collections import Counter
from typing import Any

import pytest

from tests.training.golden import CASES
from training.config import ConfigError
from training.selection import ChosenPrompt, Response, SeenGroup
from training.selections import SELECTIONS
from training.tasks import catalog
from training.tasks.pool import make_pool
from training.tasks.stream import TaskStream, task_key
from training.trackers import (
    BaseProfile,
    Tracked,
    base_rates,
    difficulty_band,
    drift_of,
    first_counts,
    forgetting,
    sampling_weight,
)

NAN = float("nan")
ADDITION = catalog.FAMILIES["addition"]
SPO = CASES["adv.spo"]
TRACKING = {"profile_samples": 8, "drift_half_life": 0.06, "count_exponent": 0.0}
PROFILE = {"profile_samples": 4, "preset": "hard", "keep_share": 0.5, "include_unsolved": False}


def pool(size: int = 4) -> Any:
    return make_pool(ADDITION, catalog.make_params(ADDITION, {}), size, seed=0)


def seen(task: Any, *outcomes: float, logprobs: tuple[float, ...] = (-1.0, -2.0)) -> SeenGroup:
    return SeenGroup(
        ChosenPrompt(task),
        outcomes,
        [outcome == 1 for outcome in outcomes],
        [True] * len(outcomes),
        [None if math.isnan(outcome) else str(outcome) for outcome in outcomes],
        Response([1, 2], [3, 4][: len(logprobs)], list(logprobs)),
    )


def still(responses: Any) -> list[list[float]]:
    """The policy has not moved."""
    return [list(one.logprobs) for one in responses]


# The tracker


def test_first_counts_forgetting_and_weight_as_in_the_worked_example() -> None:
    inputs, expected = SPO["inputs"], SPO["expected"]
    a, b = first_counts(inputs["offline_n"], inputs["offline_successes"])
    assert (a, b, a / (a + b)) == pytest.approx((expected["alpha0"], expected["beta0"], expected["p0"]))
    assert forgetting(inputs["drift"], SPO["params"]["D_half"]) == pytest.approx(expected["rho"])
    assert sampling_weight(a / (a + b), a + b, exponent=0.0) == pytest.approx(expected["sampling_weight0"])
    assert first_counts(0, 0) == (0.5, 0.5)


def test_forgetting_stays_in_bounds() -> None:
    assert (forgetting(0.0, 0.06), forgetting(10.0, 0.06)) == (0.96, 0.875)


def test_seldom_seen_prompts_can_be_preferred() -> None:
    assert sampling_weight(0.5, 16.0, exponent=0.5) == pytest.approx(0.5 / 4 + 0.05)
    assert sampling_weight(1.0, 8.0, exponent=0.0) == 0.05


def test_the_drift_is_the_mean_change_of_sampled_tokens() -> None:
    assert drift_of(Response([], [1, 2, 3], [NAN, -1.0, -2.0]), [-9.0, -1.5, -1.9]) == pytest.approx(0.3)
    assert drift_of(Response([], [1], [NAN]), [-9.0]) == 0.0


def tracked(size: int = 4, **knobs: Any) -> Tracked:
    return Tracked(pool(size), TRACKING | knobs, seed=0)


def test_a_visit_forgets_by_the_drift_and_counts_the_outcome() -> None:
    selection = tracked()
    selection.learn_profile([seen(task, *[1.0] * 6, *[0.0] * 2) for task in selection.tasks])
    expected, task = SPO["expected"], selection.tasks[2]

    def moved(responses: Any) -> list[list[float]]:
        # By 0.01 nats on each token, to either side.
        return [[one.logprobs[0] + 0.01, one.logprobs[1] - 0.01] for one in responses]

    metrics = selection.observe(5, [seen(task, 1.0)], moved)
    assert selection.counts[2] == pytest.approx((expected["alpha1"], expected["beta1"]))
    assert selection.last_seen == [None, None, 5, None]
    assert metrics["tracker_kept_share"] == pytest.approx(expected["rho"])
    assert metrics["tracker_drift"] == pytest.approx(0.01)
    assert metrics["tracker_error"] == pytest.approx(expected["raw_advantage"])


def test_the_chosen_prompt_says_what_it_was_chosen_by() -> None:
    selection = tracked()
    selection.learn_profile([seen(task, 1.0, 0.0, 0.0, NAN) for task in selection.tasks])
    selection.observe(3, [seen(selection.tasks[0], 0.0)], still)
    chosen = {one.position: one for one in selection.choose(4)}
    a, b = first_counts(3, 1)
    assert chosen[1].tracker_value == pytest.approx(a / (a + b))
    assert (chosen[1].tracker_count, chosen[1].tracker_last_seen) == (pytest.approx(8.0), None)
    assert (chosen[0].tracker_last_seen, chosen[0].tracker_count) == (3, pytest.approx(0.96 * 8 + 1))
    assert chosen[0].sampling_weight == pytest.approx(sampling_weight(chosen[0].tracker_value or 0, 1.0, exponent=0.0))
    assert (chosen[1].base_pass_rate, chosen[1].base_samples) == (pytest.approx(1 / 3), 3)


def test_a_step_draws_different_prompts_and_open_ones_more_often() -> None:
    selection = tracked(6)
    selection.learn_profile(
        [seen(task, *([1.0, 0.0] * 4 if at < 3 else [1.0] * 8)) for at, task in enumerate(selection.tasks)]
    )
    drawn: Counter[int | None] = Counter()
    for _ in range(400):
        chosen = [one.position for one in selection.choose(3)]
        assert len(set(chosen)) == 3
        drawn.update(chosen)
    assert min(drawn[at] for at in range(3)) > max(drawn[at] for at in range(3, 6))
    assert min(drawn.values()) > 0


def test_more_completions_are_so_many_observations_and_graded_ones_count_in_part() -> None:
    selection = tracked(profile_samples=0)
    selection.choose(1)
    selection.observe(0, [seen(selection.tasks[0], 1.0, 0.25)], still)
    assert selection.counts[0] == pytest.approx((0.96 * 0.5 + 1.25, 0.96 * 0.5 + 0.75))


def test_an_unscored_visit_changes_nothing() -> None:
    selection = tracked(profile_samples=0)
    selection.choose(1)
    before = json.dumps(selection.state())
    assert selection.observe(0, [seen(selection.tasks[0], NAN)], still) == {}
    assert json.dumps(selection.state()) == before


def test_rewards_out_of_range_are_refused() -> None:
    selection = tracked(profile_samples=0)
    selection.choose(1)
    with pytest.raises(ValueError, match=r"rewards from 0 to 1, got -0\.5"):
        selection.observe(0, [seen(selection.tasks[0], -0.5)], still)


def test_a_restored_tracker_goes_on_where_it_was() -> None:
    selection = tracked()
    selection.learn_profile([seen(task, 1.0, 0.0) for task in selection.tasks])
    selection.choose(3)
    selection.observe(1, [seen(selection.tasks[1], 1.0, logprobs=(NAN, -3.0))], still)
    state = json.loads(json.dumps(selection.state(), allow_nan=False))
    again = tracked()
    again.restore(state)
    assert again.to_profile == []
    assert again.choose(3) == selection.choose(3)
    for one in (again, selection):
        one.observe(2, [seen(one.tasks[1], 0.0)], lambda responses: [[0.0, -2.5] for _ in responses])
    assert again.state() == selection.state()


# The base profile


def test_a_sample_that_was_not_scored_does_not_count() -> None:
    rates = base_rates(seen(None, 1.0, NAN, 0.0, 1.0))
    assert (rates["base_pass_rate"], rates["base_samples"]) == (pytest.approx(2 / 3), 3)
    assert rates["base_majority"] == 0.5
    assert base_rates(seen(None, NAN))["base_pass_rate"] is None


RATES = [0.0, 0.25, 0.5, 0.75, 1.0, None, 0.125, 0.0]


@pytest.mark.parametrize(
    ("preset", "unsolved", "expected"),
    [
        ("hard", False, [1, 6]),
        ("easy", False, [3, 4]),
        ("middle", False, [1, 2]),
        ("hard", True, [0, 7]),
    ],
)
def test_a_band_is_a_share_of_the_pool_by_pass_rate(preset: str, unsolved: bool, expected: list[int]) -> None:
    found = difficulty_band(RATES, preset=preset, share=0.25, includes_unsolved=unsolved, rng=random.Random(0))
    assert found == expected


def test_random_prompts_are_eligible_ones_and_ties_have_a_fixed_random_order() -> None:
    def band(preset: str, rates: list[float | None], seed: int) -> list[int]:
        return difficulty_band(rates, preset=preset, share=0.25, includes_unsolved=False, rng=random.Random(seed))

    picked = {tuple(band("random", RATES, seed)) for seed in range(30)}
    assert len(picked) > 3
    assert not {0, 5, 7} & {position for positions in picked for position in positions}
    ties = {tuple(band("hard", [0.5] * 8, seed)) for seed in range(30)}
    assert len(ties) > 3
    assert band("hard", [0.5] * 8, 3) == band("hard", [0.5] * 8, 3)


def test_fewer_prompts_than_wanted_are_all_taken() -> None:
    assert difficulty_band([0.0, 0.5], preset="hard", share=1.0, includes_unsolved=False, rng=random.Random(0)) == [1]


def profiled(successes: list[int], **knobs: Any) -> BaseProfile:
    selection = BaseProfile(pool(len(successes)), PROFILE | knobs, seed=0)
    assert selection.to_profile == selection.tasks
    selection.learn_profile(
        [seen(task, *[1.0] * n, *[0.0] * (4 - n)) for task, n in zip(selection.tasks, successes, strict=True)]
    )
    return selection


def test_only_the_hardest_solved_prompts_train() -> None:
    selection = profiled([0, 1, 2, 3])
    chosen = selection.choose(6)
    assert Counter(one.position for one in chosen) == {1: 3, 2: 3}
    assert {one.position: one.base_pass_rate for one in chosen} == {1: 0.25, 2: 0.5}
    assert {one.base_samples for one in chosen} == {4}


def test_all_prompts_train_where_that_is_wanted() -> None:
    assert {one.position for one in profiled([0, 0, 4, 1], preset="all").choose(4)} == {0, 1, 2, 3}


def test_a_pool_that_was_never_solved_is_refused_with_a_way_out() -> None:
    with pytest.raises(ConfigError, match="solved none of the prompts in 4 samples each") as caught:
        profiled([0, 0])
    assert caught.value.key == "algorithm_params.include_unsolved"
    assert profiled([0, 0], include_unsolved=True).choose(1)


def test_a_restored_profile_goes_on_where_it_was() -> None:
    selection = profiled([1, 1, 2, 3], keep_share=0.75)
    selection.choose(4)
    state = json.loads(json.dumps(selection.state(), allow_nan=False))
    again = BaseProfile(pool(4), PROFILE | {"keep_share": 0.75}, seed=0)
    again.restore(state)
    assert again.to_profile == []
    assert again.choose(7) == selection.choose(7)


@pytest.mark.parametrize("name", ["base_profile", "tracked"])
def test_a_stream_without_end_has_nothing_to_remember(name: str) -> None:
    stream = TaskStream(ADDITION, catalog.make_params(ADDITION, {}), 0)
    with pytest.raises(ValueError, match="pool of prompts"):
        SELECTIONS[name](stream, PROFILE, 0)


def test_a_prompt_is_found_by_what_it_asks() -> None:
    selection = tracked()
    assert [selection.position(task) for task in selection.tasks] == [0, 1, 2, 3]
    assert len({task_key(task) for task in selection.tasks}) == 4
