"""What people say of rollouts: a thumb, one of the project's labels, a note; on the whole rollout or on a range of its tokens."""

from django.db import models
from django.db.models import F, Q

from rlviewer.accounts.models import Project, User
from rlviewer.runs.models import Rollout

# What a project's members choose from until they change it.
DEFAULT_NAMES = ("good", "hack", "checker bug")


class Thumb(models.IntegerChoices):
    UP = 1, "up"
    DOWN = -1, "down"


class LabelName(models.Model):
    """One label of a project's vocabulary. A project has none stored before its members first label or change something."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="label_names")
    name = models.CharField(max_length=40)  # lower case, so that filters need no care
    is_archived = models.BooleanField(default=False)  # no longer offered; what was labelled keeps it
    made_by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    made_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["project", "name"], name="label_name_unique_in_project")]

    def __str__(self) -> str:
        return self.name


class Label(models.Model):
    """One thing that one person says of a rollout: a thumb, or a label, or only a note."""

    rollout = models.ForeignKey(Rollout, on_delete=models.CASCADE, related_name="labels")
    author = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+")
    # First token, and one past the last; null for the whole rollout.
    token_start = models.IntegerField(null=True)
    token_end = models.IntegerField(null=True)
    thumb = models.SmallIntegerField(null=True, choices=Thumb.choices)
    name = models.ForeignKey(LabelName, null=True, on_delete=models.PROTECT, related_name="labels")
    note = models.TextField(blank=True)
    made_at = models.DateTimeField(auto_now_add=True)
    edited_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(token_start=None, token_end=None) | Q(token_start__gte=0, token_end__gt=F("token_start")),
                name="label_range_in_order",
            ),
            models.CheckConstraint(
                condition=(Q(thumb=None) | Q(name=None))
                & (Q(thumb__isnull=False) | Q(name__isnull=False) | ~Q(note="")),
                name="label_says_one_thing",
            ),
            models.CheckConstraint(condition=Q(thumb=None) | Q(thumb__in=Thumb.values), name="label_thumb_known"),
            # Saying it twice says it once; a person has one thumb for a rollout, and one for each range.
            models.UniqueConstraint(
                fields=["rollout", "author", "token_start", "token_end", "name"],
                condition=Q(thumb__isnull=False) | Q(name__isnull=False),
                nulls_distinct=False,
                name="label_said_once",
            ),
        ]

    @property
    def last_token(self) -> int | None:
        return None if self.token_end is None else self.token_end - 1

    @property
    def words(self) -> str:
        """`thumb up`, `hack`, or `note`."""
        if self.thumb is not None:
            return f"thumb {Thumb(self.thumb).label}"
        return self.name.name if self.name else "note"
