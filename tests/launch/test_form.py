"""The launch form: every bad value is an error beside its field, nothing is half-stored, nothing is a 500."""

from pathlib import Path
from typing import Any

import pytest
from django.http import QueryDict
from django.test import Client

from rlviewer.accounts.models import Member, Project, Role, User
from rlviewer.launch.forms import SHOWN_TASK, LaunchForm
from rlviewer.launch.models import Lease
from rlviewer.launch.presets import PRESETS
from rlviewer.launch.services import launch_run
from rlviewer.runs.models import Run
from tests.factories import make_user
from training.config import ConfigError, RunConfig
from training.recipes import RECIPES
from training.tasks import catalog


def form_of(user: User, preset: str = "short", **changed: str) -> LaunchForm:
    query = QueryDict(mutable=True)
    query.update({key.replace("__", "."): value for key, value in changed.items()})
    return LaunchForm.from_query(user, query, PRESETS[preset])


def post(client: Client, project: Project, **changed: str) -> Any:
    return client.post(
        f"/projects/{project.id}/launch/?preset=short", {k.replace("__", "."): v for k, v in changed.items()}
    )


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_is_ready_to_launch(alice: User, preset: str) -> None:
    form = form_of(alice, preset)
    assert form.is_valid(), form.errors
    assert form.config == PRESETS[preset].run_config(
        algorithm_params=form.config.algorithm_params,
        task={**PRESETS[preset].config.get("task", {}), "params": form.config.task.params},
    )


@pytest.mark.parametrize("task", catalog.FAMILIES)
def test_every_task_brings_its_own_knobs(alice: User, task: str) -> None:
    form = form_of(alice, task__name=task, sampling__max_new_tokens="256")
    assert {key for key in form.fields if key.startswith("task.params.")} == {
        f"task.params.{knob}" for knob in catalog.FAMILIES[task].params
    }
    assert form.is_valid(), form.errors


@pytest.mark.parametrize("algorithm", RECIPES)
def test_every_algorithm_brings_its_own_settings(alice: User, algorithm: str) -> None:
    form = form_of(alice, algorithm=algorithm)
    shown = {key for key in form.fields if key.startswith("algorithm_params.")}
    assert shown <= {f"algorithm_params.{name}" for name in RECIPES[algorithm].params}
    assert form.is_valid(), form.errors


def test_every_setting_stands_in_exactly_one_place(alice: User) -> None:
    form = form_of(alice)
    shown = [field.html_name for section in form.sections() for field in (*section["fields"], *section["more"])]
    assert sorted(shown) == sorted(form.fields)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("task.name", "adition", "did you mean addition"),
        ("task.name", "reasoning_gym:no_such_thing", "no_such_thing"),
        ("task.name", "", "unknown task"),
        ("task.name", "x" * 400, "300"),
        ("algorithm", "gropo", "did you mean"),
        ("model.path", "/etc", "not one of the models"),
        ("model.path", "../../etc/passwd", "not one of the models"),
        ("sampling.group_size", "1", "at least 2"),
        ("sampling.group_size", "", "needs a whole number"),
        ("sampling.group_size", "8.5", "whole number"),
        ("sampling.group_size", "9" * 5000, "300"),
        ("optimizer.learning_rate", "nan", "finite"),
        ("optimizer.learning_rate", "1e999", "finite"),
        ("optimizer.learning_rate", "0", "greater than 0"),
        ("optimizer.learning_rate", "fast", "must be a number"),
        ("steps", "-3", "at least 1"),
        ("seed", str(2**70), "at most"),
        ("truncated", "drop", "not one of"),
        ("shuffle_rewards", "perhaps", "on or off"),
        ("name", "  ", "needs a name"),
        ("name", "x" * 250, "200"),
        ("name", "a\x00b", "Null characters"),
        ("task.params.digits", "0", "at least"),
        ("algorithm_params.clip_low", "-1", "at least 0"),
    ],
)  # fmt: skip
def test_bad_input_is_an_error_beside_its_field(
    client: Client, bob: User, project: Project, key: str, value: str, words: str
) -> None:
    client.force_login(bob)
    page = post(client, project, **{key: value})
    assert page.status_code == 422
    errors = page.context["form"].errors
    assert words in " ".join(errors[key]), errors
    assert set(errors) == {key}
    assert not Run.objects.exists()


def test_all_problems_are_named_at_once(alice: User) -> None:
    form = form_of(alice, sampling__group_size="1", optimizer__learning_rate="nan", steps="none", task__name="adition")
    assert set(form.errors) == {"sampling.group_size", "optimizer.learning_rate", "steps", "task.name"}


def test_a_launch_makes_the_run_that_was_shown(client: Client, bob: User, project: Project) -> None:
    client.force_login(bob)
    hostile = "; rm -rf / $(reboot) `id`\n--resume @/etc/passwd <b>"
    answer = post(client, project, name=hostile, steps="7", seed="3", task__params__digits="2")
    run = Run.objects.get()
    assert answer["Location"] == f"/runs/{run.id}/"
    assert (run.steps_planned, run.seed, run.created_by, run.state) == (7, 3, bob, "queued")
    assert run.name == hostile and run.config["name"] == hostile
    assert run.config["task"]["params"]["digits"] == 2


