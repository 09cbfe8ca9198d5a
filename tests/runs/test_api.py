"""The read API: what it gives, to whom, exactly, page by page, and what it says when a call is wrong."""

import base64
import json
import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from django.test import Client
from django.utils import timezone

from rlviewer.accounts.models import ApiToken, Member, Project, Role, User
from rlviewer.ingest.services import store_batch
from rlviewer.runs.models import Attempt, Rollout, Run, Step
from rlviewer.search.api import NEXT_HEADER
from tests.factories import fill_run, make_batch, make_project, make_run, make_user
from training.records import ROLLOUTS


@pytest.fixture
def api(bob: User) -> Client:
    """Bob's calls, by token."""
    return client_of(bob)


@pytest.fixture
def run(project: Project) -> Run:
    return make_run(project)


def client_of(person: User) -> Client:
    return Client(headers={"Authorization": f"Bearer {ApiToken.issue(person, 'test')[1]}"})


def strictly(body: bytes) -> Any:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(body, parse_constant=refuse)


def get(api: Client, path: str, status: int = 200, **parameters: Any) -> Any:
    answer = api.get(f"/api/v1{path}", parameters)
    assert answer.status_code == status, answer.content
    return strictly(answer.content)


def walk(api: Client, path: str, **parameters: Any) -> list[Any]:
    """All items, page by page."""
    items: list[Any] = []
    while parameters.get("after", 0) is not None:
        page = get(api, path, **parameters)
        assert len(page["items"]) <= parameters.get("limit", 100)
        items += page["items"]
        parameters["after"] = page["next"]
    return items


def read_arrow(api: Client, run: Run, **parameters: Any) -> tuple[pa.Table, str | None]:
    answer = api.get(f"/api/v1/runs/{run.pk}/rollouts.arrow", parameters)
    assert answer.status_code == 200, answer.content
    return pa.ipc.open_stream(answer.content).read_all(), answer.headers.get(NEXT_HEADER)


# Access


def paths_of(project: Project, run: Run) -> list[str]:
    rollout = Rollout.objects.filter(run_id=run.pk).first()
    tails = ("", "/steps", "/metrics", "/rollouts", "/rollouts.arrow")
    return [*(f"/runs/{run.pk}{tail}" for tail in tails), f"/rollouts/{rollout.pk}"]


def test_members_read_and_nobody_else(project: Project, run: Run, alice: User, bob: User, charlie: User) -> None:
    fill_run(run, steps=1)
    Member.objects.create(project=project, user=(dora := make_user("dora")), role=Role.VIEWER)
    admin = make_user("root", is_superuser=True)
    for path in paths_of(project, run):
        for person in (alice, bob, dora, admin):
            assert client_of(person).get(f"/api/v1{path}").status_code == 200, (path, person)
        answer = client_of(charlie).get(f"/api/v1{path}")
        assert answer.status_code == 404
        assert "among those you may see" in strictly(answer.content)["detail"]
    # The same words for what does not exist: a guess tells nothing.
    assert (
        get(client_of(charlie), "/runs/999999", 404)["detail"].replace("999999", str(run.pk))
        == get(client_of(charlie), f"/runs/{run.pk}", 404)["detail"]
    )
    assert get(client_of(charlie), "/runs")["items"] == get(client_of(charlie), "/projects")["items"] == []


def test_every_call_needs_a_person(project: Project, run: Run) -> None:
    fill_run(run, steps=1)
    for path in ["/me", "/projects", "/runs", *paths_of(project, run)]:
        answer = Client().get(f"/api/v1{path}")
        assert answer.status_code == 401
        assert answer.headers["WWW-Authenticate"].startswith("Bearer")
        assert "account page" in strictly(answer.content)["detail"]


def test_session_of_a_browser_reads_too(bob: User) -> None:
    browser = Client()
    browser.force_login(bob)
    assert get(browser, "/me") == {"username": "bob", "is_superuser": False}


@pytest.mark.parametrize(("header", "said"), [
    ("Bearer rlv_wrong", "not known, or was revoked"),
    ("Bearer ", "not known"),
    ("Basic Ym9iOmJvYg==", "scheme 'Basic' is not known"),
])  # fmt: skip
def test_a_wrong_header_is_named(bob: User, header: str, said: str) -> None:
    browser = Client(headers={"Authorization": header})
    browser.force_login(bob)  # does not help: who sends a token means the token
    assert said in get(browser, "/me", 401)["detail"]


def test_revoked_token_and_deactivated_person_are_refused(bob: User) -> None:
    api = client_of(bob)
    User.objects.filter(pk=bob.pk).update(is_active=False)
    assert "bob is deactivated" in get(api, "/me", 403)["detail"]
    User.objects.filter(pk=bob.pk).update(is_active=True)
    assert get(api, "/me")["username"] == "bob"
    ApiToken.objects.all().delete()
    get(api, "/me", 401)


