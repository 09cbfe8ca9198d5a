"""Each check, on a step where exactly one rollout fails it."""

from typing import Any

import numpy as np
import pytest

from rlviewer.runs.models import Run, StopReason
from rlviewer.signal.measures.audit import CHECKS, Audit, audit, means_dead, text_differs
from rlviewer.signal.measures.tokens import tokens_of
from tests.signal.material import material

PIECES = [b"a", b"b", b"c", b"<|end|>", b" d"]
GOOD: dict[str, Any] = {
    "token_ids": [0, 1, 3],
    "completion": b"ab",
    "loss_mask": [1, 1, 1],
    "origin": [2, 2, 2],
    "advantage": 1.0,
    "token_advantages": [1.0] * 3,
    "sampler_logprobs": [-1.0] * 3,
    "recomputed_logprobs": [-1.01] * 3,
    "policy_logprobs": [-1.0] * 3,
    "prompt_ids": np.array([2, 4]),
}


def checked(bad: dict[str, Any], *, dead: str = "", dead_is_meant: bool = False) -> Audit:
    """Four rollouts that are as they should be, and one that differs by `bad`."""
    rows = [GOOD | {"details": {"seed": seed}} for seed in range(4)] + [
        {**GOOD, "details": {"seed": 4}, **bad, "group": 1}
    ]
    of = material(rows, dead=("", dead))
    return audit(of, tokens_of(of), PIECES, dead_is_meant=dead_is_meant)


@pytest.mark.parametrize(
    ("key", "bad", "token"),
    [
        ("environment", {"origin": [2, 4, 2]}, 1),
        ("prompt", {"origin": [1, 2, 2]}, 0),
        ("end", {"loss_mask": [1, 1, 0]}, 2),
        ("text", {"completion": b"ac"}, 1),
        ("boundary", {"token_ids": [0, 3, 3], "completion": b"a"}, 2),
        ("boundary", {"token_ids": [3, 1, 3], "completion": b"b", "prompt_ids": np.array([2, 3])}, 0),
        ("truncated", {"stop_reason": StopReason.LENGTH}, 2),
        ("empty", {"loss_mask": [0, 0, 0]}, 0),
        ("stale", {"recomputed_logprobs": [-1.0, -1.5, -1.0]}, 1),
        ("finite", {"policy_logprobs": [-1.0, -1.0, np.nan]}, 2),
    ],
)
def test_a_check_finds_the_token_at_fault(key: str, bad: dict[str, Any], token: int) -> None:
    found = checked(bad)
    assert found.failed_at[key].tolist() == [-1] * 4 + [token]
    assert found.failed[list(CHECKS).index(key)] == 1


def test_a_sound_step_passes_everything() -> None:
    found = checked({})
    assert found.failed_at == {}
    assert found.checked == [0 if key == "dead" else 5 for key in CHECKS]


def test_checks_without_their_columns_do_not_run() -> None:
    of = material([{"completion": b"ab"}, {"completion": b"cd"}])
    found = audit(of, tokens_of(of), None, dead_is_meant=False)
    ran = {key for key, count in zip(CHECKS, found.checked, strict=True) if count}
    assert ran == {"truncated"}


def test_an_advantage_in_a_dead_group_is_at_fault_unless_the_recipe_means_it() -> None:
    assert checked({}, dead="all_wrong").failed_at["dead"].tolist() == [-1] * 4 + [0]
    assert checked({}, dead="all_wrong", dead_is_meant=True).failed_at == {}
    assert checked({"advantage": 0.0}, dead="all_wrong").failed_at == {}


@pytest.mark.parametrize("algorithm", ["nsr", "rl_zvp", "grpo_lead", "restrain", "reinforce", "ppo"])
def test_recipes_that_mean_it(algorithm: str) -> None:
    assert means_dead(Run(algorithm=algorithm))


@pytest.mark.parametrize("algorithm", ["grpo", "dapo", "rloo", "gspo", "dr_grpo", "unheard of"])
def test_recipes_that_do_not(algorithm: str) -> None:
    assert not means_dead(Run(algorithm=algorithm))
    assert means_dead(Run(algorithm=algorithm, plugins={"H5": ["batch_mean"]}))


@pytest.mark.parametrize(
    ("ids", "completion", "place"),
    [
        ([4, 0], b"da", -1),  # decoders drop the space at the start
        ([0, 3, 1], b"ab", -1),
        ([0, 3, 1], b"a<|end|>b", -1),
        ([0, 3, 1, 3], b"a<|end|>b", -1),  # some are kept and some are not
        ([0, 1, 2], b"ab", 2),
        ([0, 1], b"abc", 1),
        ([0, 1], b"xb", 0),
        ([0, 9], b"a", -1),
    ],
)
def test_texts_are_compared_as_decoders_write_them(ids: list[int], completion: bytes, place: int) -> None:
    assert text_differs(ids, completion, PIECES, [True] * len(ids)) == place


def test_the_same_rollout_twice_is_told_from_equal_ones() -> None:
    def copies(*rows: dict[str, Any]) -> list[int]:
        of = material([GOOD | row for row in rows])
        found = audit(of, tokens_of(of), PIECES, dead_is_meant=False).failed_at.get("twice")
        return [] if found is None else found.tolist()

    first, second = {"details": {"seed": 1}, "number": 0}, {"details": {"seed": 2}, "number": 1}
    assert copies(first, second, first | {"number": 2}) == [-1, -1, 0]
    # All of a group from one seed: equal completions are no copies.
    assert copies(first, first | {"number": 1}) == []
    assert copies(first, second, second | {"token_ids": [0, 2, 3]}) == []


@pytest.mark.parametrize(("other_seed", "checked"), [(1, 0), (2, 3)])
def test_a_seed_of_the_whole_batch_tells_no_copies(other_seed: int, checked: int) -> None:
    rows = [{"details": {"seed": seed}, "number": 0, "group": group} for group, seed in enumerate((1, 1, other_seed))]
    of = material([GOOD | row for row in rows])
    of.groups[1].prompt = of.groups[0].prompt  # drawn twice in the step
    found = audit(of, tokens_of(of), PIECES, dead_is_meant=False)
    assert dict(zip(CHECKS, found.checked, strict=True))["twice"] == checked
    assert ("twice" in found.failed_at) == bool(checked)
