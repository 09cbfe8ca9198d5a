"""Which columns a person sees in lists of rollouts."""

from collections.abc import Sequence

from rlviewer.accounts.models import User
from rlviewer.search.fields import COLUMNS, SHOWN
from rlviewer.search.models import ListColumns


def chosen_columns(user: User, *, in_project: bool) -> list[str]:
    """In the table's order. A list over several runs always says whose a rollout is. One query."""
    kept = ListColumns.objects.filter(user=user).values_list("names", flat=True).first()
    wanted = set(SHOWN if kept is None else kept) | ({"run"} if in_project else set())
    return [name for name in COLUMNS if name in wanted]


def save_columns(user: User, names: Sequence[str]) -> None:
    """Keep these columns for the person; none brings back what everybody starts with."""
    known = [name for name in COLUMNS if name in names]
    if known:
        ListColumns.objects.update_or_create(user=user, defaults={"names": known})
    else:
        ListColumns.objects.filter(user=user).delete()
