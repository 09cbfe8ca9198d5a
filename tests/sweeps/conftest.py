"""A small sweep, and runs that end as a test says."""

from typing import Any

from rlviewer.runs.models import Attempt, Run, Step
from rlviewer.sweeps.spec import SweepSpec

BASE: dict[str, Any] = {"steps": 4, "sampling": {"group_size": 2, "prompts_per_step": 2, "max_new_tokens": 8}}
LEARNING_RATE = "optimizer.learning_rate"


def make_spec(**changes: Any) -> SweepSpec:
    raw: dict[str, Any] = {
        "name": "rates",
        "objective": "reward",
        "parameters": {LEARNING_RATE: {"choices": [1e-5, 1e-4]}},
        "base": BASE,
    }
    return SweepSpec.from_dict(raw | changes)


def train(run: Run, *rewards: float, state: str = "finished") -> None:
    """The run stores these rewards and comes into `state`."""
    attempt = run.attempts.order_by("number").last()
    assert attempt is not None
    first = Step.objects.filter(run=run).count()
    for index, reward in enumerate(rewards, start=first):
        Step.objects.create(run=run, attempt=attempt, index=index, reward_mean=reward, rollout_count=4)
    Run.objects.filter(pk=run.pk).update(state=state, last_step=first + len(rewards) - 1, token_count=100)
    Attempt.objects.filter(pk=attempt.pk).update(state=state)
