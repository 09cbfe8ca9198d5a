"""Site admins add people, reset passwords, close accounts, end sessions."""

import re

import pytest
from django.test import Client

from rlviewer.accounts.models import AuditEvent, User
from tests.factories import PASSWORD, make_user


@pytest.fixture
def root(db: None) -> User:
    return make_user("root", is_superuser=True)


@pytest.fixture
def site(client: Client, root: User) -> Client:
    client.force_login(root)
    return client


def shown_password(page: str) -> str:
    found = re.search(r'id="new-password">([^<]+)<', page)
    assert found is not None
    return found.group(1)


def test_a_person_is_added_with_a_password_shown_once(site: Client, root: User) -> None:
    password = shown_password(site.post("/people/add/", {"username": "dora"}).content.decode())
    dora = User.objects.get(username="dora")
    assert dora.check_password(password) and dora.password_is_temporary and not dora.is_superuser
    assert password not in site.get("/people/").content.decode()
    assert AuditEvent.objects.filter(verb="add-person", actor=root, target=f"user:{dora.id}").exists()
    assert password not in str(AuditEvent.objects.values_list("detail", flat=True))


@pytest.mark.parametrize("name", ["root", "ROOT", "two words", "", "x" * 151, "a\x00b"])
def test_a_bad_name_says_so_beside_its_field(site: Client, name: str) -> None:
    page = site.post("/people/add/", {"username": name})
    assert page.status_code == 422
    assert page.context["form"].errors["username"]
    assert User.objects.count() == 1


def test_a_reset_ends_sessions_and_replaces_the_password(site: Client, alice: User) -> None:
    hers = Client()
    hers.force_login(alice)
    password = shown_password(site.post(f"/people/{alice.id}/reset-password/").content.decode())
    alice.refresh_from_db()
    assert alice.check_password(password) and not alice.check_password(PASSWORD)
    assert hers.get("/account/").status_code == 302


def test_a_closed_account_is_out_at_once_and_can_be_opened(site: Client, alice: User) -> None:
    hers = Client()
    hers.force_login(alice)
    site.post(f"/people/{alice.id}/active/", {"active": "0"})
    assert hers.get("/account/").status_code == 302
    assert Client().post("/sign-in/", {"username": "alice", "password": PASSWORD}).status_code == 422
    site.post(f"/people/{alice.id}/active/", {"active": "1"})
    assert Client().post("/sign-in/", {"username": "alice", "password": PASSWORD}).status_code == 302


def test_signing_out_everywhere_raises_the_generation(site: Client, alice: User) -> None:
    hers = Client()
    hers.force_login(alice)
    site.post(f"/people/{alice.id}/sign-out/")
    alice.refresh_from_db()
    assert alice.session_generation == 1
    assert hers.get("/account/").status_code == 302


def test_no_admin_shuts_themselves_out(site: Client, root: User) -> None:
    for action in ("active", "reset-password", "sign-out"):
        assert site.post(f"/people/{root.id}/{action}/", {"active": "0"}).status_code == 404
    root.refresh_from_db()
    assert root.is_active


def test_the_page_costs_the_same_for_many_people(site: Client, django_assert_max_num_queries: object) -> None:
    for number in range(20):
        make_user(f"person{number}")
    with django_assert_max_num_queries(4):
        assert site.get("/people/").status_code == 200
