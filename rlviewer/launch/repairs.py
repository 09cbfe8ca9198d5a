"""What a sweeper mends on its own host: attempts without a supervisor, trainers without a lease, spools without a reader."""

import fcntl
import logging
from datetime import timedelta

from django.conf import settings
from django.db import InterfaceError, OperationalError
from django.db.models import Q
from django.utils import timezone

from rlviewer.embedded import paths
from rlviewer.launch import hosts, supervise
from rlviewer.launch.models import Lease
from rlviewer.launch.process import RunFolder, TrainerRecord
from rlviewer.launch.reasons import Ending
from rlviewer.launch.reports import finish_attempt
from rlviewer.launch.status import TrainerStatus
from training import spool

log = logging.getLogger(__name__)


def mend(*, with_spools: bool) -> None:
    """All repairs, by one worker of this host at a time; the kernel frees the lock of a dead one."""
    folder = TrainerRecord.folder()
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "sweeper.lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        end_lost_attempts()
        kill_stale_trainers()
        if with_spools:
            drain_orphans()


def end_lost_attempts() -> None:
    """End what this host's dead workers and commands held: their trainers died with them or are killed now."""
    for lease in Lease.objects.filter(holder__startswith=f"{hosts.host_name()}:").select_related("attempt__run"):
        forgotten = hosts.is_this_process(lease.holder) and lease.holder not in supervise.ACTIVE
        if not (forgotten or hosts.is_dead_here(lease.holder)):
            continue
        reason = "its worker failed" if forgotten else "its worker was killed, or this host was restarted,"
        try:
            end_lost(lease, reason)
        except (OperationalError, InterfaceError):
            raise
        except Exception:
            log.exception("attempt %s: its end could not be recorded; trying again", lease.attempt_id)


def end_lost(lease: Lease, reason: str) -> None:
    folder = RunFolder(str(lease.attempt.run.uid), lease.attempt.number)
    # Not a later attempt's: this one may have ended, and the next begun, since its lease was read.
    TrainerRecord.end_trainers(folder.run_uid, upto=folder.attempt)
    drain(folder)
    status = TrainerStatus.read(folder.status) or TrainerStatus()
    finish_attempt(lease.attempt_id, lease.fence, Ending(worker_died=reason), status, host=hosts.host_name())


def kill_stale_trainers() -> None:
    """End trainers of this host whose attempt is no longer theirs, and forget those that have ended."""
    for note in TrainerRecord.all():
        if not note.is_alive():
            note.remove()
        elif not Lease.objects.filter(pk=note.attempt_id, fence=note.fence).exclude(holder="").exists():
            log.warning("attempt %s: killing its trainer %s, whose lease is gone", note.attempt_id, note.pid)
            note.kill()


def drain_orphans() -> None:
    """Store what runs left in their spools and nobody is storing; a data folder may hold those of other hosts too."""
    lately = timezone.now() - timedelta(seconds=settings.SILENT_SECONDS)
    is_looked_after = Q(holder__startswith=f"{hosts.host_name()}:") | Q(heartbeat_at__gt=lately)
    held = Lease.objects.exclude(holder="").filter(is_looked_after)
    busy = {str(uid) for uid in held.values_list("attempt__run__uid", flat=True)}
    folder = paths.runs(settings.HOME)
    for run_dir in folder.iterdir() if folder.is_dir() else ():
        if run_dir.name not in busy and any(spool.waiting(run_dir / "spool")):
            drain(RunFolder(run_dir.name, 0))


def drain(folder: RunFolder) -> None:
    """Store a spool; a trouble with one run must not keep the sweeper from the others."""
    from rlviewer.ingest.drain import drain_spool

    try:
        drain_spool(folder.root)
    except (OperationalError, InterfaceError):
        raise
    except Exception:
        log.exception("run %s: its spool could not be stored; trying again", folder.run_uid)
