"""What became of sampled tokens: by the policy version that sampled them, by their age, and why some never counted."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rlviewer.runs.models import Run
from rlviewer.signal.names import SPLIT_PLACE
from rlviewer.signal.queries.dead_groups import browse
from rlviewer.signal.steps import LAST, StepRange

LISTED = 20
COUNTS = """count(*), sum(v.rollouts)::bigint, sum(v.mixing)::bigint, sum(v.tokens)::bigint, sum(v.kept)::bigint,
    sum(v.clipped)::bigint, sum(v.dropped)::bigint, min(v.spread[1]), max(v.spread[3])"""


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """What became of the tokens of one policy version, or of one age in steps."""

    href: str
    value: int
    steps: int
    rollouts: int
    mixing: int
    tokens: int
    kept: int
    clipped: int
    dropped: int
    ratio_low: float | None  # the lowest 5 % and the highest 95 % of a step
    ratio_high: float | None

    @property
    def kept_share(self) -> float | None:
        return self.kept / self.tokens if self.tokens else None


@dataclass(frozen=True, slots=True)
class Uncounted:
    reason: str
    rollouts: int
    href: str


def by_age(run: Run, steps: StepRange) -> list[LedgerRow]:
    """Steps between the weights that sampled and those that were trained, youngest first; at most LISTED. One query."""
    found = steps.rows(
        run,
        "SELECT s.index - v.policy_version, COUNTS FROM runs_step s JOIN signal_versionsignal v ON v.step_id = s.id"
        " WHERE IN_RANGE GROUP BY 1 ORDER BY 1 LIMIT %(limit)s".replace("COUNTS", COUNTS),
        limit=LISTED,
    )
    return _rows(run, steps, "stale", found)


def by_version(run: Run, steps: StepRange, below: int | None) -> list[LedgerRow]:
    """Versions below `below`, newest first; one more than LISTED tells that there are older ones. One query."""
    found = steps.rows(
        run,
        "SELECT v.policy_version, COUNTS FROM runs_step s JOIN signal_versionsignal v ON v.step_id = s.id"
        " WHERE IN_RANGE AND v.policy_version < %(below)s GROUP BY 1 ORDER BY 1 DESC LIMIT %(limit)s".replace(
            "COUNTS", COUNTS
        ),
        below=LAST if below is None else below,
        limit=LISTED + 1,
    )
    return _rows(run, steps, "version", found)


def _rows(run: Run, steps: StepRange, field: str, found: Sequence[Any]) -> list[LedgerRow]:
    return [LedgerRow(browse(run, steps.term, f"{field}:{row[0]}"), *row) for row in found]


def uncounted(run: Run, steps: StepRange) -> list[Uncounted]:
    """Rollouts of which no token entered the loss, by reason. One query."""
    found = steps.rows(
        run,
        "SELECT p.name, sum(p.rollouts)::bigint FROM runs_step s JOIN signal_steppart p ON p.step_id = s.id"
        " AND p.split = %(part)s WHERE IN_RANGE GROUP BY 1 ORDER BY 2 DESC, 1",
        part=SPLIT_PLACE["uncounted"],
    )
    return [Uncounted(reason, rollouts, browse(run, steps.term, "kept:no")) for reason, rollouts in found]
