"""Celery's door to training. A delivery only says "look": who trains is decided by the lease in Postgres.

The worker, as the supervisor and the containers start it (threads: one process, and the trainer is its own process anyway;
one at a time, since a trainer wants the whole machine):

    celery -A rlviewer worker --pool=threads --concurrency=1 --queues=cpu
        --without-gossip --without-mingle --without-heartbeat

SIGTERM ends it within 10 s: the trainer stops at its next step with a checkpoint, its batches are stored, and the run is
queued again, so the next worker goes on from there. It may also end by itself (exit code 75) when it notices that Celery has
gone deaf; whoever started it starts it again.
"""

from celery import shared_task

from rlviewer.launch import worker


@shared_task(name="rlviewer.launch.tasks.run_attempt", ignore_result=True, acks_late=True)
def run_attempt(attempt_id: int) -> None:
    worker.note_delivery()
    if worker.interrupted.is_set():
        return  # on its way out; a sweeper announces the attempt again to a worker that stays
    # What supervises is loaded with the first run: an idle worker stays small.
    from rlviewer.launch import supervise

    supervise.run_attempt(attempt_id, interrupted=worker.interrupted)
