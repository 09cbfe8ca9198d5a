"""Every address, every method, every role: what has no row here fails. Deny is the rule, a row is the exception."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from django.db import transaction
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver, reverse

from rlviewer.accounts.models import ApiToken, Member, Project, Role, User
from rlviewer.analysis import jobs
from rlviewer.ingest.services import store_batch
from rlviewer.review.services import Said, add_label
from rlviewer.runs.models import Group, Prompt, Rollout
from rlviewer.sweeps.services import launch_sweep
from rlviewer.watch.services import Wanted, create_search
from tests.factories import make_batch, make_run, make_user
from tests.sweeps.conftest import make_spec

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")
# From the least to the most that one may be.
PEOPLE = ("anonymous", "stranger", "viewer", "member", "admin", "root")


@dataclass(frozen=True)
class Row:
    """Which arguments the address takes, and the least that may use each method; other methods are nobody's."""

    methods: dict[str, str]
    args: tuple[str, ...] = ()
    is_api: bool = False


def read(least: str, *args: str, **extra: Any) -> Row:
    return Row({"GET": least}, args, **extra)


def write(least: str, *args: str, **extra: Any) -> Row:
    return Row({"POST": least}, args, **extra)


def api(least: str, *args: str) -> Row:
    return Row({"GET": least}, args, is_api=True)


TABLE: dict[str, Row] = {
    "healthz": Row({"GET": "anonymous"}),
    "sign-in": Row({"GET": "anonymous", "POST": "anonymous"}),
    "sign-out": write("anonymous"),
    "home": read("stranger"),
    "go": read("stranger"),
    "workers": read("stranger"),
    "demo-launch": write("stranger"),
    "account": read("stranger"),
    "account-password": write("stranger"),
    "account-sign-out": write("stranger"),
    "token-create": write("stranger"),
    "token-revoke": write("root", "token"),  # the token is root's
    "project-create": Row({"GET": "stranger", "POST": "stranger"}),
    "people": read("root"),
    "person-add": write("root"),
    "person-reset": write("root", "person"),
    "person-sign-out": write("root", "person"),
    "person-active": write("root", "person"),
    "audit": read("root"),
    "styleguide": read("root"),
    "run-list": read("viewer", "project"),
    "project-members": read("viewer", "project"),
    "project-audit": read("viewer", "project"),
    "member-set": write("admin", "project"),
    "member-remove": write("admin", "project", "membership"),
    "algorithms": read("viewer", "project"),
    "runs-compared": read("viewer", "project"),
    "algorithm-detail": read("viewer", "project", "algorithm"),
    "run-launch": Row({"GET": "member", "POST": "member"}, ("project",)),
    "sweep-list": read("viewer", "project"),
    "sweep-launch": Row({"GET": "member", "POST": "member"}, ("project",)),
    "sweep-detail": read("viewer", "sweep"),
    "sweep-edit": Row({"GET": "member", "POST": "member"}, ("sweep",)),
    "sweep-pause": write("member", "sweep"),
    "sweep-resume": write("member", "sweep"),
    "sweep-stop": write("member", "sweep"),
    "run-detail": read("viewer", "run"),
    "run-curves": read("viewer", "run"),
    "run-overlay": read("viewer", "run"),
    "run-rename": write("member", "run"),
    "run-tags": write("member", "run"),
    "run-stop": write("member", "run"),
    "run-pause": write("member", "run"),
    "run-continue": write("member", "run"),
    "run-resume": write("member", "run"),
    "step-detail": read("viewer", "run", "split", "index"),
    "group-detail": read("viewer", "group"),
    "prompt-detail": read("viewer", "prompt"),
    "run-prompts": read("viewer", "run"),
    "signal": read("viewer", "run"),
    "signal-page": read("viewer", "run", "signal"),
    "signal-prompts": read("viewer", "run", "prompt_list"),
    "counterfactual": read("viewer", "run"),
    "counterfactual-ask": write("member", "run"),
    "rescore": read("viewer", "run"),
    "rescore-ask": write("member", "run"),
    "project-rewards": read("viewer", "project"),
    "reward-note": write("member", "project"),
    "rollout-list": read("viewer", "run"),
    "project-rollouts": read("viewer", "project"),
    "run-rollouts-export": read("viewer", "run", "export"),
    "project-rollouts-export": read("viewer", "project", "export"),
    "rollout-preview": read("viewer", "rollout"),
    "run-clusters": read("viewer", "run"),
    "project-clusters": read("viewer", "project"),
    "run-embed": write("member", "run"),
    "project-embed": write("member", "project"),
    "embedding-stop": write("member", "job"),
    "rollout-similar": Row({"GET": "viewer", "POST": "member"}, ("rollout",)),
    "rollout-compare": read("stranger"),
    "rollout-columns": write("stranger"),
    "rollout-detail": read("viewer", "rollout"),
    "rollout-part": read("viewer", "rollout", "part"),
    "rollout-raw": read("viewer", "rollout", "what"),
    "rollout-labels": read("viewer", "rollout"),
    "label-add": write("member", "rollout"),
    "label-edit": write("member", "label"),
    "label-remove": write("member", "label"),
    "project-labels": read("viewer", "project"),
    "label-name-add": write("member", "project"),
    "label-name-change": write("member", "project"),
    "project-searches": read("viewer", "project"),
    "search-create": write("member", "project"),
    "suspect-save": write("member", "project"),
    "search-detail": read("viewer", "search"),
    "search-edit": write("member", "search"),
    "search-archive": write("member", "search"),
    "search-csv": read("viewer", "search"),
    "run-alarms": read("viewer", "run"),
    # A fixed document, the same for every method.
    "api:openapi-json": Row(dict.fromkeys(METHODS, "anonymous"), is_api=True),
    "api:api-root": Row({}, is_api=True),
    "api:me": api("stranger"),
    "api:project_list": api("stranger"),
    "api:run_list": api("stranger"),
    "api:run_detail": api("viewer", "run"),
    "api:step_list": api("viewer", "run"),
    "api:metric_list": api("viewer", "run"),
    "api:rollout_list": api("viewer", "run"),
    "api:rollouts_arrow": api("viewer", "run"),
    "api:rollout_detail": api("viewer", "rollout"),
}


