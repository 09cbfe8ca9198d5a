"""The visits that runs paid to one prompt, and what turned at them."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from rlviewer.runs.models import Group

IN_A_ROW = 3
HALF = 0.5


@dataclass(frozen=True, slots=True)
class Visit:
    """What a run made of the prompt at one step; several groups of a step are one visit."""

    run_id: int
    split: str
    step: int
    groups: Sequence[Group]
    success: float | None  # share of judged rollouts that are right; None: none was judged

    @property
    def size(self) -> int:
        return sum(group.size_got for group in self.groups)

    @property
    def reward_mean(self) -> float | None:
        known = [group.reward_mean for group in self.groups if group.reward_mean is not None]
        return fmean(known) if known else None

    @property
    def group(self) -> Group:
        return self.groups[0]


@dataclass(frozen=True, slots=True)
class Milestones:
    """Visits at which something turned; None where it never did."""

    solved: Visit | None
    stable: Visit | None
    forgotten: Visit | None


def visits_of(groups: Sequence[Group]) -> list[Visit]:
    """The groups by run, split and step, in this order; a visit's success counts each of its groups by its size."""
    together: dict[tuple[int, str, int], list[Group]] = defaultdict(list)
    for group in sorted(groups, key=lambda group: group.pk):
        together[group.run_id, group.step.split, group.step.index].append(group)
    visits = []
    for (run_id, split, step), own in sorted(together.items()):
        judged = [(group.success_share, group.size_got) for group in own if group.success_share is not None]
        weight = sum(size for _, size in judged)
        success = sum(share * size for share, size in judged) / weight if weight else None
        visits.append(Visit(run_id, split, step, own, success))
    return visits


def milestones(visits: Sequence[Visit]) -> Milestones:
    """Of one run's visits in order; those where nothing was judged do not count.

    Solved: the first with a right rollout. Stable: the first of three in a row of whose judged rollouts at least half are right.
    Forgotten: the first after it was solved without a right one.
    """
    judged = [(visit, visit.success) for visit in visits if visit.success is not None]
    solved = next((place for place, (_, success) in enumerate(judged) if success > 0), None)
    stable = next(
        (
            visit
            for place, (visit, _) in enumerate(judged)
            if len(judged) - place >= IN_A_ROW
            and all(success >= HALF for _, success in judged[place : place + IN_A_ROW])
        ),
        None,
    )
    later = [] if solved is None else judged[solved + 1 :]
    forgotten = next((visit for visit, success in later if success == 0), None)
    return Milestones(None if solved is None else judged[solved][0], stable, forgotten)
