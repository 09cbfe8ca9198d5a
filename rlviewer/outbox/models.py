"""What open pages should hear of, written in the transaction that it speaks of."""

from django.db import models


class Topic(models.Model):
    """A stream of announcements (`run:12`, `project:3`). Its row lock makes `seq` gapless and in commit order."""

    name = models.CharField(max_length=60, primary_key=True)
    seq = models.BigIntegerField(default=0)


class Announcement(models.Model):
    """One thing that changed. The newest are kept for pages that come back; older ones are pruned."""

    topic = models.CharField(max_length=60)
    seq = models.BigIntegerField()
    event = models.CharField(max_length=40)
    payload = models.JSONField(default=dict)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            # Also the relay's read: everything of a topic after the last number it has sent.
            models.UniqueConstraint(fields=["topic", "seq"], name="announcement_seq_unique"),
        ]
