"""Saved searches: what a team watches for in every run, how often it occurs step by step, and since when."""

from django.db import models
from django.db.models import Q
from django.db.models.functions import Lower

from rlviewer.accounts.models import Project, User
from rlviewer.review.models import LabelName
from rlviewer.runs.models import Run, Step


class SavedSearch(models.Model):
    """A filter with a name. Everybody in the project sees it, members change it."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="searches")
    name = models.CharField(max_length=100)
    about = models.CharField(max_length=300, blank=True)  # one sentence: what its hits may mean
    query = models.CharField(max_length=900)  # as search.language reads it
    query_version = models.IntegerField(default=1)  # raised by every change of the query; counts name theirs
    limit_rate = models.FloatField(null=True)  # share of a step's rollouts, 0 to 1; null: no alarm
    # The label that says "this hit is what we look for"; null: a thumb up.
    true_label = models.ForeignKey(LabelName, null=True, on_delete=models.PROTECT, related_name="+")
    made_by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    made_at = models.DateTimeField(auto_now_add=True)
    is_archived = models.BooleanField(default=False)  # no longer counted or listed

    class Meta:
        constraints = [
            models.UniqueConstraint(
                "project", Lower("name"), condition=Q(is_archived=False), name="search_name_unique_in_project"
            ),
            models.CheckConstraint(
                condition=Q(limit_rate=None) | Q(limit_rate__gte=0, limit_rate__lt=1), name="search_limit_is_share"
            ),
        ]

    def __str__(self) -> str:
        return self.name


class SearchHits(models.Model):
    """How many rollouts of one step a saved search finds; counted by a worker."""

    pk = models.CompositePrimaryKey("search_id", "step_id")
    search = models.ForeignKey(SavedSearch, on_delete=models.CASCADE, related_name="counts", db_index=False)
    step = models.ForeignKey(Step, on_delete=models.CASCADE, related_name="+")  # index: deleting a run
    hits = models.IntegerField(null=True)  # null: it took too long
    scanned = models.IntegerField()  # rollouts of the step; it is counted again when more arrive
    query_version = models.IntegerField()


class SearchOnset(models.Model):
    """The first training step of a run from which three successive steps lay over the search's limit."""

    search = models.ForeignKey(SavedSearch, on_delete=models.CASCADE, related_name="onsets")
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="+")
    step = models.IntegerField()  # its index
    rate = models.FloatField()  # of the three steps together
    limit_rate = models.FloatField()
    found_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        # Written once for a run, whoever counts.
        constraints = [models.UniqueConstraint(fields=["search", "run"], name="onset_once_per_run")]
