"""What a run will cost, and where the number comes from."""

from datetime import timedelta
from pathlib import Path

import pytest
from django.utils import timezone

from rlviewer.accounts.models import Project
from rlviewer.launch.estimates import count_rollouts, estimate
from rlviewer.launch.presets import PRESETS
from rlviewer.runs.models import Run
from tests.factories import make_project, make_run
from training import legality
from training.config import RunConfig

CONFIG = RunConfig.from_dict(
    {
        "steps": 10,
        "sampling": {"prompts_per_step": 4, "group_size": 5, "max_new_tokens": 16},
        "eval": {"every_steps": 4, "prompts": 3, "samples": 2},
    }
)
# 10 steps of 4 * 5, and evaluations of 3 * 2 after 0, 4, 8 and 10 steps.
ROLLOUTS = 10 * 20 + 4 * 6


def test_every_completion_is_counted() -> None:
    assert count_rollouts(CONFIG) == ROLLOUTS
    only_ends = RunConfig.from_dict({**CONFIG.to_dict(), "eval": {"every_steps": 0, "prompts": 3, "samples": 2}})
    assert count_rollouts(only_ends) == 10 * 20 + 2 * 6


@pytest.mark.django_db
def test_without_finished_runs_it_says_that_it_guesses() -> None:
    guess = estimate(CONFIG, Run.objects.all())
    assert (guess.rollouts, guess.tokens) == (ROLLOUTS, ROLLOUTS * 16)
    assert guess.seconds > 0
    assert guess.disk_bytes > 0
    assert guess.basis.startswith("No finished run")


@pytest.mark.django_db
def test_a_bigger_model_is_guessed_to_take_longer(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(bytes(40_000_000))
    long = {**CONFIG.to_dict(), "steps": 1000}
    big = RunConfig.from_dict({**long, "model": {"path": str(tmp_path)}})
    assert 5 * estimate(RunConfig.from_dict(long), Run.objects.all()).seconds < estimate(big, Run.objects.all()).seconds
    assert "size of its weights" in estimate(big, Run.objects.all()).basis


@pytest.mark.django_db
def test_finished_runs_of_the_same_kind_are_the_better_basis(project: Project) -> None:
    now = timezone.now()
    past = {
        "started_at": now - timedelta(seconds=50),
        "ended_at": now,
        "rollout_count": 100,
        "token_count": 700,
        "config": CONFIG.to_dict(),
    }
    make_run(project, state="finished", **past)
    make_run(project, state="finished", **{**past, "rollout_count": 300, "token_count": 500})
    make_run(project, state="failed", **{**past, "rollout_count": 1})
    make_run(project, state="finished", **{**past, "rollout_count": 1}, task="countdown")
    make_run(make_project("Of others"), state="finished", **{**past, "rollout_count": 1})
    found = estimate(CONFIG, Run.objects.filter(project=project))
    assert found.seconds == pytest.approx(ROLLOUTS * 100 / 400)
    assert found.tokens == round(ROLLOUTS * 1200 / 400)
    assert found.basis == "Measured on your last 2 finished runs of this model and task."


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_may_run(name: str) -> None:
    legality.check(PRESETS[name].run_config(seed=3))
