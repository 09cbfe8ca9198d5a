"""Guessing passwords is slow: failed sign-ins are counted in Postgres, by address and by name at that address."""

import hashlib
from datetime import timedelta

from django.utils import timezone

from rlviewer.accounts.models import SignInFailure

WINDOW = timedelta(minutes=15)
LIMIT_NAME = 5  # failures of one name from one address
LIMIT_ADDRESS = 50  # failures of all names from one address; a team behind one proxy shares it


def _keys(username: str, address: str) -> dict[str, int]:
    def digest(text: str) -> str:
        return hashlib.sha256(text.encode()).hexdigest()

    return {digest(f"{username.lower()}\n{address}"): LIMIT_NAME, digest(address): LIMIT_ADDRESS}


def may_try(username: str, address: str) -> bool:
    """Count one attempt and say whether it may go on; call `succeeded` when it was right.

    The attempt is stored before the password is checked, so a burst of parallel guesses counts in full.
    """
    since = timezone.now() - WINDOW
    SignInFailure.objects.filter(at__lt=since).delete()
    keys = _keys(username, address)
    SignInFailure.objects.bulk_create([SignInFailure(key=key) for key in keys])
    return all(SignInFailure.objects.filter(key=key, at__gte=since).count() <= limit for key, limit in keys.items())


def succeeded(username: str, address: str) -> None:
    """Forget the failures of this name; of the address only the one that was no failure."""
    by_name, by_address = _keys(username, address)
    SignInFailure.objects.filter(key=by_name).delete()
    newest = SignInFailure.objects.filter(key=by_address).order_by("-id").values("id")[:1]
    SignInFailure.objects.filter(id__in=newest).delete()
