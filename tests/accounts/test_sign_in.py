"""Signing in and out: what is wrong is not said, guessing is slow, sessions end when they should."""

import pytest
from django.test import Client

from rlviewer.accounts import throttle
from rlviewer.accounts.models import SignInFailure, User
from rlviewer.accounts.views import REFUSED, TOO_MANY
from tests.factories import PASSWORD, make_user


def sign_in(client: Client, name: str, password: str, **extra: str) -> object:
    return client.post("/sign-in/", {"username": name, "password": password, **extra})


def test_signs_in_and_goes_where_the_person_wanted(client: Client, alice: User) -> None:
    answer = sign_in(client, "alice", PASSWORD, next="/workers/")
    assert answer.status_code == 302 and answer["Location"] == "/workers/"
    assert client.get("/account/").status_code == 200


@pytest.mark.parametrize(
    "elsewhere", ["https://evil.example/", "//evil.example/", "javascript:alert(1)", "\\\\evil.example"]
)
def test_never_leads_to_another_site(client: Client, alice: User, elsewhere: str) -> None:
    assert sign_in(client, "alice", PASSWORD, next=elsewhere)["Location"] == "/"


def test_wrong_name_wrong_password_and_closed_account_look_the_same(client: Client, alice: User) -> None:
    make_user("closed", is_active=False)
    pages = [
        sign_in(client, name, password).content.decode()
        for name, password in [("alice", "wrong"), ("nobody", PASSWORD), ("closed", PASSWORD)]
    ]
    assert all(REFUSED in page for page in pages)
    assert (
        len({page.replace(name, "NAME") for page, name in zip(pages, ["alice", "nobody", "closed"], strict=True)}) <= 3
    )
    assert SignInFailure.objects.count() == 6


def test_after_five_failures_even_the_right_password_waits(client: Client, alice: User) -> None:
    for _ in range(throttle.LIMIT_NAME):
        assert sign_in(client, "alice", "wrong").status_code == 422
    blocked = sign_in(client, "ALICE", PASSWORD)
    assert blocked.status_code == 429 and TOO_MANY in blocked.content.decode()


def test_a_right_password_clears_the_count(client: Client, alice: User) -> None:
    for _ in range(throttle.LIMIT_NAME - 1):
        sign_in(client, "alice", "wrong")
    assert sign_in(client, "alice", PASSWORD).status_code == 302
    # The address keeps its four failures, the name starts anew.
    assert SignInFailure.objects.count() == throttle.LIMIT_NAME - 1


def test_many_names_from_one_address_are_stopped_too(client: Client, alice: User) -> None:
    for number in range(throttle.LIMIT_ADDRESS):
        throttle.may_try(f"guess{number}", "127.0.0.1")
    assert sign_in(client, "alice", PASSWORD).status_code == 429


def test_failures_are_forgotten_after_a_quarter_of_an_hour(client: Client, alice: User) -> None:
    for _ in range(throttle.LIMIT_NAME + 1):
        sign_in(client, "alice", "wrong")
    for failure in SignInFailure.objects.all():
        SignInFailure.objects.filter(pk=failure.pk).update(at=failure.at - throttle.WINDOW)
    assert sign_in(client, "alice", PASSWORD).status_code == 302


def test_hostile_names_are_only_wrong(client: Client, db: None) -> None:
    for name in ["a\x00b", "\ud800", "x" * 151, "", "'; DROP TABLE users; --"]:
        assert sign_in(client, name.encode("utf-8", "replace").decode(), "x").status_code in {422, 429}


def test_sign_out_needs_a_post(client: Client, alice: User) -> None:
    client.force_login(alice)
    page = client.get("/sign-out/")
    assert page.status_code == 405 and "Nothing was done" in page.content.decode() and page["Allow"] == "POST"
    assert "Content-Security-Policy" in page.headers
    assert client.post("/sign-out/")["Location"] == "/sign-in/"
    assert client.get("/account/").status_code == 302


def test_a_one_time_password_leads_to_choosing_an_own_one(client: Client, db: None) -> None:
    make_user("dora", password_is_temporary=True)
    assert sign_in(client, "dora", PASSWORD)["Location"] == "/account/"
    assert "Choose your own password" in client.get("/account/").content.decode()
