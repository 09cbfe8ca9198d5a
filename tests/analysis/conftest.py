"""A run whose rollouts say a few different things, and its vectors."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import numpy as np
import pytest

from rlviewer.accounts.models import Project
from rlviewer.analysis import vectors
from rlviewer.analysis.embedder import Embedder
from rlviewer.analysis.vectors import Embedded
from rlviewer.ingest.services import store_batch
from rlviewer.runs.models import Rollout, Run
from rlviewer.search.services import index_pending
from tests.factories import make_batch, make_run
from training.sentences import DIMENSIONS

SAYINGS = (
    "First we add the ones and carry the ten.",
    "I am sorry, but I cannot help with this request.",
    "Adding the ones digits first, we carry one ten over.",
    "Sorry, that is a request I can not help you with.",
)


def direction(number: int, toward: float = 0.0) -> bytes:
    """A vector of length 1 along one axis, or turned a little towards the next."""
    vector = np.zeros(DIMENSIONS, "<f4")
    vector[number], vector[number + 1] = np.cos(toward), np.sin(toward)
    return vector.tobytes()


@pytest.fixture
def run(project: Project) -> Run:
    """Two steps of 8 rollouts; the third group of each step is not there, so half of all are wrong."""
    run = make_run(project, state="finished")
    for step in range(2):
        texts = [SAYINGS[row % 4].encode() for row in range(8)]
        store_batch(make_batch(run, step=step, groups=2, group_size=4, completion=texts), source="test")
    index_pending()
    run.refresh_from_db()
    return run


@pytest.fixture
def rollouts(run: Run) -> list[int]:
    return list(Rollout.objects.filter(run_id=run.pk).order_by("pk").values_list("pk", flat=True))


def embed(ids: list[int], directions: list[bytes]) -> None:
    vectors.store({pk: Embedded(vector, is_cut=False) for pk, vector in zip(ids, directions, strict=True)})


@pytest.fixture(scope="session")
def start_embedder() -> Iterator[Callable[[], Embedder]]:
    """A process with the model, the same for all tests while it is sound: loading takes seconds."""
    kept: list[Embedder] = []
    with ExitStack() as stack:

        def start() -> Embedder:
            if not (kept and kept[-1].is_sound):
                kept.append(stack.enter_context(Embedder()))
            return kept[-1]

        yield start


@pytest.fixture
def embedder(start_embedder: Callable[[], Embedder]) -> Embedder:
    return start_embedder()
