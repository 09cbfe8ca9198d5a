"""The search space, and what is refused before anything is stored."""

import pytest

from rlviewer.accounts.models import Project, User
from rlviewer.runs.models import Run
from rlviewer.sweeps.checking import IllegalPoints, check, cost
from rlviewer.sweeps.models import Sweep
from rlviewer.sweeps.services import launch_sweep
from rlviewer.sweeps.spec import SweepSpec
from tests.sweeps.conftest import BASE, LEARNING_RATE, make_spec
from training.config import ConfigError

CHOICES = {"choices": [1e-5, 1e-4]}


def test_toml_there_and_back() -> None:
    spec = make_spec(
        sampler="random", seeds=[0, 7], parameters={LEARNING_RATE: {"low": 1e-6, "high": 1e-3, "log": True}}
    )
    assert SweepSpec.from_toml(spec.to_toml()) == spec


def test_a_grid_is_the_product_of_its_parameters() -> None:
    parameters = {"algorithm": {"choices": ["grpo", "rloo"]}, "steps": {"low": 2, "high": 6, "step": 2}}
    spec = make_spec(parameters=parameters, seeds=[0, 1])
    points = list(spec.grid())
    assert len(points) == spec.point_count() == 6 and spec.run_count() == 12
    assert points[0] == {"algorithm": "grpo", "steps": 2} and points[-1] == {"algorithm": "rloo", "steps": 6}
    assert spec.config(points[-1], 3).steps == 6 and spec.config(points[-1], 3).seed == 3


def test_another_algorithm_drops_the_knobs_of_the_base() -> None:
    base = BASE | {"algorithm": "grpo", "algorithm_params": {"clip_low": 0.1}}
    spec = make_spec(base=base, parameters={"algorithm": {"choices": ["grpo", "reinforce"]}})
    assert spec.config({"algorithm": "grpo"}).algorithm_params == {"clip_low": 0.1}
    assert spec.config({"algorithm": "reinforce"}).algorithm_params == {}


@pytest.mark.parametrize(
    ("changes", "key", "words"),
    [
        ({"parameters": {"optimizer.learning_rat": CHOICES}}, "parameters.optimizer.learning_rat", "did you mean optimizer.learning_rate?"),
        ({"parameters": {LEARNING_RATE: {"choices": [1e-5, 3.0]}}}, f"parameters.{LEARNING_RATE}", "must be at most 1"),
        ({"parameters": {LEARNING_RATE: {"choices": ["fast"]}}}, f"parameters.{LEARNING_RATE}", "must be a number"),
        ({"parameters": {LEARNING_RATE: {"choices": [1e-5, 1e-5]}}}, f"parameters.{LEARNING_RATE}", "twice"),
        ({"parameters": {LEARNING_RATE: {"low": 1e-5, "high": 1e-3}}}, f"parameters.{LEARNING_RATE}", "with a step"),
        ({"parameters": {LEARNING_RATE: {"low": 1e-3, "high": 1e-5}}, "sampler": "tpe"}, f"parameters.{LEARNING_RATE}", "below high"),
        ({"parameters": {"task.name": {"choices": ["addition", "gone"]}}}, "parameters.task.name", "gone"),
        ({"parameters": {"algorithm": {"choices": ["grpo", "gpro"]}}}, "parameters.algorithm", "did you mean"),
        ({"parameters": {"steps": {"low": 1, "high": 10_000_000, "step": 1}}}, "parameters", "10,000,000 runs"),
        ({"parameters": {}}, "parameters", "at least one"),
        ({"sampler": "cmaes"}, "sampler", "range"),
        ({"seeds": [0, 0]}, "seeds", "twice"),
        ({"sampler": "gird"}, "sampler", "did you mean grid"),
        ({"base": BASE | {"task": {"name": "deleted"}}}, "parameters", "deleted"),
        ({"parameters": {"model.path": {"choices": ["/etc"]}}}, "parameters.model.path", "offered here"),
    ],
)  # fmt: skip
@pytest.mark.django_db
def test_refused_before_anything_is_stored(changes: dict, key: str, words: str, alice: User, project: Project) -> None:
    with pytest.raises(ConfigError) as refused:
        launch_sweep(alice, project, make_spec(**changes))
    assert refused.value.key == key and words in refused.value.message
    assert not Sweep.objects.exists()


@pytest.mark.django_db
def test_illegal_points_are_counted_and_left_out_only_on_request(alice: User) -> None:
    parameters = {"algorithm": {"choices": ["grpo", "reinforce"]}, "sampling.group_size": {"choices": [1, 4]}}
    with pytest.raises(
        IllegalPoints, match="1 of 4 points of the grid cannot run, such as algorithm grpo, group_size 1"
    ):
        check(make_spec(parameters=parameters), alice)
    checked = check(make_spec(parameters=parameters, leave_out_illegal=True), alice)
    assert checked.run_count == 3 and len(checked.illegal) == 1


@pytest.mark.django_db
def test_the_cost_counts_every_run(alice: User) -> None:
    found = cost(check(make_spec(seeds=[0, 1, 2]), alice), Run.objects.all())
    one = cost(check(make_spec(parameters={LEARNING_RATE: {"choices": [1e-5]}}), alice), Run.objects.all())
    assert (found.runs, found.steps) == (6, 24)
    assert found.tokens == 6 * one.tokens and found.seconds == pytest.approx(6 * one.seconds)
