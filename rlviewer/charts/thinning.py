"""Fewer points without losing what matters: a spike of one step stays, a gap stays."""

import math
from collections.abc import Sequence

LIMIT = 2000


def thin(steps: Sequence[int], values: Sequence[float], *, limit: int = LIMIT) -> tuple[list[int], list[float]]:
    """At most about `limit` points: of each bucket its first, smallest, largest, last and first non-finite point.

    A series no longer than `limit` comes back as it is. The result depends on the input alone.
    """
    count = len(steps)
    if count <= limit:
        return list(steps), list(values)
    buckets = max(1, limit // 4)
    keep: list[int] = []
    for bucket in range(buckets):
        first, last = bucket * count // buckets, (bucket + 1) * count // buckets - 1
        chosen = {first, last}
        finite = [i for i in range(first, last + 1) if math.isfinite(values[i])]
        if finite:
            chosen |= {min(finite, key=values.__getitem__), max(finite, key=values.__getitem__)}
        if len(finite) <= last - first:
            chosen.add(next(i for i in range(first, last + 1) if not math.isfinite(values[i])))
        keep += sorted(chosen)
    return [steps[i] for i in keep], [values[i] for i in keep]