def test_use_of_a_token_is_noted_once_a_minute(api: Client, django_assert_num_queries: Any) -> None:
    before = timezone.now()
    with django_assert_num_queries(2):
        get(api, "/me")
    assert ApiToken.objects.get().last_used_at >= before
    with django_assert_num_queries(1):
        get(api, "/me")


# Runs, steps, metrics


def test_runs_filter_and_page(api: Client, project: Project, alice: User) -> None:
    runs = [make_run(project, f"run {i}", algorithm="gspo" if i % 3 == 0 else "grpo") for i in range(7)]
    Run.objects.filter(pk=runs[6].pk).update(state="finished")
    make_run(make_project("hidden", admin=alice), "hidden")
    assert [r["name"] for r in walk(api, "/runs", limit=2)] == [f"run {i}" for i in reversed(range(7))]
    assert [r["name"] for r in walk(api, "/runs", algorithm="gspo")] == ["run 6", "run 3", "run 0"]
    assert [r["name"] for r in walk(api, "/runs", state="finished", project=project.pk)] == ["run 6"]
    assert get(api, "/runs", project=project.pk + 1)["items"] == []


def test_run_detail_gives_config_attempts_and_owner(api: Client, project: Project, alice: User) -> None:
    run = make_run(project, created_by=alice, config={"seed": 3, "limit": float("1e3")}, latest_reward=float("nan"))
    answer = get(api, f"/runs/{run.pk}")
    assert answer["project"] == project.pk
    assert answer["created_by"] == "alice"
    assert answer["config"] == {"seed": 3, "limit": 1000.0}
    assert answer["latest_reward"] == "NaN"
    assert [attempt["number"] for attempt in answer["attempts"]] == [1]


def test_steps_of_current_attempts_or_all(api: Client, run: Run) -> None:
    fill_run(run, steps=3)
    Attempt.objects.create(run=run, number=2)
    store_batch(make_batch(run, attempt=2, step=2), source="test")
    current = walk(api, f"/runs/{run.pk}/steps", split="train", limit=2)
    assert [(s["index"], s["attempt"]) for s in current] == [(0, 1), (1, 1), (2, 2)]
    both = walk(api, f"/runs/{run.pk}/steps", split="train", attempts="all")
    assert [(s["index"], s["attempt"], s["is_current"]) for s in both][2:] == [(2, 1, False), (2, 2, True)]
    stored = Step.objects.get(pk=current[0]["id"])
    assert current[0]["reward_mean"] == stored.reward_mean
    assert current[0]["phase_seconds"] == {"sample": 0.3, "score": 0.01, "learn": 0.15, "record": 0.01}


def test_metrics_by_name_page_by_page(api: Client, run: Run) -> None:
    fill_run(run, steps=4)
    path = f"/runs/{run.pk}/metrics"
    everything = walk(api, path)
    assert walk(api, path, limit=1) == everything
    assert {"loss", "eval_pass_at_1"} <= {piece["name"] for piece in everything}
    some = walk(api, path, names="loss, grad_norm", limit=1)
    assert [piece["name"] for piece in some] == ["grad_norm", "loss"]
    assert some[1]["steps"] == [0, 1, 2, 3]
    assert some[1]["values"] == [0.1, 0.05, 0.1 / 3, 0.025]
    assert "is no piece" in get(api, path, 400, after=10**9)["detail"]


# Rollouts


@pytest.mark.parametrize("steps", [11, pytest.param(110, marks=pytest.mark.torture)])
def test_incident_d16_every_rollout_is_reached_by_key(api: Client, run: Run, steps: int) -> None:
    for step in range(steps):
        store_batch(make_batch(run, step=step, groups=13, group_size=7, tokens=2), source="test")
    wanted = list(Rollout.objects.filter(run_id=run.pk).order_by("pk").values_list("pk", flat=True))
    assert len(wanted) == 91 * steps
    assert [r["id"] for r in walk(api, f"/runs/{run.pk}/rollouts", limit=100)] == wanted
    reached, after = [], 0
    while after is not None:
        table, after = read_arrow(api, run, limit=100, after=after)
        reached += table["id"].to_pylist()
    assert reached == wanted


