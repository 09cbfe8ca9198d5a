"""Hits of every saved search in every step, counted by workers after the step's texts are indexed. Light to import."""

import logging
import time
from collections.abc import Sequence

from django.db import OperationalError, connection, transaction
from django.db.models import Count, Q

from rlviewer.outbox.services import announce, announce_run
from rlviewer.runs.models import Run
from rlviewer.search.browse import Scope, Search, time_limit
from rlviewer.search.language import FilterError
from rlviewer.watch.models import SavedSearch, SearchOnset

log = logging.getLogger(__name__)

STEPS_AT_ONCE = 50
ROLLOUTS_AT_ONCE = 10_000
STATEMENT_MS = 5_000

# Current steps whose texts are indexed and that this version of the query has not counted whole.
WAITING = """
    FROM runs_run r
    JOIN runs_step s ON s.run_id = r.id AND s.is_current AND s.rollout_count > 0
    JOIN search_indexedstep i ON i.step_id = s.id AND i.rollout_count >= s.rollout_count
    LEFT JOIN watch_searchhits h ON h.step_id = s.id AND h.search_id = %(search)s
        AND h.query_version = %(version)s AND h.scanned = s.rollout_count
    WHERE r.project_id = %(project)s AND h.step_id IS NULL
"""
# Where three successive training steps lie over the limit; a step that is not counted lies over nothing.
ONSETS = """
    WITH rates AS (
        SELECT s.run_id, s.index, h.hits, h.scanned, coalesce(h.hits > %(limit)s * h.scanned, false) AS is_over
        FROM runs_run r
        JOIN runs_step s ON s.run_id = r.id AND s.split = 'train' AND s.is_current
        LEFT JOIN watch_searchhits h ON h.step_id = s.id AND h.search_id = %(search)s AND h.query_version = %(version)s
        WHERE r.project_id = %(project)s AND (%(run)s::bigint IS NULL OR r.id = %(run)s)
    ), threes AS (
        SELECT run_id, index, bool_and(is_over) OVER three AND count(*) OVER three = 3 AS begins,
            sum(hits) OVER three AS hits, sum(scanned) OVER three AS scanned
        FROM rates WINDOW three AS (PARTITION BY run_id ORDER BY index ROWS BETWEEN CURRENT ROW AND 2 FOLLOWING)
    )
    INSERT INTO watch_searchonset (search_id, run_id, step, rate, limit_rate, found_at)
    SELECT DISTINCT ON (run_id) %(search)s, run_id, index, hits::float8 / scanned, %(limit)s, now()
    FROM threes WHERE begins ORDER BY run_id, index
    ON CONFLICT (search_id, run_id) DO NOTHING RETURNING id
"""

# What was there when nothing was left to count; while it is the same there is no need to look.
_settled: tuple[object, ...] | None = None


def has_news() -> bool:
    """Whether there are searches, and anything changed since nothing was left to count. One query, cheap enough for every sweep."""
    state = _state()
    return state[0] is not None and state != _settled


def _state() -> tuple[object, ...]:
    with connection.cursor() as cursor:
        cursor.execute("""
            SELECT (SELECT string_agg(id || '.' || query_version, ' ' ORDER BY id) FROM watch_savedsearch WHERE NOT is_archived),
                count(*), sum(rollout_count), max(indexed_at) FROM search_indexedstep
        """)
        return tuple(cursor.fetchone())


def count_pending(*, seconds: float = 2.0) -> int:
    """Count what waits, some steps of one run at a time, the newest run first; returns how many counts were written.

    Nothing is begun after `seconds`; what is begun takes at most two times STATEMENT_MS more.
    """
    global _settled
    state, deadline = _state(), time.monotonic() + seconds
    # In any order, so that one whose texts take long does not always come first.
    waiting = list(SavedSearch.objects.filter(is_archived=False).order_by("?"))
    done, projects, is_whole = 0, set(), True
    while waiting and time.monotonic() < deadline:
        search = waiting.pop(0)
        counted = _count_some(search)
        if counted:
            done += counted
            projects.add(search.project_id)
            waiting.append(search)
        is_whole = is_whole and counted is not None
    if not waiting and is_whole:
        _settled = state
    for project in sorted(projects):
        with transaction.atomic():
            announce(f"project:{project}", "searches-counted")
    return done


