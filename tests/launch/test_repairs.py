"""What a sweeper mends on its own host."""

from datetime import timedelta
from pathlib import Path
from typing import Any

from django.utils import timezone

from rlviewer.accounts.models import Project
from rlviewer.launch import hosts, leases, repairs, services, sweeper
from rlviewer.launch.models import Lease
from rlviewer.launch.process import RunFolder
from rlviewer.runs.models import Run
from tests.factories import make_batch
from training import spool
from training.config import RunConfig


def held_with_a_batch(project: Project, holder: str) -> Run:
    """A run that `holder` trains, with one batch in its spool."""
    run = services.launch_run(None, project, RunConfig(), queue=services.FOREGROUND)
    assert leases.acquire(run.attempts.get().pk, holder, 900)
    folder = RunFolder(str(run.uid), 1)
    folder.prepare(run.config_toml)
    spool.put(folder.root / "spool", make_batch(run))
    return run


def waits(run: Run) -> bool:
    return any(spool.waiting(RunFolder(str(run.uid), 1).root / "spool"))


def test_only_spools_that_nobody_looks_after_are_stored(project: Project, settings: Any, tmp_path: Path) -> None:
    settings.HOME = tmp_path
    here = held_with_a_batch(project, f"{hosts.host_name()}:1:birth:random")
    live, silent = (held_with_a_batch(project, f"{host}:1:birth:random") for host in ("live", "silent"))
    over = held_with_a_batch(project, "over:1:birth:random")
    leases.release(over.attempts.get().pk, 1)
    long_ago = timezone.now() - timedelta(seconds=settings.SILENT_SECONDS + 1)
    Lease.objects.filter(attempt__run__in=[here, silent]).update(heartbeat_at=long_ago)
    repairs.drain_orphans()
    assert [waits(run) for run in (here, live, silent, over)] == [True, True, False, False]


def test_a_restarted_host_resumes_what_nobody_gave_up_however_long_it_was_off(
    project: Project, settings: Any, tmp_path: Path
) -> None:
    """Its workers start together: one sweeps leases that have run out while another does the repairs."""
    settings.HOME = tmp_path
    run = held_with_a_batch(project, f"{hosts.host_name()}:1:before-the-restart:random")
    Run.objects.filter(pk=run.pk).update(queue="cpu")
    Lease.objects.update(expires_at=timezone.now() - timedelta(days=3))
    sweeper.expire_leases()
    repairs.mend(with_spools=False)
    run.refresh_from_db()
    assert (run.state, run.current_attempt, waits(run)) == ("queued", 2, False)
    assert run.state_reason.startswith("its worker was killed, or this host was restarted,")
