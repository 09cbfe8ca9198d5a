"""A run with stored steps, and the process that works over them: the same one for all tests while it is sound."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from rlviewer.accounts.models import Project
from rlviewer.counterfactual.replayer import Replayer
from rlviewer.ingest.services import store_batch
from rlviewer.runs.models import Run, Step
from tests.factories import make_batch, make_run
from training.config import RunConfig
from training.records import RolloutBatch

CONFIG = RunConfig.from_dict({"algorithm": "grpo", "sampling": {"group_size": 4, "prompts_per_step": 4}})


@pytest.fixture
def run(project: Project) -> Run:
    return make_run(project, state="finished", config_toml=CONFIG.to_toml())


@pytest.fixture
def batch(run: Run) -> RolloutBatch:
    """Of one that has rewards and finite log-probabilities throughout, as our trainer writes them."""
    made = make_batch(run, reward=[float(row % 3 == 0) for row in range(16)])
    rollouts = made.rollouts
    for name in ("sampler_logprobs", "policy_logprobs", "ref_logprobs"):
        lists = [np.nan_to_num(values, nan=-0.5).tolist() for values in rollouts.column(name).to_pylist()]
        place = rollouts.column_names.index(name)
        rollouts = rollouts.set_column(place, name, pa.array(lists, rollouts.schema.field(name).type))
    return replace(made, rollouts=rollouts)


@pytest.fixture
def step(run: Run, batch: RolloutBatch) -> Step:
    store_batch(batch, source="test")
    run.refresh_from_db()
    return Step.objects.select_related("run", "attempt").get(run=run)


@pytest.fixture(scope="session")
def start_replayer() -> Iterator[Callable[[], Replayer]]:
    kept: list[Replayer] = []
    with ExitStack() as stack:

        def start() -> Replayer:
            if not (kept and kept[-1].is_sound):
                kept.append(stack.enter_context(Replayer()))
            return kept[-1]

        yield start


@pytest.fixture
def replayer(start_replayer: Callable[[], Replayer]) -> Replayer:
    return start_replayer()
