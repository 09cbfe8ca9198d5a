"""Leases: who may speak for an attempt."""

from django.db import models

from rlviewer.runs.models import Attempt


class Lease(models.Model):
    """The right to run an attempt. `fence` grows with every taking; writes carry it and an older one is refused."""

    attempt = models.OneToOneField(Attempt, on_delete=models.CASCADE, primary_key=True, related_name="lease")
    fence = models.BigIntegerField(default=0)
    holder = models.CharField(max_length=200, blank=True)  # host:pid:random of the worker; empty when free
    acquired_at = models.DateTimeField(null=True)
    heartbeat_at = models.DateTimeField(null=True)
    expires_at = models.DateTimeField(null=True)
    # When the sweeper last told Celery of the attempt.
    announced_at = models.DateTimeField(null=True)

    class Meta:
        indexes = [
            # The sweeper's question: which leases have run out?
            models.Index(fields=["expires_at"], name="lease_expiry", condition=~models.Q(holder="")),
        ]


class Worker(models.Model):
    """A worker process that has been seen."""

    name = models.CharField(max_length=200, primary_key=True)
    host = models.CharField(max_length=200)
    pid = models.IntegerField()
    queues = models.CharField(max_length=200)
    devices = models.JSONField(default=list)
    started_at = models.DateTimeField(auto_now_add=True)
    seen_at = models.DateTimeField()
