"""Who calls the API: the person behind a token, or the person signed in to the browser."""

from datetime import timedelta

from django.http import HttpRequest
from django.utils import timezone
from ninja.errors import HttpError
from ninja.security.base import AuthBase

from rlviewer.accounts.models import ApiToken, User, token_digest

HOW = "send the header `Authorization: Bearer rlv_...` with a token from your account page"
# One write a minute and token is enough to see that it is in use.
USE_NOTED_EVERY = timedelta(minutes=1)


class ApiRequest(HttpRequest):
    """What a call behind `TokenOrSession` gets."""

    auth: User


class TokenOrSession(AuthBase):
    """Any active person. What they may see is decided by each call, from `visible_to`."""

    openapi_type = "http"
    openapi_scheme = "bearer"

    def __call__(self, request: HttpRequest) -> User:
        header = request.headers.get("Authorization")
        if header is not None:
            return person_of_token(header)
        if request.user.is_authenticated:
            return request.user
        raise HttpError(401, f"You are not signed in: {HOW}.")


def person_of_token(header: str) -> User:
    scheme, _, plain = header.partition(" ")
    if scheme.lower() != "bearer":
        raise HttpError(401, f"Authorization scheme {scheme[:20]!r} is not known here: {HOW}.")
    token = ApiToken.objects.select_related("user").filter(digest=token_digest(plain.strip())).first()
    if token is None:
        raise HttpError(401, f"This token is not known, or was revoked: {HOW}.")
    if not token.user.is_active:
        raise HttpError(403, f"{token.user.get_username()} is deactivated; an admin of the site can undo that.")
    now = timezone.now()
    if token.last_used_at is None or token.last_used_at < now - USE_NOTED_EVERY:
        ApiToken.objects.filter(pk=token.pk).update(last_used_at=now)
    return token.user
