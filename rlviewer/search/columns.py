"""Which columns a person sees in lists of rollouts."""

from collections.abc import Sequence

from rlviewer.accounts.models import User
from rlviewer.runs.models import RewardPart
from rlviewer.search.browse import Scope
from rlviewer.search.fields import COLUMNS, FIELDS, PART_PREFIX, SHOWN, TRANSFORM, Field, part_field
from rlviewer.search.models import ListColumns

NEWEST = 500
MOST_PARTS = 40


def chosen_columns(user: User, scope: Scope) -> list[Field]:
    """In the table's order. A list over several runs always says whose a rollout is. One query, and one where a person chose parts
    of the reward: those that occur are shown.
    """
    kept = ListColumns.objects.filter(user=user).values_list("names", flat=True).first()
    wanted = set(SHOWN if kept is None else kept) | (set() if scope.run else {"run"})
    has_parts = any(name.startswith(PART_PREFIX) for name in wanted)
    return [field for field in offered_columns(scope if has_parts else None) if field.name in wanted]


def offered_columns(scope: Scope | None) -> list[Field]:
    """All that a list can show, the parts of the reward that this scope has behind the reward."""
    fields = [*(FIELDS[name] for name in COLUMNS), TRANSFORM]
    behind = next(place for place, field in enumerate(fields) if field.name == "reward") + 1
    parts = [part_field(name) for name in part_names(scope)] if scope else []
    return [*fields[:behind], *parts, *fields[behind:]]


def part_names(scope: Scope) -> list[str]:
    """Names of the parts of the newest rollouts' rewards. One query."""
    newest = scope.rollouts().order_by("-pk").values("pk")[:NEWEST]
    named = RewardPart.objects.filter(rollout__in=newest).exclude(name="").values_list("name", flat=True).distinct()
    return sorted(named)[:MOST_PARTS]


def save_columns(user: User, names: Sequence[str]) -> None:
    """Keep these columns for the person; none brings back what everybody starts with."""
    known = [name for name in (*COLUMNS, TRANSFORM.name) if name in names]
    known += [name for name in names if name.startswith(PART_PREFIX) and len(name) <= 80][:MOST_PARTS]
    if known:
        ListColumns.objects.update_or_create(user=user, defaults={"names": known})
    else:
        ListColumns.objects.filter(user=user).delete()
