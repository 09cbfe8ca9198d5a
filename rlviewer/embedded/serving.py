"""The address to serve at, and what must be true before other machines may reach it."""

import ipaddress
from dataclasses import dataclass

from django.core.exceptions import ImproperlyConfigured

from rlviewer.env import env_int, env_list, env_str

SECRET_LENGTH = 32


@dataclass(frozen=True)
class Address:
    host: str
    port: int

    @property
    def url(self) -> str:
        """For a person on this machine."""
        unspecified = self.host in {"0.0.0.0", "::"}  # noqa: S104
        host = "127.0.0.1" if unspecified else self.host
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def address_from_environment() -> Address:
    return Address(env_str("RLVIEWER_BIND") or "127.0.0.1", env_int("RLVIEWER_PORT", 8000, low=1, high=65535))


def refuse_unsafe(address: Address, secret: str) -> None:
    """Other machines may come only to a site that has a secret of its own and knows its names.

    Raises:
        ImproperlyConfigured: which variable is missing.
    """
    if is_loopback(address.host):
        return
    where = f"RLVIEWER_BIND={address.host} lets other machines in"
    if len(secret) < SECRET_LENGTH:
        raise ImproperlyConfigured(
            f"{where}, which needs a secret of at least {SECRET_LENGTH} characters: set RLVIEWER_SECRET_KEY"
        )
    if not env_list("RLVIEWER_HOSTS", []):
        raise ImproperlyConfigured(f"{where}, which needs the names people use for it: set RLVIEWER_HOSTS=host,host")
