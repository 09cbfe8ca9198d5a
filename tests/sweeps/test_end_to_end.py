"""A sweep through a real worker and the real trainer."""

import pytest

from rlviewer.accounts.models import User
from rlviewer.sweeps.models import Sweep
from rlviewer.sweeps.queries import sweep_page
from rlviewer.sweeps.services import launch_sweep
from tests.launch.conftest import Workers, broker, wait_until, workers  # noqa: F401
from tests.sweeps.conftest import BASE, LEARNING_RATE, make_spec


@pytest.mark.timeout(280)
def test_a_grid_of_two_algorithms(workers: Workers) -> None:  # noqa: F811
    alice = User.objects.get(username="alice")
    parameters = {"algorithm": {"choices": ["grpo", "rloo"]}, LEARNING_RATE: {"choices": [1e-5]}}
    base = BASE | {"steps": 1, "threads": 1, "eval": {"prompts": 2, "samples": 1, "every_steps": 0}}
    spec = make_spec(parameters=parameters, base=base, objective="pass@1", concurrency=4)
    sweep = launch_sweep(alice, workers.project, spec)
    workers.start(RLVIEWER_TRAINER_MODULE="training.run")

    def is_done() -> bool:
        return Sweep.objects.get(pk=sweep.pk).state == "done"

    wait_until(is_done, 270, "the sweep to be done", workers.log)
    trials = list(sweep.trials.order_by("number"))
    assert [trial.state for trial in trials] == ["complete"] * 2, [trial.reason for trial in trials]
    assert [(trial.point["algorithm"], trial.point[LEARNING_RATE]) for trial in trials] == [
        ("grpo", 1e-5), ("rloo", 1e-5)
    ]  # fmt: skip
    assert all(trial.value is not None and 0 <= trial.value <= 1 for trial in trials)
    page = sweep_page(sweep)
    assert page.best is not None and page.steps == 2 and page.rows[0].evidence.length is not None
