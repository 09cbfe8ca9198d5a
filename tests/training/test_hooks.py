import importlib
import random

import pytest
import torch

from tests.training.golden import CASES
from training.auxiliary import AUXILIARIES
from training.config import ConfigError
from training.hooks import HOOKS, merge_parts
from training.losses import LossInputs
from training.plans import PLANS
from training.policy import Policy
from training.recipes import RECIPES
from training.selections import SELECTIONS
from training.side_models import SIDE_MODELS
from training.tasks import catalog
from training.tasks.stream import TaskStream
from training.transforms import TRANSFORMS, PromptContext, identity

REGISTRIES = {
    "H1": "SUPPLIES",
    "H2": "TRANSFORMS",
    "H3": "PLANS",
    "H4": "REWARDS",
    "H5": "ADVANTAGES",
    "H6": "TOKEN_WEIGHTS",
    "H7": "LOSSES",
    "H8": "AUXILIARIES",
    "H9": "SELECTIONS",
    "H10": "SIDE_MODELS",
}
ADDITION = catalog.FAMILIES["addition"]
PARAMS = catalog.make_params(ADDITION, {})


@pytest.mark.parametrize("code", HOOKS)
def test_names_offered_are_those_that_work(code: str) -> None:
    registry = getattr(importlib.import_module(HOOKS[code].module), REGISTRIES[code])
    assert sorted(HOOKS[code].entries) == sorted(registry)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_names_an_entry_for_every_hook(name: str) -> None:
    recipe = RECIPES[name]
    assert list(recipe.parts) == list(HOOKS)
    assert merge_parts({}, recipe.parts) == recipe.parts
    assert recipe.name == name
    assert not recipe.parent or recipe.parent in RECIPES


@pytest.mark.parametrize(
    ("overrides", "key", "message"),
    [
        ({"H1": "addition"}, "hooks.H1", "task.name"),
        ({"H11": "x"}, "hooks.H11", "unknown hook"),
        ({"H5": "grup"}, "hooks.H5", "did you mean group?"),
        ({"H5": []}, "hooks.H5", "exactly one"),
        ({"H7": 3}, "hooks.H7", "a name or a list"),
        ({"H4": ["task", "task"]}, "hooks.H4", "twice"),
    ],
)
def test_refuses_parts_that_do_not_exist(overrides: dict, key: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("?", r"\?")) as caught:
        merge_parts(RECIPES["grpo"].parts, overrides)
    assert caught.value.key == key


def test_a_run_replaces_the_entry_it_names() -> None:
    parts = merge_parts(RECIPES["grpo"].parts, {"H8": ["ref_kl"]})
    assert parts["H8"] == ("ref_kl",)
    assert parts["H5"] == ("group",)
    assert RECIPES["grpo"].parts["H8"] == ()


def context() -> PromptContext:
    return PromptContext(0, 10, random.Random(0), {}, TaskStream(ADDITION, PARAMS, 0).examples)


def test_identity_leaves_the_prompt_alone() -> None:
    (task,) = TaskStream(ADDITION, PARAMS, 0).take(1)
    prompt = TRANSFORMS["identity"](task, context())
    assert (prompt.text, prompt.name, prompt.prefix, prompt.source_rollout) == (task.prompt, "identity", (), None)
    assert [segment.origin for segment in prompt.prompt] == ["prompt"]


def test_the_plain_plan_asks_for_a_group_of_each_prompt() -> None:
    prompts = [identity(task) for task in TaskStream(ADDITION, PARAMS, 0).take(3)]
    assert [(request.prompt, request.count) for request in PLANS["plain"](prompts, 4)] == [(0, 4), (1, 4), (2, 4)]


def test_selection_takes_the_streams_next_tasks_and_keeps_dead_groups() -> None:
    selection = SELECTIONS["uniform"](TaskStream(ADDITION, PARAMS, 5), {}, 0)
    chosen = selection.choose(3)
    assert [one.task for one in chosen] == TaskStream(ADDITION, PARAMS, 5).take(3)
    choices = selection.choose_groups([None, "all_right", "all_wrong", "same_score", "single", "unscored"])
    assert [choice.kept for choice in choices] == [True, True, True, True, False, False]
    assert [choice.drop_reason for choice in choices] == ["", "", "", "", "single", "unscored"]


def test_dynamic_sampling_accepts_groups_with_a_difference() -> None:
    case = CASES["filter.dapo_dynamic_sampling"]
    accepts = SELECTIONS["mixed_only"](TaskStream(ADDITION, PARAMS, 5), {}, 0).accepts
    assert [accepts(group) for group in case["inputs"]["groups"]] == case["expected"]["keep"]
    nan = float("nan")
    assert [accepts(group) for group in ([1.0, nan], [nan], [1.0, nan, 0.0], [0.0, 1e-7])] == [
        False,
        False,
        True,
        False,
    ]
    assert SELECTIONS["uniform"](TaskStream(ADDITION, PARAMS, 5), {}, 0).accepts([1.0, 1.0])


def test_no_side_model_refuses_the_state_of_one(policy: Policy) -> None:
    model = SIDE_MODELS["none"](policy, {}, 8)
    model.restore(model.state())
    with pytest.raises(ValueError, match="critic"):
        model.restore({"critic": 1})


def loss_inputs(reference: torch.Tensor | None) -> LossInputs:
    mask = torch.tensor([[True, True, False]])
    policy = torch.tensor([[-1.2, -0.5, float("nan")]])
    return LossInputs(policy, policy, torch.zeros(1, 3), torch.zeros(1, 3), mask, ref_logprobs=reference)


def test_the_kl_term_is_weighted_and_zero_where_masked() -> None:
    reference = torch.tensor([[-1.0, -2.5, 0.0]])
    term = AUXILIARIES["ref_kl"](loss_inputs(reference), {"kl_coefficient": 0.5, "kl_estimator": "k3"})
    # k3 of the worked examples kl.estimators.1 and .2
    assert term[0].tolist() == pytest.approx([0.5 * 0.02140275816, 0.5 * 1.135335283, 0.0])


def test_the_kl_term_never_goes_without_its_reference() -> None:
    with pytest.raises(ValueError, match="needs ref_logprobs"):
        AUXILIARIES["ref_kl"](loss_inputs(None), {"kl_coefficient": 0.5, "kl_estimator": "k3"})
    with pytest.raises(ValueError, match="zero expected gradient"):
        AUXILIARIES["ref_kl"](loss_inputs(torch.zeros(1, 3)), {"kl_coefficient": 0.5, "kl_estimator": "k1"})
