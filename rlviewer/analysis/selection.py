"""Which rollouts of a filter are looked at together: all of them, or a sample that is the same for everybody."""

from dataclasses import dataclass

from rlviewer.search.browse import Search, Sort

LIMIT = 2000
PAGE_SECONDS, JOB_SECONDS = 3.0, 120.0
# By a hash of the id with a fixed seed: a run that grows changes the sample by and by, a reload not at all.
SAMPLED = Sort.from_text("random:0")


@dataclass(frozen=True, slots=True)
class Selection:
    """`ids` rise. `scanned`: how many texts were read where there was no time for all, else none."""

    ids: list[int]
    is_sample: bool = False
    scanned: int | None = None


def select(search: Search, *, seconds: float = PAGE_SECONDS) -> Selection:
    """At most LIMIT rollouts of a filter."""
    found = search.find(SAMPLED, limit=LIMIT, seconds=seconds)
    return Selection(sorted(found.ids), found.has_more, found.scanned if found.resume else None)
