"""Metric series, kept as arrays of up to `POINTS` points."""

from collections import defaultdict

from django.db.backends.utils import CursorWrapper

POINTS = 256


def append_metrics(
    cursor: CursorWrapper, run_id: int, attempt_id: int, step: int, metrics: list[tuple[str, float]]
) -> None:
    """Append one point to each named series, in one statement. Needs the run's row lock."""
    values: dict[str, list[float]] = defaultdict(list)
    for name, value in metrics:
        values[name].append(value)
    # A name that comes twice in one batch is two points; one after another, since a statement updates a row once.
    for turn in range(max(map(len, values.values()), default=0)):
        names = sorted(name for name in values if len(values[name]) > turn)
        cursor.execute(
            """
            INSERT INTO runs_metricchunk AS m (run_id, attempt_id, name, part, steps, values)
            SELECT %(run)s, %(attempt)s, new.name,
                   CASE WHEN last.part IS NULL THEN 0 WHEN last.length >= %(points)s THEN last.part + 1 ELSE last.part END,
                   ARRAY[%(step)s], ARRAY[new.value]
            FROM unnest(%(names)s::text[], %(values)s::float8[]) AS new(name, value)
            LEFT JOIN LATERAL (
                SELECT part, cardinality(c.steps) AS length FROM runs_metricchunk c
                WHERE c.run_id = %(run)s AND c.name = new.name AND c.attempt_id = %(attempt)s
                ORDER BY part DESC LIMIT 1
            ) AS last ON true
            ON CONFLICT (run_id, name, attempt_id, part)
            DO UPDATE SET steps = m.steps || excluded.steps, values = m.values || excluded.values
            """,
            {
                "run": run_id,
                "attempt": attempt_id,
                "step": step,
                "points": POINTS,
                "names": names,
                "values": [values[name][turn] for name in names],
            },
        )
