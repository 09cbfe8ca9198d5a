"""Exports and the API give exactly what the list shows, in its order."""

import base64
import csv
import io
import json
import math
from dataclasses import replace
from typing import Any

import pyarrow.parquet as pq
import pytest
from django.test import Client
from django.urls import reverse

from rlviewer.accounts.models import ApiToken, Project, User
from rlviewer.ingest.services import store_batch
from rlviewer.review.models import Thumb
from rlviewer.review.services import Said, add_label
from rlviewer.runs.models import Rollout, Run, Vocabulary
from rlviewer.search import browse, exports
from rlviewer.search.browse import Scope, Search, Sort
from rlviewer.search.fields import COLUMNS, FIELDS
from rlviewer.search.services import index_pending
from tests.factories import fill_run, make_batch, make_run
from training import vocabulary
from training.records import TOKEN_COLUMNS

# The test client reads what a server would stream.
pytestmark = pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume")

ODD = b"\xff\x00 odd"


@pytest.fixture
def run(project: Project, alice: User, client: Client, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(exports, "ROWS_A_BATCH", 7)
    monkeypatch.setattr(browse, "IDS_AT_ONCE", 30)
    run = make_run(project)
    fill_run(run, steps=3)
    index_pending()
    client.force_login(alice)
    return run


def ids(run: Run, text: str, sort: str = "") -> list[int]:
    return Search(Scope(run.project, run), text).find(Sort.from_text(sort), limit=1000, seconds=math.inf).ids


def download(client: Client, run: Run, name: str, **query: str) -> bytes:
    answer = client.get(reverse("run-rollouts-export", args=[run.pk, name]), query)
    assert answer.status_code == 200 and "attachment" in answer["Content-Disposition"]
    return b"".join(answer)


def lines(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in data.decode().splitlines()]


@pytest.mark.parametrize(
    ("text", "sort"),
    [
        ("", ""),
        ("correct:yes split:train", "-reward"),
        ("'= 1'", "length"),
        ("carry step:1", "answer"),
        ("reward:nan", "random:5"),
    ],
)
def test_every_format_holds_what_the_list_shows_in_its_order(client: Client, run: Run, text: str, sort: str) -> None:
    wanted = ids(run, text, sort)
    assert wanted
    asked = {"filter": text, "sort": sort}
    assert [row["id"] for row in lines(download(client, run, "jsonl", **asked))] == wanted
    sheet = csv.DictReader(io.StringIO(download(client, run, "csv", **asked).decode(), newline=""))
    assert [int(row["id"]) for row in sheet] == wanted
    assert pq.read_table(io.BytesIO(download(client, run, "parquet", **asked)))["id"].to_pylist() == wanted
    assert [row["rollout"] for row in lines(download(client, run, "sft", **asked))] == wanted


def test_values_and_texts_are_exact(client: Client, run: Run) -> None:
    store_batch(make_batch(run, step=9, groups=1, group_size=2, completion=[ODD, b"\xc3\xa9\r\n"]), source="test")
    table = pq.read_table(io.BytesIO(download(client, run, "parquet", filter="step:9", sort="id"))).to_pylist()
    assert [row["completion"] for row in table] == [ODD, b"\xc3\xa9\r\n"]
    first = Rollout.objects.select_related("group__prompt", "step").get(pk=table[0]["id"])
    for name in set(COLUMNS) - {"stop"}:
        stored = first
        for part in FIELDS[name].path.split("__"):
            stored = getattr(stored, part)
        assert repr(table[0][name]) == repr(stored)
    assert table[0]["stop"] == "stop" and table[0]["prompt_text"] == bytes(first.group.prompt.text)
    odd, plain = lines(download(client, run, "jsonl", filter="step:9", sort="id"))
    assert (
        base64.b64decode(odd["completion_base64"]) == ODD
        and plain["completion"] == "é\r\n"
        and "completion_base64" not in plain
    )
    assert plain["reward"] == "NaN"  # the last of a batch


def test_every_table_says_what_people_said(client: Client, run: Run, alice: User) -> None:
    first, second = ids(run, "", "id")[:2]
    add_label(alice, Rollout.objects.get(pk=first), Said(thumb=Thumb.UP, note="=well done"))
    found = download(client, run, "csv", filter=f"id:{first},{second}", sort="id").decode()
    (row, plain) = csv.DictReader(io.StringIO(found, newline=""))
    (said,) = json.loads(row["labels"])
    assert (said["said"], said["note"], said["by"]) == ("thumb up", "=well done", "alice") and plain["labels"] == ""
    table = pq.read_table(io.BytesIO(download(client, run, "parquet", filter=f"id:{first},{second}", sort="id")))
    assert table["labels"].to_pylist() == [row["labels"], None]


def test_incident_i10_no_text_of_a_sheet_is_a_formula(client: Client, run: Run) -> None:
    texts = [b"=cmd|' /C calc'!A0", b"+1", b"@x", b"-0.5", b"\tx", b"\rx"]
    store_batch(make_batch(run, step=9, groups=1, group_size=6, completion=texts, parsed_answer=texts), source="test")
    Rollout.objects.filter(run_id=run.pk, step__index=9).update(reward=-0.5)
    sheet = list(
        csv.DictReader(io.StringIO(download(client, run, "csv", filter="step:9", sort="id").decode(), newline=""))
    )
    assert [row["completion"] for row in sheet] == ["'" + text.decode() for text in texts]
    assert {row["answer"][0] for row in sheet} == {"'"} and {row["reward"] for row in sheet} == {"-0.5"}


def test_pairs_are_the_best_and_worst_of_what_is_found(client: Client, run: Run) -> None:
    found = lines(download(client, run, "pairs", filter="split:train"))
    rows = {row.pk: row for row in Rollout.objects.filter(run_id=run.pk, step__split="train")}
    by_group: dict[int, list[float]] = {}
    for row in rows.values():
        if not math.isnan(row.reward):
            by_group.setdefault(row.group_id, []).append(row.reward)
    mixed = {group for group, rewards in by_group.items() if min(rewards) < max(rewards)}
    assert [rows[pair["chosen_rollout"]].group_id for pair in found] == sorted(mixed) and mixed
    assert all((pair["chosen_reward"], pair["rejected_reward"]) == (1.0, 0.0) for pair in found)
    assert all(rows[pair["rejected_rollout"]].reward == 0 for pair in found)
    texts = {row["id"]: row["completion"] for row in lines(download(client, run, "jsonl"))}
    assert all(
        (pair["chosen"], pair["rejected"]) == (texts[pair["chosen_rollout"]], texts[pair["rejected_rollout"]])
        for pair in found
    )
    assert download(client, run, "pairs", filter="split:train correct:yes") == b""


def test_prefixes_end_where_a_step_ends(client: Client, run: Run) -> None:
    assert download(client, run, "prefixes", filter="split:train") == b""  # no vocabulary: tokens have no text
    payload = vocabulary.pack([b"<eos>", b"a", b"b", b"\xc3"])
    Run.objects.filter(pk=run.pk).update(
        vocabulary=Vocabulary.objects.create(sha256=b"x" * 32, size=4, payload=payload)
    )
    columns: dict[str, Any] = {
        "token_ids": [[1, 2, 1, 0], [2, 3, 1]],
        "step_boundaries": [[0, 2, 3, 4], []],
        "completion": [b"aba", b"x"],
    }
    batch = make_batch(
        run, step=9, groups=1, group_size=2, **{**{name: [None] * 2 for name in TOKEN_COLUMNS}, **columns}
    )
    assert store_batch(replace(batch, reward_spans=batch.reward_spans.slice(0, 0)), source="test").stored == 2
    found = lines(download(client, run, "prefixes", filter="step:9"))
    assert [(row["prefix"], row["prefix_tokens"]) for row in found] == [("ab", 2), ("aba", 3)]


def test_a_wrong_filter_or_format_gives_no_file(client: Client, run: Run, charlie: User) -> None:
    address = reverse("run-rollouts-export", args=[run.pk, "jsonl"])
    refused = client.get(address, {"filter": "reward<"})
    assert refused.status_code == 400 and b"at character 8: Expected a number" in refused.content
    assert client.get(reverse("run-rollouts-export", args=[run.pk, "exe"])).status_code == 404
    whole = client.get(reverse("project-rollouts-export", args=[run.project_id, "sft"]))
    assert len(lines(b"".join(whole))) == 80
    client.force_login(charlie)
    assert client.get(address).status_code == 404
    assert client.get(reverse("project-rollouts-export", args=[run.project_id, "sft"])).status_code == 404


def api_get(user: User, path: str, **query: Any) -> Any:
    _, token = ApiToken.issue(user, "test")
    return Client(headers={"Authorization": f"Bearer {token}"}).get(f"/api/v1{path}", query)


def test_the_api_takes_the_same_filter(run: Run, bob: User, charlie: User, monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("correct:yes -reward:nan", "'= 1'", "/so = 1/ split:train", "carry"):
        seen, after = [], 0
        while after is not None:
            page = api_get(bob, f"/runs/{run.pk}/rollouts", filter=text, after=after, limit=9).json()
            seen += [row["id"] for row in page["items"]]
            after = page["next"]
        assert seen == sorted(ids(run, text)) and seen
    wrong = api_get(bob, f"/runs/{run.pk}/rollouts", filter="a rewrd<1")
    assert wrong.status_code == 400 and "at character 3" in wrong.json()["detail"]
    assert api_get(charlie, f"/runs/{run.pk}/rollouts", filter="carry").status_code == 404
    monkeypatch.setattr(browse, "FIRST_WINDOW", 7)
    monkeypatch.setattr(browse, "SCAN_SECONDS", 0)
    page = api_get(bob, f"/runs/{run.pk}/rollouts", filter="'zzz'").json()
    assert page["items"] == [] and page["next"] == min(ids(run, "")) + 6
