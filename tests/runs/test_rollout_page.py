import base64
import csv
import gzip
import hashlib
import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from django.test import Client
from django.urls import reverse

from rlviewer.accounts.models import Project, User
from rlviewer.ingest.services import store_batch
from rlviewer.runs.models import Rollout, Run, Vocabulary
from rlviewer.runs.queries import rollout as queries
from rlviewer.runs.queries import rollout_parts
from tests.factories import make_batch, make_run
from training import vocabulary
from training.records import TOKEN_COLUMNS

NAN, INF = float("nan"), float("inf")


@pytest.fixture
def run(project: Project, alice: User, client: Client) -> Run:
    client.force_login(alice)
    return make_run(project)


def stored(run: Run, **columns: list) -> list[Rollout]:
    """A group of one rollout a value of the columns."""
    size = len(next(iter(columns.values()))) if columns else 4
    batch = make_batch(run, groups=1, group_size=size, **columns)
    if columns:  # the spans name tokens that these columns may not have
        batch = replace(batch, reward_spans=batch.reward_spans.slice(0, 0))
    outcome = store_batch(batch, source="test")
    assert outcome.refused == 0
    return list(Rollout.objects.filter(run_id=run.pk).order_by("number"))


def data_of(client: Client, rollout: Rollout) -> dict:
    answer = client.get(reverse("rollout-detail", args=[rollout.pk]))
    assert answer.status_code == 200
    found = re.search(
        r'<script id="rollout-data" type="application/json">(.*?)</script>', answer.content.decode(), re.S
    )
    assert found
    return json.loads(found[1])


def only_tokens(count: int, **columns: list) -> dict[str, list]:
    """Columns of one rollout of `count` tokens, everything not named missing."""
    names = [*(name for name in TOKEN_COLUMNS if name != "token_ids"), "step_boundaries"]
    return {name: [None] for name in names} | {"token_ids": [list(range(count))]} | columns


def test_every_number_arrives_bit_for_bit(client: Client, run: Run) -> None:
    values = np.array([-0.5, NAN, -INF, -0.0, 1e-42], np.float32)
    (rollout,) = stored(run, **only_tokens(5, sampler_logprobs=[values.tolist()]))
    data = data_of(client, rollout)
    (field,) = data["fields"]
    assert (field["name"], field["type"], data["count"]) == ("sampler_logprobs", "f4", 5)
    assert base64.b64decode(field["data"]) == values.astype("<f4").tobytes()
    assert np.frombuffer(base64.b64decode(data["ids"]), "<i4").tolist() == [0, 1, 2, 3, 4]


def test_the_importance_ratio_is_of_policy_over_what_sampled(client: Client, run: Run) -> None:
    columns = only_tokens(3, sampler_logprobs=[[-1.0, -1.0, -1.0]], policy_logprobs=[[-1.0, -1.0 + math.log(2), NAN]])
    (rollout,) = stored(run, **columns)
    ratio = next(f for f in data_of(client, rollout)["fields"] if f["name"] == "importance_ratio")
    found = np.frombuffer(base64.b64decode(ratio["data"]), "<f4")
    assert found[:2] == pytest.approx([1.0, 2.0]) and math.isnan(found[2])


def test_the_trainers_own_logprobs_are_the_better_denominator(client: Client, run: Run) -> None:
    columns = only_tokens(1, sampler_logprobs=[[-9.0]], recomputed_logprobs=[[-1.0]], policy_logprobs=[[-1.0]])
    (rollout,) = stored(run, **columns)
    ratio = next(f for f in data_of(client, rollout)["fields"] if f["name"] == "importance_ratio")
    assert np.frombuffer(base64.b64decode(ratio["data"]), "<f4").tolist() == [1.0]


def give_vocabulary(run: Run, pieces: list[bytes]) -> None:
    payload = vocabulary.pack(pieces)
    run.vocabulary = Vocabulary.objects.create(
        sha256=hashlib.sha256(payload).digest(), size=len(pieces), payload=payload
    )
    run.save()


