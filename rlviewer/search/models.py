"""Text of completions for searching, filled by a worker after the rollouts are stored; what a person chose for lists."""

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import GinIndex
from django.contrib.postgres.search import SearchVector
from django.db import models

from rlviewer.runs.models import Prompt, Rollout


class RolloutText(models.Model):
    """The searchable text of one rollout. A view of the chunk's bytes; dropping the table loses nothing."""

    rollout = models.OneToOneField(Rollout, on_delete=models.CASCADE, primary_key=True)
    completion = models.TextField()  # escaped by lib.text; its first 200,000 characters

    class Meta:
        indexes = [
            # An expression, so that the words are stored once, in the index.
            GinIndex(
                SearchVector("completion", config="simple"),
                name="rollout_text_words",
                # KB. The default list of unmerged words kept the index twice as big at 2,000 rollouts; filling took 4 to 22 % longer.
                gin_pending_list_limit=1024,
            ),
        ]


class PromptText(models.Model):
    """The searchable text of one prompt, shared by its rollouts; indexed with the first step that has it."""

    prompt = models.OneToOneField(Prompt, on_delete=models.CASCADE, primary_key=True)
    text = models.TextField()  # escaped by lib.text; its first 200,000 characters

    class Meta:
        indexes = [GinIndex(SearchVector("text", config="simple"), name="prompt_text_words")]


class IndexedStep(models.Model):
    """A step whose texts are indexed; the lag is what is stored and not here."""

    step = models.OneToOneField("runs.Step", on_delete=models.CASCADE, primary_key=True)
    # Behind the step's own count when a later batch added to it.
    rollout_count = models.IntegerField(default=0)
    indexed_at = models.DateTimeField(auto_now=True)


class ListColumns(models.Model):
    """The columns that a person chose for lists of rollouts; no row: those that everybody starts with."""

    user = models.OneToOneField(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, primary_key=True, related_name="+")
    names = ArrayField(models.CharField(max_length=80))