def every_name(resolver: URLResolver, spaces: tuple[str, ...] = ()) -> Iterator[str]:
    for entry in resolver.url_patterns:
        if isinstance(entry, URLPattern):
            yield ":".join((*spaces, entry.name or str(entry.pattern)))
        else:
            yield from every_name(entry, (*spaces, entry.namespace) if entry.namespace else spaces)


@dataclass(frozen=True)
class World:
    people: dict[str, User]
    args: dict[str, Any]

    def url(self, name: str) -> str:
        return reverse(name, args=[self.args[arg] for arg in TABLE[name].args])

    def client(self, who: str, **options: Any) -> Client:
        client = Client(raise_request_exception=False, **options)
        if who != "anonymous":
            client.force_login(self.people[who])
        return client


@pytest.fixture
def world(project: Project, alice: User, bob: User, charlie: User) -> World:
    viewer, root = make_user("vera"), make_user("root", is_superuser=True)
    membership = Member.objects.create(project=project, user=viewer, role=Role.VIEWER)
    run = make_run(project)
    store_batch(make_batch(run, groups=2, group_size=2, tokens=4), source="test")
    token, _ = ApiToken.issue(root, "token")
    label = add_label(bob, Rollout.objects.all()[0], Said(note="odd"))
    people = {"stranger": charlie, "viewer": viewer, "member": bob, "admin": alice, "root": root}
    args = {
        "project": project.id,
        "run": run.id,
        "rollout": Rollout.objects.values_list("id", flat=True)[0],
        "group": Group.objects.values_list("id", flat=True)[0],
        "prompt": Prompt.objects.values_list("id", flat=True)[0],
        "membership": membership.id,
        "person": charlie.id,
        "token": token.id,
        "label": label.id,
        "search": create_search(bob, project, Wanted("odd", "odd")).id,
        "sweep": launch_sweep(bob, project, make_spec()).pk,
        "split": "train",
        "index": 0,
        "export": "csv",
        "what": "text",
        "part": "turns",
        "job": jobs.ask_rollouts(bob, project, run, "").pk,
        "signal": "dead-groups",
        "algorithm": "grpo",
        "prompt_list": "drop",
    }
    return World(people, args)