def test_pieces_come_from_the_runs_vocabulary(client: Client, run: Run) -> None:
    give_vocabulary(run, [b"a", b"\xff", b" carry", b"unused"])
    (rollout,) = stored(run, **only_tokens(3, completion=[b"a\xff carry"]))
    pieces = data_of(client, rollout)["pieces"]
    assert pieces == {"source": "vocabulary", "by_id": {"0": "a", "1": "\U0010ffff", "2": " carry"}, "joins": True}


def test_pieces_that_do_not_join_to_the_text_are_told(client: Client, run: Run) -> None:
    give_vocabulary(run, [b"a", b"<eos>", b"b"])
    # Id 7 is beyond the vocabulary.
    (rollout,) = stored(run, **only_tokens(2, completion=[b"a"], token_ids=[[0, 7]]))
    pieces = data_of(client, rollout)["pieces"]
    assert pieces["by_id"] == {"0": "a"} and pieces["joins"] is True
    # A decoder leaves special tokens out; any other difference is told.
    assert queries.pieces_of(np.array([0, 1]), b"a", run.vocabulary_id)["joins"] is True
    assert queries.pieces_of(np.array([0, 2]), b"a", run.vocabulary_id)["joins"] is False


def test_without_a_vocabulary_one_character_a_token_is_a_guess(client: Client, run: Run) -> None:
    (rollout,) = stored(run, **only_tokens(3, completion=["é\n".encode()]))
    assert data_of(client, rollout)["pieces"] == {"source": "characters", "by_place": ["é", "\n"], "joins": True}


def test_without_any_way_to_tell_the_ids_stay(client: Client, run: Run) -> None:
    (rollout,) = stored(run, **only_tokens(9, completion=[b"three"]))
    assert data_of(client, rollout)["pieces"]["source"] == "none"


def test_text_without_tokens_says_so(client: Client, run: Run) -> None:
    (rollout,) = stored(run, **only_tokens(0, token_ids=[None], completion=[b"text"]))
    page = client.get(reverse("rollout-detail", args=[rollout.pk])).content.decode()
    assert data_of(client, rollout)["count"] == 0
    assert "No token values" in page


def test_missing_fields_are_named_and_disabled(client: Client, run: Run) -> None:
    (rollout,) = stored(run, **only_tokens(2, entropy=[[0.5, 0.25]]))
    page = client.get(reverse("rollout-detail", args=[rollout.pk])).content.decode()
    assert "<option disabled>importance ratio (not recorded)</option>" in page
    assert '<option value="entropy">entropy</option>' in page


def test_the_page_names_group_parts_and_neighbours(client: Client, run: Run, django_assert_num_queries) -> None:
    rollouts = stored(run)
    store_batch(make_batch(run, step=1), source="test")
    # Session, person; rollout, chunk, siblings, their chunk, reward parts, previous and next step; role.
    with django_assert_num_queries(10):
        answer = client.get(reverse("rollout-detail", args=[rollouts[1].pk]))
    page = answer.content.decode()
    assert f'href="{reverse("rollout-detail", args=[rollouts[0].pk])}" data-key="p"' in page
    assert f'href="{reverse("rollout-detail", args=[rollouts[2].pk])}" data-key="n"' in page
    assert f'{reverse("step-detail", args=[run.pk, "train", 1])}" data-key="]"' in page and 'data-key="["' not in page
    assert f'<a data-carry href="{reverse("rollout-detail", args=[rollouts[1].pk])}" aria-current="page"' in page
    assert ">exact answer</span>" in page
    # A part of one token names that token, not the half-open range that is stored.
    last = rollouts[1].length_tokens - 1
    assert f'data-range="{last}:{last + 1}">{last}</button>' in page
    assert "<dt>cost</dt>" in page and " s</dd>" in page


