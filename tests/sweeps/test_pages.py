"""The pages of sweeps: form, preview, launch, and one sweep with what its trials came to."""

from typing import Any

import pytest
from django.test import Client

from rlviewer.accounts.models import Member, Project, Role, User
from rlviewer.runs.models import Run
from rlviewer.sweeps.forms import SweepForm, parse_values, spec_values
from rlviewer.sweeps.models import Sweep
from rlviewer.sweeps.scheduler import advance_all
from rlviewer.sweeps.services import launch_sweep
from tests.sweeps.conftest import LEARNING_RATE, make_spec, train
from training.config import ConfigError

pytestmark = pytest.mark.django_db
HTMX = {"HX-Request": "true"}


@pytest.fixture
def client(client: Client, alice: User) -> Client:
    client.force_login(alice)
    return client


def test_the_form_shows_runs_and_cost_before_it_launches(client: Client, project: Project) -> None:
    address = f"/projects/{project.pk}/sweeps/new/"
    page = client.get(address).content.decode()
    assert "Launch 2 runs" in page and "3e-5, 1e-4" in page
    values = spec_values(make_spec(seeds=[0, 1, 2]))
    preview = client.post(address, values, headers=HTMX)
    assert preview.status_code == 200 and "Launch 6 runs" in preview.content.decode()
    assert not Sweep.objects.exists(), "a preview stores nothing"
    assert client.post(address, values).status_code == 302
    assert Sweep.objects.get().parsed == make_spec(seeds=[0, 1, 2])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"values-0": "1e-5, 7"}, "must be at most 1"),
        ({"key-0": "optimizer.learning_rat"}, "did you mean optimizer.learning_rate?"),
        ({"key-0": "steps", "values-0": "1 .. 10000000 step 1"}, "10,000,000 runs"),
        ({"values-0": "1e-6 .. 1e-3 log"}, "a grid needs choices"),
        ({"base": "steps = "}, "not valid TOML"),
        ({"seeds": "zero"}, "whole numbers"),
        ({"concurrency": "0"}, "must be at least 1"),
    ],
)
def test_what_is_wrong_stands_beside_its_field_and_nothing_is_stored(
    changes: dict[str, str], words: str, client: Client, project: Project
) -> None:
    answer = client.post(f"/projects/{project.pk}/sweeps/new/", spec_values(make_spec()) | changes)
    page = answer.content.decode()
    assert answer.status_code == 422 and words in page and "1 problem to solve" in page
    assert not Sweep.objects.exists()


def test_toml_read_into_the_form_and_out_again(client: Client, project: Project, alice: User) -> None:
    spec = make_spec(sampler="tpe", trials=7, parameters={LEARNING_RATE: {"low": 1e-6, "high": 1e-3, "log": True}})
    answer = client.post(f"/projects/{project.pk}/sweeps/new/", {"toml": spec.to_toml(), "read": "1"})
    assert "1e-06 .. 0.001 log" in answer.content.decode() and not Sweep.objects.exists()
    form = SweepForm.of_spec(alice, spec)
    assert form.is_valid() and form.checked and form.checked.spec == spec


def test_a_run_is_a_base(client: Client, project: Project) -> None:
    sweep = launch_sweep(User.objects.get(username="alice"), project, make_spec())
    advance_all()
    page = client.get(f"/projects/{project.pk}/sweeps/new/?run={Run.objects.get().pk}").content.decode()
    assert "max_new_tokens = 8" in page and "Sweep of rates" in page
    assert client.get(f"/projects/{project.pk}/sweeps/new/?run=999999").status_code == 404
    assert sweep.trials.count() == 1


def test_the_page_of_a_sweep(client: Client, project: Project, alice: User, django_assert_max_num_queries: Any) -> None:
    parameters = {"algorithm": {"choices": ["grpo", "rloo"]}, LEARNING_RATE: {"choices": [1e-5, 1e-4]}}
    sweep = launch_sweep(alice, project, make_spec(parameters=parameters, seeds=[0, 1], concurrency=8))
    empty = client.get(f"/sweeps/{sweep.pk}/").content.decode()
    assert "No trial has started" in empty
    advance_all()
    for number, run in enumerate(Run.objects.order_by("pk")):
        train(run, 0.1, 0.1 * number)
    advance_all()
    with django_assert_max_num_queries(25):
        page = client.get(f"/sweeps/{sweep.pk}/").content.decode()
    # The last point's two seeds got the highest rewards.
    assert 'href="#trial-3">Trial 3</a>' in page and "95 % t interval" in page
    assert 'data-figure="grid"' in page and 'data-figure="parallel"' in page and 'data-figure="curves"' in page
    assert "<html" not in client.get(f"/sweeps/{sweep.pk}/", headers=HTMX).content.decode()
    assert sweep.name in client.get(f"/projects/{project.pk}/sweeps/").content.decode()


def test_strangers_see_nothing_and_viewers_only_read(project: Project, alice: User, charlie: User) -> None:
    sweep = launch_sweep(alice, project, make_spec())
    client = Client()
    client.force_login(charlie)
    assert client.get(f"/sweeps/{sweep.pk}/").status_code == client.get("/sweeps/987654/").status_code == 404
    Member.objects.create(project=project, user=charlie, role=Role.VIEWER)
    page = client.get(f"/sweeps/{sweep.pk}/")
    assert page.status_code == 200 and b"Pause" not in page.content
    assert client.post(f"/sweeps/{sweep.pk}/stop/").status_code == 403


def test_editing_keeps_what_was_tried(client: Client, project: Project, alice: User) -> None:
    sweep = launch_sweep(alice, project, make_spec())
    values = spec_values(make_spec(concurrency=2)) | {"values-0": "1e-5, 1e-4, 2e-4"}
    assert client.post(f"/sweeps/{sweep.pk}/edit/", values).status_code == 302
    sweep.refresh_from_db()
    assert sweep.parsed.concurrency == 2 and sweep.parsed.point_count() == 3
    other = client.post(f"/sweeps/{sweep.pk}/edit/", values | {"key-0": "sampling.temperature", "values-0": "0.5, 1.0"})
    assert other.status_code == 422 and b"launch another sweep" in other.content


@pytest.mark.parametrize(
    ("text", "table"),
    [
        ("1e-5, 3e-5", {"choices": [1e-5, 3e-5]}),
        ("grpo, rloo", {"choices": ["grpo", "rloo"]}),
        ("on, off", {"choices": [True, False]}),
        ('["a", "b"], ["c"]', {"choices": [["a", "b"], ["c"]]}),
        ("1e-6 .. 1e-3 log", {"low": 1e-6, "high": 1e-3, "log": True}),
        ("2..8 step 2", {"low": 2, "high": 8, "step": 2}),
    ],
)
def test_values_as_a_person_writes_them(text: str, table: dict[str, Any]) -> None:
    assert parse_values("x", text) == table


@pytest.mark.parametrize("text", ["", "1 .. 2 sideways", ","])
def test_values_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_values("x", text)
