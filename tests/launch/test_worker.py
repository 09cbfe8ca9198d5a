"""Real workers train real child processes; what goes wrong around them costs nothing."""

import pytest

from rlviewer.launch.process import RunFolder
from rlviewer.runs.models import Rollout, Run, Step
from tests.launch.conftest import Workers

pytestmark = pytest.mark.timeout(120)


def stored_steps(run: Run) -> list[int]:
    return list(
        Step.objects.filter(run=run, is_current=True, split="train").order_by("index").values_list("index", flat=True)
    )


def test_a_launched_run_is_trained_stored_and_finished(workers: Workers) -> None:
    run = workers.launch(steps=5)
    workers.start()
    workers.wait_for(run, "finished")
    assert stored_steps(run) == [0, 1, 2, 3, 4]
    assert Rollout.objects.filter(run_id=run.pk).count() == run.rollout_count == 10
    attempt = run.attempts.get()
    assert (attempt.state, attempt.exit_code, attempt.lease.holder) == ("finished", 0, "")
    assert run.started_at < run.ended_at
    assert not any((RunFolder(str(run.uid), 1).root / "spool").iterdir())