def test_changing_the_task_drops_the_other_tasks_knobs(alice: User) -> None:
    form = form_of(
        alice,
        task__name="countdown",
        task__params__digits="3",
        sampling__max_new_tokens="256",
        **{SHOWN_TASK: "addition"},
    )
    assert "task.params.digits" not in form.fields and form.is_valid(), form.errors


def test_an_algorithm_brings_what_its_recipe_starts_from(alice: User) -> None:
    shown = {"shown_algorithm": "grpo", "sampling__group_size": "8", "task__name": "addition", "shown_task": "addition"}
    form = form_of(alice, algorithm="spo", **shown)
    assert form.is_valid(), form.errors
    assert form.config is not None
    assert (form.config.sampling.group_size, form.config.task.name) == (1, "addition")
    form = form_of(alice, algorithm="natbool_dag", task__params__digits="2", **shown)
    assert form.is_valid(), form.errors
    assert form.config is not None
    assert (form.config.sampling.group_size, form.config.task.name) == (8, "natbool_dag")
    # What a person then writes is theirs.
    form = form_of(alice, algorithm="spo", **shown | {"shown_algorithm": "spo", "sampling__group_size": "4"})
    assert form.is_valid(), form.errors
    assert form.config is not None
    assert form.config.sampling.group_size == 4


@pytest.mark.parametrize("name", ["file:/etc/passwd", "os:system", "tests.launch.never:imported"])
def test_nobody_names_files_or_code_of_the_server_on_a_page(
    client: Client, alice: User, project: Project, name: str
) -> None:
    form = form_of(alice, task__name=name)
    assert not form.is_valid()
    assert "named in a configuration file" in form.errors["task.name"][0]
    client.force_login(alice)
    assert post(client, project, task__name=name).status_code == 422
    assert not Run.objects.exists()
    with pytest.raises(ConfigError, match="named in a configuration file"):
        launch_run(alice, project, RunConfig.from_dict({"task": {"name": name}}))


def test_the_address_fills_the_form_and_htmx_gets_the_form_alone(client: Client, bob: User, project: Project) -> None:
    client.force_login(bob)
    page = client.get(f"/projects/{project.id}/launch/?preset=short&steps=23", headers={"HX-Request": "true"})
    assert page.status_code == 200
    text = page.content.decode()
    assert text.startswith('<form id="launch-form"') and 'value="23"' in text and "steps = 23" in text
    assert "about" in text and not Run.objects.exists()


def test_only_site_admins_name_other_folders(bob: User, settings: Any, tmp_path: Path) -> None:
    settings.HOME = tmp_path / "home"
    offered, elsewhere, empty = settings.HOME / "models" / "small", tmp_path / "mine", tmp_path / "empty"
    for folder in (offered, elsewhere):
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
    empty.mkdir()
    root = make_user("root", is_superuser=True)
    assert form_of(bob, model__path=str(offered)).is_valid()
    # A folder that exists and one that does not get the same answer: nobody explores the disk with this form.
    denied = [form_of(bob, model__path=str(path)).errors["model.path"] for path in (elsewhere, tmp_path / "absent")]
    assert denied[0] == denied[1]
    assert form_of(root, model__path=str(elsewhere)).is_valid()
    assert "no config.json" in form_of(root, model__path=str(empty)).errors["model.path"][0]
    assert "absolute" in form_of(root, model__path="relative/folder").errors["model.path"][0]


def test_a_viewer_may_not_launch(client: Client, charlie: User, project: Project) -> None:
    Member.objects.create(project=project, user=charlie, role=Role.VIEWER)
    client.force_login(charlie)
    assert client.get(f"/projects/{project.id}/launch/").status_code == 403
    assert post(client, project).status_code == 403
    assert not Run.objects.exists()


def test_the_demo_gets_a_project_of_its_own_once(client: Client, charlie: User) -> None:
    client.force_login(charlie)
    for _ in range(2):
        assert client.post("/demo/").status_code == 302
    assert Project.objects.get().role_of(charlie) == Role.ADMIN
    assert Run.objects.count() == 2


def test_the_demo_is_launched_where_it_was_asked(client: Client, bob: User, charlie: User, project: Project) -> None:
    client.force_login(bob)
    client.post("/demo/", {"project": project.id})
    assert Run.objects.get().project == project
    client.force_login(charlie)
    assert client.post("/demo/", {"project": project.id}).status_code == 404


def test_stop_answers_in_words_when_the_run_is_over(client: Client, bob: User, project: Project) -> None:
    client.force_login(bob)
    post(client, project)
    run = Run.objects.get()
    client.post(f"/runs/{run.id}/stop/")
    run.refresh_from_db()
    assert run.state == "stopped" and "bob" in run.state_reason
    page = client.post(f"/runs/{run.id}/stop/", follow=True)
    assert "stopped already" in page.content.decode()


def test_the_workers_page_names_only_runs_that_one_may_see(
    client: Client, bob: User, charlie: User, project: Project
) -> None:
    client.force_login(bob)
    post(client, project, name="secret run")
    Lease.objects.update(holder="lab:1:2:x")
    assert "secret run" in client.get("/workers/").content.decode()
    client.force_login(charlie)
    page = client.get("/workers/").content.decode()
    assert "secret run" not in page and "1 run of other projects is going on" in page