@pytest.mark.parametrize("text", [b"\x00\xff\xed\xa0\x80 \r\n", "\u202e<script>".encode(), b"", b"x" * 5_000_000])
def test_raw_is_what_is_stored(client: Client, run: Run, text: bytes) -> None:
    (rollout,) = stored(run, **only_tokens(2, completion=[text]))
    raw = client.get(reverse("rollout-raw", args=[rollout.pk, "text"]))
    assert raw.content == text
    assert raw.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert raw.headers["X-Content-Type-Options"] == "nosniff"
    download = client.get(reverse("rollout-raw", args=[rollout.pk, "text"]) + "?download")
    assert download.headers["Content-Disposition"].startswith("attachment")
    ids = client.get(reverse("rollout-raw", args=[rollout.pk, "ids"]))
    assert ids.json() == [0, 1]
    # A page of 5 MB of text carries the text once at most, and not at all where it has no need to.
    assert len(client.get(reverse("rollout-detail", args=[rollout.pk])).content) < 100_000
    assert client.get(f"/rollouts/{rollout.pk}/secrets/").status_code == 404


def test_json_is_strict_and_holds_everything(client: Client, run: Run) -> None:
    text = b"\xff\x00"
    columns = only_tokens(2, completion=[text], sampler_logprobs=[[NAN, -INF]], reward=[INF])
    (rollout,) = stored(run, **columns)

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    answer = client.get(reverse("rollout-raw", args=[rollout.pk, "json"]))
    data = json.loads(answer.content, parse_constant=refuse)
    assert base64.b64decode(data["completion_base64"]) == text
    assert data["columns"] == {"token_ids": [0, 1], "sampler_logprobs": ["NaN", "-Infinity"]}
    assert data["rollout"]["reward"] == "Infinity" and data["rollout"]["stop_reason"] in {"stop", "length"}


def test_a_hostile_prompt_is_text_and_cut_when_long(client: Client, run: Run, monkeypatch) -> None:
    monkeypatch.setattr(queries, "PROMPT_LIMIT", 30)
    (rollout,) = stored(run, **only_tokens(1))
    prompt = rollout.group.prompt
    prompt.text = b"<script>\x00\xff" + b"y" * 100
    prompt.save()
    page = client.get(reverse("rollout-detail", args=[rollout.pk])).content.decode()
    assert "&lt;script&gt;⟨00⟩⟨FF⟩yyyy" in page and "…</pre>" in page and "y" * 31 not in page
    assert client.get(reverse("rollout-raw", args=[rollout.pk, "prompt"])).content == bytes(prompt.text)


def test_every_token_is_a_row_of_the_csv(client: Client, run: Run) -> None:
    give_vocabulary(run, [b"a\n", b"\xff"])
    columns = only_tokens(2, completion=[b"a\n\xff"], sampler_logprobs=[[-0.5, NAN]], policy_logprobs=[[-0.5, -1.0]])
    (rollout,) = stored(run, **columns)
    answer = client.get(reverse("rollout-raw", args=[rollout.pk, "csv"]))
    head, *rows = csv.reader(answer.content.decode().splitlines())
    assert head[:5] == ["position", "token_id", "text", "sampler_logprobs", "policy_logprobs"]
    assert [row[:5] for row in rows] == [["0", "0", "a⏎", "-0.5", "-0.5"], ["1", "1", "⟨FF⟩", "nan", "-1.0"]]
    assert rows[0][head.index("importance_ratio")] == "1.0"


def test_reward_parts_become_a_number_of_each_token() -> None:
    found = queries.with_derived({"entropy": np.zeros(4, np.float32)}, [(0, 2, 1.0), (1, 4, -0.5), (3, 3, 2.0)])
    assert found["segment_reward"].tolist() == [1.0, 0.5, -0.5, 1.5]


def test_the_group_gives_what_the_what_if_reads(client: Client, run: Run, monkeypatch) -> None:
    first, second = stored(
        run, token_ids=[[1], [1, 2]], completion=[b"a", b"b"], advantage=[0.5, NAN],
        **{name: [None, None] for name in [*TOKEN_COLUMNS, "step_boundaries"] if name not in {"token_ids", "policy_logprobs"}},
        policy_logprobs=[[-1.0], [-2.0, NAN]],
    )  # fmt: skip
    address = reverse("rollout-part", args=[first.pk, "group"])
    found = client.get(address).json()
    assert [(one["id"], one["number"], one["advantage"]) for one in found["rollouts"]] == [
        (first.pk, 0, 0.5), (second.pk, 1, None),
    ]  # fmt: skip
    (field,) = found["rollouts"][1]["fields"]
    values = np.frombuffer(base64.b64decode(field["data"]), "<f4")
    assert field["name"] == "policy_logprobs" and values[0] == -2.0 and math.isnan(values[1])
    monkeypatch.setattr(rollout_parts, "WHAT_IF_TOKENS", 2)
    assert client.get(address).json() == {"tokens": 3, "limit": 2, "rollouts": None}