def _count_some(search: SavedSearch) -> int | None:
    """Count the oldest waiting steps of one run; 0 when none waits, None when another worker is at it."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(hashtext('watch_searchhits'), %s)", [search.pk % 2**31])
        if not cursor.fetchone()[0]:
            return None
        cursor.execute(
            f"SELECT r.id, s.id, s.rollout_count {WAITING} ORDER BY r.id DESC, s.id LIMIT {STEPS_AT_ONCE}",
            _named(search),
        )
        rows = cursor.fetchall()
        steps: dict[int, int] = {}
        for run_id, step_id, rollouts in rows:
            if run_id == rows[0][0] and (not steps or sum(steps.values()) + rollouts <= ROLLOUTS_AT_ONCE):
                steps[step_id] = rollouts
        if not steps:
            return 0
        try:
            hits = hits_by_step(search, rows[0][0], list(steps))
        except FilterError as error:
            # The language has changed since it was saved; its page says so.
            log.warning("search %d can no longer be read: %s", search.pk, error)
            return 0
        cursor.execute(
            "INSERT INTO watch_searchhits (search_id, step_id, hits, scanned, query_version)"
            " SELECT %s, step, hits, scanned, %s FROM unnest(%s::bigint[], %s::int[], %s::int[]) counted(step, hits, scanned)"
            " ON CONFLICT (search_id, step_id) DO UPDATE SET hits = excluded.hits, scanned = excluded.scanned,"
            " query_version = excluded.query_version",
            [search.pk, search.query_version, list(hits), list(hits.values()), [steps[step] for step in hits]],
        )
        find_onsets(search, rows[0][0])
    return len(hits)


def hits_by_step(search: SavedSearch, run_id: int, steps: Sequence[int]) -> dict[int, int | None]:
    """Hits in each of the steps of a run; only of the first when all take too long, None when that one alone does.

    Raises:
        FilterError: the query can no longer be read.
    """
    found = Search(Scope(None, Run.objects.get(pk=run_id), every_attempt=True), search.query)
    # By their group, through whose index the rollouts of a step are found.
    rows = found.rows().filter(found.conditions.scanned or Q(), group__step__in=steps)
    try:
        with time_limit(STATEMENT_MS):
            counts = dict(rows.order_by().values_list("group__step").annotate(hits=Count("pk")))
    except OperationalError as error:
        if "statement timeout" not in str(error):
            raise
        return {steps[0]: None} if len(steps) == 1 else hits_by_step(search, run_id, steps[:1])
    return {step: counts.get(step, 0) for step in steps}


def find_onsets(search: SavedSearch, run_id: int | None = None) -> None:
    """Write where the search's rate began to lie over its limit, once for a run; of one run or of all of the project."""
    if search.limit_rate is None:
        return
    with connection.cursor() as cursor:
        cursor.execute(ONSETS, _named(search) | {"limit": search.limit_rate, "run": run_id})
        found = [row[0] for row in cursor.fetchall()]
    for onset in SearchOnset.objects.filter(pk__in=found).order_by("run_id"):
        news = {"search": search.pk, "name": search.name, "step": onset.step}
        announce_run(onset.run_id, search.project_id, "search-onset", **news)


def waiting_steps(search: SavedSearch) -> int:
    """Steps that are indexed and not counted. One query."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT count(*) {WAITING}", _named(search))
        return cursor.fetchone()[0]


def _named(search: SavedSearch) -> dict[str, int]:
    return {"search": search.pk, "version": search.query_version, "project": search.project_id}
