"""Causes of dead groups, on groups small enough to judge by eye."""

from typing import Any

import pytest

from rlviewer.accounts.models import Project
from rlviewer.ingest.services import store_batch
from rlviewer.runs.causes import CAUSES, PLACE, normalised
from rlviewer.runs.models import Group, Run, Step
from rlviewer.signal.models import GroupSignal, StepSignal
from rlviewer.signal.services import compute_pending
from tests.factories import make_batch, make_run

pytestmark = pytest.mark.django_db


def stored(project: Project, **overrides: list[Any]) -> Run:
    """A run with one step of two groups of two rollouts; `overrides` are columns of the four."""
    run = make_run(project)
    values: dict[str, list[Any]] = {
        "reward": [0.0] * 4,
        "correct": [False] * 4,
        "stop_reason": ["stop"] * 4,
        "completion": [b"so 1", b"so 2", b"so 3", b"so 4"],
        **overrides,
    }
    store_batch(make_batch(run, groups=2, group_size=2, **values), source="test")
    compute_pending()
    return run


def causes(run: Run) -> list[str]:
    places = GroupSignal.objects.filter(step__run=run).order_by("group__index").values_list("cause", flat=True)
    return ["" if place is None else CAUSES[place].key for place in places]


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({"reward": [1.0, 0.0, 1.0, 1.0], "correct": [True, False, True, True]}, ["", "solved"]),
        ({"reward": [None] * 4}, ["failed", "failed"]),
        ({"stop_reason": ["error"] * 2 + ["length"] * 2}, ["failed", "truncated"]),
        ({"parsed_answer": [b"5", b"5", b"5", b"6"]}, ["one_wrong", "all_different"]),
        ({"parsed_answer": [None] * 4}, ["unread", "unread"]),
        ({"completion": [b"a", b"a", b"a", b"b"], "parsed_answer": [b"1"] * 4}, ["identical", "one_wrong"]),
        ({"reward": [0.5] * 4, "correct": [True, False, None, None]}, ["partial", "partial"]),
    ],
)
def test_the_first_cause_that_fits(project: Project, overrides: dict[str, Any], expected: list[str]) -> None:
    assert causes(stored(project, **overrides)) == expected


def test_a_checker_that_refuses_the_reference_is_suspect(project: Project) -> None:
    run = make_run(project)
    batch = make_batch(run, groups=1, group_size=2, reward=[0.0, 0.0], correct=[False, False], stop_reason=["stop"] * 2)
    wanted = int(batch.groups.column("answer")[0].as_py())
    answers = [f" {wanted:,}.0 ".encode(), b"17"]
    store_batch(
        make_batch(
            run, groups=1, group_size=2, reward=[0.0] * 2, correct=[False] * 2, stop_reason=["stop"] * 2,
            parsed_answer=answers,
        ),
        source="test",
    )  # fmt: skip
    compute_pending()
    assert causes(run) == ["checker"]


def test_tokens_and_groups_are_counted_by_cause(project: Project) -> None:
    run = stored(project, reward=[1.0, 1.0, 0.0, 0.0], correct=[True, True, False, False], parsed_answer=[b"3"] * 4)
    signal = StepSignal.objects.get(step__run=run)
    lengths = list(Group.objects.filter(step__run=run).order_by("index").values_list("groupsignal__tokens", flat=True))
    assert signal.cause_groups[PLACE["solved"]] == 1
    assert signal.cause_tokens[PLACE["solved"]] == lengths[0]
    assert signal.cause_tokens[PLACE["one_wrong"]] == lengths[1]
    assert sum(signal.cause_tokens) == sum(lengths) == Step.objects.get(run=run).tokens_sampled


def test_flat_advantages_are_a_share_of_those_known(project: Project) -> None:
    run = stored(project, reward=[1.0, 0.0, 1.0, 0.0], advantage=[0.5, -0.005, None, 0.0])
    signal = StepSignal.objects.get(step__run=run)
    assert signal.flat_share == pytest.approx(2 / 3)
    assert signal.abs_advantage_mean == pytest.approx(0.505 / 3)


def test_a_later_batch_of_the_step_is_taken_in(project: Project) -> None:
    run = make_run(project)
    store_batch(make_batch(run, groups=2, group_size=2), source="test")
    assert compute_pending() == 1
    assert compute_pending() == 0
    later = make_batch(run, groups=2, group_size=2, seed=1)
    moved = later.groups.set_column(0, "index", [[2, 3]]).cast(later.groups.schema)
    store_batch(type(later)(later.header, later.rollouts, moved, later.metrics, later.reward_spans), source="test")
    assert compute_pending() == 1
    assert StepSignal.objects.get(step__run=run).rollout_count == 8
    assert GroupSignal.objects.filter(step__run=run).count() == 4


@pytest.mark.parametrize(
    ("answer", "same"), [("12", "12.0"), ("1,000", "1000"), (" Yes. ", "yes"), ("1e3", "1000"), ("nan", "NaN")]
)
def test_answers_are_compared_without_their_dress(answer: str, same: str) -> None:
    assert normalised(answer) == normalised(same)
    assert normalised(answer) != normalised("7")
