"""Words of completions: indexed after they are stored, found, with a known lag."""

from dataclasses import replace

import pytest
from django.db import connection

from rlviewer.accounts.models import Project
from rlviewer.ingest.services import store_batch
from rlviewer.runs.models import Rollout, Run
from rlviewer.search.browse import Scope, Search, Sort
from rlviewer.search.models import IndexedStep, RolloutText
from rlviewer.search.services import index_pending
from rlviewer.search.totals import Counted, count
from tests.factories import fill_run, make_batch, make_run


@pytest.fixture
def run(project: Project) -> Run:
    return make_run(project)


def store(run: Run, *texts: bytes, step: int = 0) -> None:
    store_batch(make_batch(run, step=step, groups=1, group_size=len(texts), completion=list(texts)), source="test")


def found(run: Run, text: str) -> list[Rollout]:
    ids = Search(Scope(run.project, run), text).find(Sort.from_text("")).ids
    return list(Rollout.objects.filter(pk__in=ids).order_by("number"))


def numbers(run: Run, text: str) -> list[int]:
    return [rollout.number for rollout in found(run, text)]


def unindexed(run: Run) -> int:
    return count(Search(Scope(run.project, run), "cat"), Counted()).unindexed


def test_completions_are_found_by_their_words(run: Run) -> None:
    store(run, b"the cat sat", b"the dog sat down", b"a cat and a dog", b"nothing")
    assert numbers(run, "cat") == []
    assert index_pending() == 1
    assert numbers(run, "cat") == [0, 2]
    assert numbers(run, "CAT dog") == [2]
    assert numbers(run, '"dog sat"') == [1]
    assert numbers(run, "sat -dog") == [0]
    assert numbers(run, "cat or nothing") == [0, 2, 3]
    assert numbers(run, "elephant") == []


def test_only_the_runs_own_rollouts_are_found(run: Run) -> None:
    other = make_run(run.project, "other")
    store(run, b"cat")
    store(other, b"a cat")
    index_pending()
    for one in (run, other):
        (rollout,) = found(one, "cat")
        assert rollout.run_id == one.pk


def test_the_lag_is_what_is_stored_and_not_indexed(run: Run) -> None:
    assert unindexed(run) == 0
    fill_run(run, 3)
    assert unindexed(run) == 80
    assert index_pending(limit=2) == 2
    assert unindexed(run) == 48
    assert index_pending() == 3
    assert index_pending() == 0
    assert (unindexed(run), RolloutText.objects.count(), IndexedStep.objects.count()) == (0, 80, 5)


def test_a_step_that_grew_is_indexed_again(run: Run) -> None:
    store(run, b"first")
    index_pending()
    batch = make_batch(run, groups=1, group_size=2, seed=1, completion=[b"first", b"second"])
    store_batch(batch, source="test")  # another prompt: refused
    assert index_pending() == 0
    batch = make_batch(run, groups=1, group_size=2, completion=[b"again", b"second"])
    store_batch(replace(batch, header=replace(batch.header, batch_id="0" * 31 + "1")), source="test")
    assert unindexed(run) == 1
    assert index_pending() == 1
    assert numbers(run, "second") == [1]
    assert numbers(run, "first") == [0]


def test_incident_I4_5_mb_of_distinct_words_are_indexed_and_found_by_their_first_part(run: Run) -> None:
    text = " ".join(f"word{n}" for n in range(550_000)).encode()
    # The worst for its size: hyphenated words of rare characters, indexed whole and in parts.
    rare = " ".join(f"{chr(0x20000 + n)}-{chr(0x30000 + n)}" for n in range(50_000))
    store(run, text, rare.encode(), b"small")
    assert index_pending() == 1
    assert numbers(run, "word1") == numbers(run, "word15000") == [0]
    assert numbers(run, rare.split()[0]) == [1]
    assert numbers(run, "small") == [2]


def test_incident_I1_odd_bytes_are_searchable(run: Run) -> None:
    store(run, b"a\x00b end", b"plain", b"\xff\xfe end", b"\xed\xa0\xbd")
    assert index_pending() == 1
    assert numbers(run, "end") == [0, 2]
    assert numbers(run, "a\x00b") == [0]
    assert numbers(run, "plain") == [1]
    assert numbers(run, "\ud83d") == numbers(run, "\ud83d")  # a lone surrogate in the question is no error


def test_the_planner_uses_the_index(run: Run) -> None:
    with connection.cursor() as cursor:
        store(run, *[b"cat %d" % n for n in range(60)])
        index_pending()
        cursor.execute(
            "INSERT INTO runs_rollout SELECT (r).* FROM (SELECT jsonb_populate_record(r, jsonb_build_object('id', r.id + 1000 * n,"
            " 'number', r.number + 60 * n)) AS r FROM runs_rollout r, generate_series(1, 100) n) x"
        )
        cursor.execute(
            "INSERT INTO search_rollouttext SELECT id, 'word' || id FROM runs_rollout ON CONFLICT DO NOTHING"
        )
        cursor.execute("ANALYZE search_rollouttext, runs_rollout")
    assert Rollout.objects.count() == 6060
    for text in ("word61000", "word6100*", "word61000 or word61001"):
        assert "rollout_text_words" in Search(Scope(run.project, run), text).rows().explain()


def test_texts_stay_in_their_rows_and_payloads_outside(db: None) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT attname, attstorage::text FROM pg_attribute WHERE (attrelid, attname) IN"
            " (('search_rollouttext'::regclass, 'completion'), ('runs_tokenchunk'::regclass, 'payload'))"
        )
        # m: compressed, moved out last; e: moved out as it is, since it comes compressed
        assert dict(cursor.fetchall()) == {"completion": "m", "payload": "e"}
