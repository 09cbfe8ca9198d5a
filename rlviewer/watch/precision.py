"""How many of a search's hits are what it looks for, by what people said of them; unknown until somebody has."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from django.db import OperationalError
from django.db.models import Q

from rlviewer.lib.intervals import wilson
from rlviewer.review.models import Label, Thumb
from rlviewer.search.browse import Scope, Search, time_limit
from rlviewer.search.language import FilterError
from rlviewer.watch.models import SavedSearch

STATEMENT_MS = 2_000


@dataclass(frozen=True, slots=True)
class Precision:
    """An estimate from the hits that people judged; they are a fair sample only if they were drawn by chance."""

    true: int = 0
    judged: int = 0
    disputed: int = 0  # as many say yes as no; left out of both
    trouble: str = ""  # why it could not be worked out

    @property
    def rate(self) -> float | None:
        return self.true / self.judged if self.judged else None

    @property
    def interval(self) -> tuple[float, float] | None:
        return wilson(self.true, self.judged)


def precision(search: SavedSearch, scope: Scope, labelled: Sequence[int]) -> Precision:
    """Over all runs of the scope, of which `labelled` are the rollouts that somebody labelled. At most six queries; none without."""
    if not labelled:
        return Precision()
    try:
        found = Search(scope, search.query)
        with time_limit(STATEMENT_MS):
            rows = found.rows().filter(found.conditions.scanned or Q(), pk__in=labelled)
            hits = list(rows.values_list("pk", flat=True))
    except FilterError as error:
        return Precision(trouble=f"the filter can no longer be read: {error}")
    except OperationalError as error:
        if "statement timeout" not in str(error):
            raise
        return Precision(trouble=f"it took longer than {STATEMENT_MS // 1000} s")
    return judge(search, list(Label.objects.filter(rollout__in=hits)) if hits else [])


def judge(search: SavedSearch, labels: Sequence[Label]) -> Precision:
    """One voice a person and rollout: a thumb up or down; or, of those who gave it labels, whether the search's is among them."""
    voices: dict[int, dict[int, bool]] = defaultdict(dict)
    for label in labels:
        said, is_true = label.thumb, label.thumb == Thumb.UP
        if search.true_label_id is not None:
            said, is_true = label.name_id, label.name_id == search.true_label_id
        if said is not None:
            before = voices[label.rollout_id].get(label.author_id, False)
            voices[label.rollout_id][label.author_id] = before or is_true
    balance = [sum(1 if yes else -1 for yes in people.values()) for people in voices.values()]
    judged = [votes for votes in balance if votes]
    return Precision(sum(votes > 0 for votes in judged), len(judged), len(balance) - len(judged))