def test_rollouts_of_a_step_split_and_attempt(api: Client, run: Run) -> None:
    fill_run(run, steps=3)
    Attempt.objects.create(run=run, number=2)
    store_batch(make_batch(run, attempt=2, step=1), source="test")
    path = f"/runs/{run.pk}/rollouts"
    current = walk(api, path, step=1, split="train", limit=5)
    assert len(current) == 16
    assert {(r["step"], r["split"], r["attempt"]) for r in current} == {(1, "train", 2)}
    assert {r["attempt"] for r in walk(api, path, step=1, split="train", attempts="all")} == {1, 2}
    assert {r["split"] for r in walk(api, path, split="heldout")} == {"heldout"}
    assert len(walk(api, path)) == 16 * 5  # three steps and two evaluations, the repeated step once
    assert len(walk(api, path, attempts="all")) == 16 * 6
    assert get(api, path, step=99)["items"] == []


def test_a_page_of_rollouts_costs_few_queries(api: Client, run: Run, django_assert_max_num_queries: Any) -> None:
    fill_run(run, steps=3)
    get(api, "/me")
    with django_assert_max_num_queries(5):
        get(api, f"/runs/{run.pk}/rollouts")
    with django_assert_max_num_queries(9):
        read_arrow(api, run)


def test_one_rollout_with_all_its_tokens(api: Client, run: Run) -> None:
    batch = make_batch(run)
    store_batch(batch, source="test")
    rollout = Rollout.objects.get(run_id=run.pk, group__index=2, number=1)
    answer = get(api, f"/rollouts/{rollout.pk}")
    row = batch.rollouts.slice(9, 1).to_pylist()[0]
    assert answer["prompt"]["text"] == batch.groups["prompt"][2].as_py().decode()
    assert answer["prompt_ids"] == batch.groups["prompt_ids"][2].as_py()
    assert answer["completion"] == {"text": row["completion"].decode(), "base64": None}
    assert (answer["group"], answer["number"], answer["stop_reason"]) == (2, 1, "stop")
    for name in ("token_ids", "sampler_logprobs", "entropy", "loss_mask", "clip_flag"):
        assert answer["columns"][name] == row[name]
    assert answer["details"]["seed"] == row["seed"]
    assert answer["details"]["step_boundaries"] == row["step_boundaries"]
    assert [(p["kind"], p["value"]) for p in answer["reward_parts"]] == [("outcome", row["reward"]), ("format", 0.1)]


def test_incident_i_nan_and_infinity_stay_and_the_answer_is_json(api: Client, run: Run) -> None:
    rewards = [float("nan"), float("inf"), float("-inf"), -0.0]
    store_batch(make_batch(run, groups=1, reward=rewards), source="test")
    rows = walk(api, f"/runs/{run.pk}/rollouts")
    assert [row["reward"] for row in rows] == ["NaN", "Infinity", "-Infinity", -0.0]
    last = get(api, f"/rollouts/{rows[3]['id']}")  # its first log-probability is NaN
    assert "NaN" in walk_values(last["columns"])
    table, _ = read_arrow(api, run)
    np.testing.assert_array_equal(table["reward"].to_numpy().view("<u8"), np.array(rewards).view("<u8"))


def walk_values(columns: dict[str, list[Any]]) -> list[Any]:
    return [value for values in columns.values() for value in values]


def test_bytes_that_are_no_text_come_back_exactly(api: Client, run: Run) -> None:
    texts = [b"\xff\xfe \x80", b"\x00 NUL", "\ud800".encode("utf-8", "surrogatepass"), b""]
    store_batch(make_batch(run, groups=1, completion=texts), source="test")
    for row, sent in zip(walk(api, f"/runs/{run.pk}/rollouts"), texts, strict=True):
        got = get(api, f"/rollouts/{row['id']}")["completion"]
        assert (base64.b64decode(got["base64"]) if got["base64"] else got["text"].encode()) == sent
    table, _ = read_arrow(api, run)
    assert table["completion"].to_pylist() == texts


def test_arrow_gives_every_column_bit_for_bit(api: Client, run: Run) -> None:
    extra = [[0.5, float("nan")] if row % 2 else None for row in range(16)]
    batch = make_batch(run, x_teacher=[None if v is None else v for v in extra], tokens=2, token_ids=[[1, 2]] * 16, **{
        name: [[value] * 2] * 16 for name, value in {
            "sampler_logprobs": -0.0, "policy_logprobs": float("nan"), "ref_logprobs": -1.5, "entropy": 0.25,
            "token_advantages": float("inf"), "token_weights": 1.0, "loss_mask": 1, "clip_flag": 2, "origin": 2,
            "token_policy_version": 3,
        }.items()
    })  # fmt: skip
    store_batch(batch, source="test")
    table, after = read_arrow(api, run)
    assert after is None
    for field in ROLLOUTS:
        if field.name in {"group", "drop_reason", "kept"}:
            continue
        sent, got = batch.rollouts[field.name].combine_chunks(), table[field.name].combine_chunks()
        assert got.type == sent.type, field.name
        assert repr(got.to_pylist()) == repr(sent.to_pylist()), field.name
    bits = [part.values.to_numpy().view("<u4").tolist() for part in table["policy_logprobs"]]
    assert bits == [part.values.to_numpy().view("<u4").tolist() for part in batch.rollouts["policy_logprobs"]]
    assert repr(table["x_teacher"].to_pylist()) == repr(extra)
    assert table["prompt"].to_pylist()[::4] == batch.groups["prompt"].to_pylist()
    parts = [
        [
            {k: part[k] for k in part if k != "rollout"}
            for part in batch.reward_spans.to_pylist()
            if part["rollout"] == row
        ]
        for row in range(16)
    ]
    assert repr(table["reward_parts"].to_pylist()) == repr(parts)