def outcome(client: Client, method: str, url: str) -> str:
    """What happened, in one word; everything that was written is undone."""
    cookies = client.cookies.copy()
    with transaction.atomic():
        answer = client.generic(method, url)
        transaction.set_rollback(True)
    client.cookies = cookies
    location = answer.headers.get("Location", "")
    if answer.status_code == 302 and location.startswith("/sign-in/?next="):
        return "sign in"
    return (
        str(answer.status_code) if answer.status_code in {401, 403, 404, 405} or answer.status_code >= 500 else "let in"
    )


def expected(row: Row, who: str, method: str) -> set[str]:
    least = row.methods.get(method)
    if least is None:
        # Not a method of this address; whether that is said before or after asking who it is does not matter.
        return {"405", "401", "404"} if row.is_api else {"405", "sign in", "404"}
    if PEOPLE.index(who) >= PEOPLE.index(least):
        return {"let in"}
    if who == "anonymous":
        return {"401"} if row.is_api else {"sign in"}
    is_insider = least in {"member", "admin"} and who != "stranger"
    return {"403"} if is_insider else {"404"}


def test_every_address_has_a_row() -> None:
    assert set(every_name(get_resolver())) == set(TABLE)


@pytest.mark.parametrize("name", TABLE)
def test_incident_s4_each_method_of_each_address_for_each_role(name: str, world: World) -> None:
    row, url = TABLE[name], world.url(name)
    clients = {who: world.client(who) for who in PEOPLE}
    wrong = [
        f"{method} {url} as {who}: {got}, expected {' or '.join(sorted(right))}"
        for who, client in clients.items()
        # A method that is nobody's is tried by the ends of the scale.
        for method in (METHODS if who in {"anonymous", "root"} else row.methods)
        if (got := outcome(client, method, url)) not in (right := expected(row, who, method))
    ]
    assert not wrong


@pytest.mark.parametrize("name", [name for name, row in TABLE.items() if "POST" in row.methods and not row.is_api])
def test_incident_s6_a_post_without_its_token_is_refused(name: str, world: World) -> None:
    answer = world.client("root", enforce_csrf_checks=True).post(world.url(name))
    assert answer.status_code == 403 and b"too old to send from" in answer.content


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "localhost:80@evil.example"]
)
@pytest.mark.parametrize("name", ["home", "sign-in", "run-detail", "api:run_list"])
def test_incident_s6_a_foreign_host_is_refused(name: str, host: str, world: World) -> None:
    assert world.client("root").get(world.url(name), headers={"Host": host}).status_code == 400


@pytest.mark.parametrize(
    "name", [n for n, row in TABLE.items() if {"project", "run", "rollout", "group", "prompt"} & set(row.args)]
)
def test_incident_s8_anothers_and_a_missing_thing_look_the_same(name: str, world: World) -> None:
    row, client = TABLE[name], world.client("stranger")
    missing = World(
        world.people, world.args | dict.fromkeys(("project", "run", "rollout", "group", "prompt"), 987654321)
    )
    for method in row.methods:
        theirs, nothing = client.generic(method, world.url(name)), client.generic(method, missing.url(name))
        assert theirs.status_code == nothing.status_code == 404
        # The API repeats the number that was asked for; nothing else may differ.
        assert re.sub(rb"[0-9]+", b"N", theirs.content) == re.sub(rb"[0-9]+", b"N", nothing.content)


@pytest.mark.parametrize("number", ["0", "9223372036854775808", "99999999999999999999999999"])
@pytest.mark.parametrize(
    "path",
    [
        "/projects/{}/",
        "/runs/{}/",
        "/rollouts/{}/",
        "/groups/{}/",
        "/prompts/{}/",
        "/projects/{}/launch/",
        "/runs/{}/steps/train/{}/",
    ],
)
def test_numbers_beyond_every_row_are_404(path: str, number: str, world: World) -> None:
    assert world.client("root").get(path.format(number, number)).status_code == 404


@pytest.mark.parametrize(
    "name", ["home", "sign-in", "run-list", "run-detail", "rollout-detail", "run-launch", "people"]
)
def test_pages_keep_the_strict_policy(name: str, world: World) -> None:
    answer = world.client("root").get(world.url(name), follow=True)
    policy, page = answer["Content-Security-Policy"], answer.content.decode()
    assert "unsafe" not in policy and "script-src 'self'" in policy and "default-src 'none'" in policy
    assert " style=" not in page and "<style" not in page and " onclick=" not in page
    assert all(
        " src=" in tag for tag in page.split("<script")[1:] if 'type="application/json"' not in tag.split(">")[0]
    )