def test_the_step_gives_the_rollouts_of_all_its_groups(client: Client, run: Run, charlie: User, monkeypatch) -> None:
    for step in (0, 1):
        store_batch(make_batch(run, step=step, groups=3, group_size=2, tokens=8), source="test")
    rollouts = list(Rollout.objects.filter(run_id=run.pk, step__index=1).order_by("pk"))
    address = reverse("rollout-part", args=[rollouts[3].pk, "step"])
    found = client.get(address).json()
    assert [one["id"] for one in found["rollouts"]] == [rollout.pk for rollout in rollouts]
    assert found["tokens"] == sum(rollout.length_tokens for rollout in rollouts)
    monkeypatch.setattr(rollout_parts, "WHAT_IF_TOKENS", 10)
    assert client.get(address).json()["rollouts"] is None
    client.force_login(charlie)
    assert client.get(address).status_code == 404


def test_turns_are_for_members_only(client: Client, run: Run, charlie: User) -> None:
    (rollout,) = stored(run, **only_tokens(1, completion=[b"a"], turns=[b'[{"role": "user", "content": "hi"}]']))
    address = reverse("rollout-part", args=[rollout.pk, "turns"])
    (turn,) = client.get(address).json()["turns"]
    assert turn["role"] == "user" and turn["parts"][0]["text"] == "hi"
    client.force_login(charlie)
    assert client.get(address).status_code == 404


def test_the_rule_is_what_the_run_trained_with(run: Run) -> None:
    run.algorithm, run.config = "dapo", {"algorithm_params": {"clip_low": 0.1}}
    told = queries.loss_rule(run)
    assert (told["loss"], told["clip_low"], told["clip_high"]) == ("clipped", 0.1, 0.28)
    run.algorithm, run.plugins = "somebody's own", {"H7": ["divergence_masked"]}
    assert queries.loss_rule(run)["tv_limit"] == 0.15
    run.plugins = {"H7": {"name": "theirs", "version": "1"}}
    assert queries.loss_rule(run) == {"loss": None}


def test_the_numbers_of_a_long_rollout_follow_its_page(client: Client, run: Run, charlie: User) -> None:
    length = 32_000
    rng = np.random.default_rng(0)
    sampler = -rng.gamma(0.6, 0.7, length).astype(np.float32)
    policy = (sampler + rng.normal(0, 0.05, length)).astype(np.float32)
    columns = only_tokens(
        length,
        token_ids=[rng.integers(0, 32_000, length).tolist()],
        sampler_logprobs=[sampler.tolist()],
        policy_logprobs=[policy.tolist()],
        loss_mask=[[1] * length],
        token_policy_version=[list(range(length))],
    )
    (rollout,) = stored(run, **columns)
    page = client.get(reverse("rollout-detail", args=[rollout.pk]))
    assert len(gzip.compress(page.content)) < 300_000
    fields = data_of(client, rollout)["fields"]
    assert {field["data"] for field in fields} == {None}
    address = reverse("rollout-part", args=[rollout.pk, "numbers"])
    numbers = client.get(address).content
    found, at = {}, 0
    for field in sorted(fields, key=lambda field: -int(field["type"][1])):
        kind = np.dtype(f"<{field['type']}")
        found[field["name"]] = np.frombuffer(numbers, kind, length, at)
        at += length * kind.itemsize
    assert at == len(numbers)
    assert (found["sampler_logprobs"] == sampler).all() and (found["policy_logprobs"] == policy).all()
    assert found["loss_mask"].sum() == length and (found["token_policy_version"] == np.arange(length)).all()
    client.force_login(charlie)
    assert client.get(address).status_code == 404