def test_arrow_answer_is_bounded_by_bytes_but_always_goes_on(api: Client, run: Run, monkeypatch: Any) -> None:
    store_batch(make_batch(run, groups=2, completion=[b"x" * 100_000] * 8), source="test")
    monkeypatch.setattr("rlviewer.search.api.ARROW_BYTES", 250_000)
    sizes, after = [], 0
    while after is not None:
        table, after = read_arrow(api, run, after=after)
        sizes.append(table.num_rows)
    assert sizes == [2, 2, 2, 2]
    monkeypatch.setattr("rlviewer.search.api.ARROW_BYTES", 10)
    assert read_arrow(api, run)[0].num_rows == 1


def test_arrow_of_nothing_has_the_schema(api: Client, run: Run) -> None:
    table, after = read_arrow(api, run)
    assert (table.num_rows, after) == (0, None)
    assert {"id", "prompt", "completion", "token_ids", "reward_parts"} <= set(table.column_names)


# What is said when a call is wrong


@pytest.mark.parametrize(("path", "parameters", "said"), [
    ("/runs", {"limit": 5000}, "limit='5000': Input should be less than or equal to 1000"),
    ("/runs", {"limit": 0}, "limit='0'"),
    ("/runs", {"after": -1}, "after='-1'"),
    ("/runs", {"after": "x"}, "after='x': Input should be a valid integer"),
    ("/runs", {"after": 10**30}, "after='1000"),
    ("/runs", {"state": "happy"}, "state='happy': Input should be 'queued', 'starting'"),
    ("/runs", {"stat": "failed"}, "Unknown parameter 'stat'; did you mean 'state'?"),
    ("/runs/{run}/rollouts", {"splt": "train"}, "did you mean 'split'?"),
    ("/runs/{run}/rollouts.arrow", {"attempts": "some"}, "Input should be 'current' or 'all'"),
    ("/runs/{run}/rollouts", {"step": 2**31}, "step='2147483648'"),
    ("/runs", {"algorithm": "a\0"}, "algorithm='a\\x00'"),
    ("/runs/{run}/rollouts", {"split": "\0"}, "split='\\x00'"),
    ("/runs/{run}/metrics", {"names": "loss\0"}, "names='loss\\x00'"),
    ("/runs/abc", {}, "run_id='abc'"),
    ("/runs/0", {}, "run_id='0'"),
    ("/rollouts/99999999999999999999999", {}, "rollout_id='999"),
])  # fmt: skip
def test_a_bad_parameter_is_named(api: Client, run: Run, path: str, parameters: dict[str, Any], said: str) -> None:
    assert said in get(api, path.format(run=run.pk), 400, **parameters)["detail"]


def test_only_reading_is_offered(api: Client, run: Run) -> None:
    for method in (api.post, api.put, api.patch, api.delete):
        assert method(f"/api/v1/runs/{run.pk}").status_code == 405


def test_openapi_document_names_every_call(client: Client) -> None:
    document = strictly(client.get("/api/v1/openapi.json").content)
    assert set(document["paths"]) == {
        f"/api/v1{path}" for path in (
            "/me", "/projects", "/runs", "/runs/{run_id}", "/runs/{run_id}/steps", "/runs/{run_id}/metrics",
            "/runs/{run_id}/rollouts", "/runs/{run_id}/rollouts.arrow", "/rollouts/{rollout_id}",
        )
    }  # fmt: skip
    assert all(call["get"]["security"] for call in document["paths"].values())
    rollout = document["components"]["schemas"]["RolloutOut"]["properties"]
    assert {"step", "split", "attempt", "group"} <= set(rollout)
    assert {"enum": ["NaN", "Infinity", "-Infinity"]} in rollout["reward"]["anyOf"]


def test_idle_web_process_loads_neither_arrow_nor_numpy() -> None:
    code = (
        "import rlviewer.asgi, sys; from django.urls import get_resolver; import rlviewer.api;"
        "print([n for n in ('pyarrow', 'blosc2') if n in sys.modules])"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout.strip() == "[]"
    )
