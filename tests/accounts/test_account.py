"""One's own account: password, sessions, tokens."""

import re

from django.test import Client

from rlviewer.accounts.models import ApiToken, AuditEvent, User, token_digest
from tests.factories import PASSWORD

NEW = "a longer and better one"


def test_a_new_password_ends_the_other_sessions_and_keeps_this_one(alice: User) -> None:
    here, elsewhere = Client(), Client()
    for client in (here, elsewhere):
        client.force_login(alice)
    answer = here.post("/account/password/", {"old": PASSWORD, "new": NEW})
    assert answer["Location"] == "/account/"
    assert here.get("/account/").status_code == 200
    assert elsewhere.get("/account/").status_code == 302
    alice.refresh_from_db()
    assert alice.check_password(NEW) and not alice.password_is_temporary


def test_who_replaced_the_one_time_password_goes_on_to_the_work(client: Client, alice: User) -> None:
    User.objects.filter(pk=alice.pk).update(password_is_temporary=True)
    client.force_login(alice)
    assert client.post("/account/password/", {"old": PASSWORD, "new": NEW})["Location"] == "/"


def test_errors_of_the_password_stand_beside_their_fields(client: Client, alice: User) -> None:
    client.force_login(alice)
    page = client.post("/account/password/", {"old": "wrong", "new": "short"})
    assert page.status_code == 422
    form = page.context["password_form"]
    assert "present password" in form.errors["old"][0]
    assert "10 characters" in form.errors["new"][0]
    alice.refresh_from_db()
    assert alice.check_password(PASSWORD)


def test_sign_out_everywhere_else(alice: User) -> None:
    here, elsewhere = Client(), Client()
    for client in (here, elsewhere):
        client.force_login(alice)
    here.post("/account/sign-out-everywhere/")
    assert here.get("/account/").status_code == 200
    assert elsewhere.get("/account/").status_code == 302


def test_a_token_is_shown_once_and_only_its_digest_is_kept(client: Client, alice: User) -> None:
    client.force_login(alice)
    page = client.post("/account/tokens/", {"name": "notebook"}).content.decode()
    plain = re.search(r"rlv_[\w-]{40,}", page)
    assert plain is not None
    assert ApiToken.objects.get().digest == token_digest(plain.group())
    assert plain.group() not in client.get("/account/").content.decode()
    assert AuditEvent.objects.filter(verb="create-token", actor=alice).exists()


def test_only_the_owner_revokes_a_token(client: Client, alice: User, bob: User) -> None:
    token, _ = ApiToken.issue(alice, "notebook")
    client.force_login(bob)
    assert client.post(f"/account/tokens/{token.id}/revoke/").status_code == 404
    client.force_login(alice)
    assert client.post(f"/account/tokens/{token.id}/revoke/").status_code == 302
    assert not ApiToken.objects.exists()


def test_a_token_needs_a_name(client: Client, alice: User) -> None:
    client.force_login(alice)
    assert client.post("/account/tokens/", {"name": " "}).status_code == 422
