"""A page of another site must not open our sockets with the cookies of a person who visits it."""

from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.http.request import validate_host

DEFAULT_PORTS = {"http": 80, "https": 443}


class SameOriginOnly:
    """Answers 400 for a host that is not ours, 403 unless `Origin` is exactly the scheme, host and port asked for.

    Stricter than Channels' AllowedHostsOriginValidator, which takes every port of an allowed host.
    """

    def __init__(self, application: Any) -> None:
        self.application = application

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        host, origin = headers.get(b"host", ""), headers.get(b"origin", "")
        if not is_our_host(host):
            await refuse(send, 400, f"Host {host!r} is not served here; an admin adds it to RLVIEWER_HOSTS.\n")
        elif not is_same_origin(origin, host):
            await refuse(send, 403, f"Origin {origin!r} is not this site; open the socket from one of its pages.\n")
        else:
            await self.application(scope, receive, send)


def is_our_host(host: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    return validate_host(f"[{name}]" if ":" in name else name, settings.ALLOWED_HOSTS)


def is_same_origin(origin: str, host: str) -> bool:
    try:
        there, here = urlsplit(origin), urlsplit(f"//{host}")
        if there.scheme not in DEFAULT_PORTS or (settings.SECURE_COOKIES and there.scheme != "https"):
            return False
        default = DEFAULT_PORTS[there.scheme]
        return there.hostname is not None and (there.hostname, there.port or default) == (
            here.hostname,
            here.port or default,
        )
    except ValueError:  # a port that is no number
        return False


async def refuse(send: Any, status: int, reason: str) -> None:
    """Answer the handshake with an HTTP status and words."""
    headers = [(b"content-type", b"text/plain; charset=utf-8")]
    await send({"type": "websocket.http.response.start", "status": status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": reason.encode()})
