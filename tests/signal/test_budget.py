"""What a step was spent on, on rollouts whose sums can be worked out by hand."""

from typing import Any

import numpy as np
import pytest

from rlviewer.accounts.models import Project
from rlviewer.ingest.services import store_batch
from rlviewer.runs.models import Run, Step
from rlviewer.signal import sums
from rlviewer.signal.measures.budget import MOST_PARTS, Budget, budget, length_bucket, spans
from rlviewer.signal.measures.tokens import tokens_of
from rlviewer.signal.models import GroupSignal, RolloutSums, StepPart, StepSignal
from rlviewer.signal.names import SPLIT_PLACE
from rlviewer.signal.services import compute_pending
from tests.factories import make_batch, make_run
from tests.signal.material import material

pytestmark = pytest.mark.django_db


def spent(*rollouts: dict[str, Any], clipped_count: bool = False) -> Budget:
    of = material(list(rollouts))
    return budget(of, tokens_of(of), None, clipped_count=clipped_count)


FIRST = {
    "token_ids": [1, 2, 3],
    "token_advantages": [1.0, 2.0, -3.0],
    "token_weights": [1.0, 0.5, 1.0],
    "loss_mask": [1, 1, 1],
    "clip_flag": [0, 0, 1],
}
SECOND = {
    "token_ids": [1, 2],
    "token_advantages": [-4.0, -4.0],
    "token_weights": [1.0, 1.0],
    "loss_mask": [1, 0],
    "clip_flag": [0, 3],
    "group": 1,
}


def part(found: Budget, split: str, name: str) -> dict[str, float]:
    return next(one.masses for one in found.parts if (one.split, one.name) == (split, name))


def test_only_counted_and_unclipped_tokens_are_spent_on() -> None:
    found = spent(FIRST, SECOND)
    assert found.mass.tolist() == [2.0, 4.0]
    assert found.tokens.tolist() == [3, 1]
    assert found.heaviest.tolist() == [0, 0]
    assert spent(FIRST, SECOND, clipped_count=True).mass.tolist() == [5.0, 4.0]


def test_parts_of_a_split_add_up_to_the_whole() -> None:
    found = spent(FIRST, SECOND)
    assert part(found, "family", "family 0") == {
        "mass": 2.0,
        "mass_per_rollout": pytest.approx(2 / 3),
        "mass_per_prompt": pytest.approx(2 / 3),
    }
    assert part(found, "sign", "positive")["mass"] == 2.0
    assert part(found, "sign", "negative")["mass"] == 4.0
    for split in ("family", "difficulty", "length", "component", "span", "sign"):
        assert sum(one.masses["mass"] for one in found.parts if one.split == split) == pytest.approx(6.0)


def test_spans_are_thinking_answer_environment_and_prefix() -> None:
    row = {"token_ids": [1] * 5, "origin": [1, 2, 2, 2, 4], "details": {"step_boundaries": np.array([0, 2])}}
    of = material([row, {"token_ids": [1], "origin": [2]}])
    found = spans(of, tokens_of(of), None)
    assert {name: np.flatnonzero(mask).tolist() for name, mask in found.items()} == {
        "prefix": [0], "thinking": [1], "answer": [2, 3], "environment": [4], "generated": [5],
    }  # fmt: skip


def test_a_closing_tag_ends_the_thinking() -> None:
    row = {"token_ids": [0, 1, 2, 0], "completion": b"so</think>so so"}
    of = material([row])
    found = spans(of, tokens_of(of), [b"so", b"</think>", b"so "])
    assert np.flatnonzero(found["thinking"]).tolist() == [0, 1]
    assert np.flatnonzero(found["answer"]).tolist() == [2, 3]


def test_without_token_arrays_the_rollouts_advantage_times_length() -> None:
    of = material([{"token_ids": [1, 2, 3], "advantage": -2.0}, {"token_ids": [1], "advantage": 1.0, "kept": False}])
    tokens = tokens_of(of)
    assert tokens.is_spread
    assert budget(of, tokens, None, clipped_count=False).mass.tolist() == [6.0, 0.0]


def test_without_any_advantage_there_is_no_budget() -> None:
    assert spent({"token_ids": [1, 2]}).parts == []


@pytest.mark.parametrize(
    ("tokens", "bucket"), [(0, "0"), (1, "1"), (2, "2"), (3, "3-4"), (64, "33-64"), (65, "65-128")]
)
def test_lengths_are_told_up_to_a_power_of_two(tokens: int, bucket: str) -> None:
    assert length_bucket(tokens) == bucket


def test_the_smallest_of_many_parts_become_one() -> None:
    rows = [FIRST | {"group": group} for group in range(MOST_PARTS + 5)]
    families = [one for one in spent(*rows).parts if one.split == "family"]
    assert len(families) == MOST_PARTS
    assert families[-1].name == "others"
    assert families[-1].rollouts == 6
    assert sum(one.masses["mass"] for one in families) == pytest.approx(2.0 * len(rows))


def test_what_is_stored_of_a_step(project: Project) -> None:
    run: Run = make_run(project)
    store_batch(make_batch(run, groups=3, group_size=4), source="test")
    compute_pending()
    step = Step.objects.get(run=run)
    signal = StepSignal.objects.get(step=step)
    rows = sums.unpack(RolloutSums.objects.get(step=step).payload)
    assert signal.mass_max == rows["mass"].max() > 0
    assert sum(GroupSignal.objects.filter(step=step).values_list("mass", flat=True)) == pytest.approx(
        rows["mass"].sum()
    )
    parts = StepPart.objects.filter(step=step)
    named = parts.filter(split=SPLIT_PLACE["component"]).values_list("name", flat=True)
    assert set(named) == {"exact answer", "has an equals sign"}
    assert sum(one.mass for one in parts.filter(split=SPLIT_PLACE["span"])) == pytest.approx(rows["mass"].sum())
    counted = rows["counted"] - rows["clipped"]
    assert (counted >= 0).all()
