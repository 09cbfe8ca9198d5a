"""The web process: `python -m rlviewer.embedded.web` serves pages, API and websockets with uvicorn.

Started by `make run`, it gets a socket that already listens and a channel to say when it serves; on its own (as in
docker-compose.yml) it binds RLVIEWER_BIND:RLVIEWER_PORT.
"""

import argparse
import gc
import os
import socket
import sys

import uvicorn
from django.core.exceptions import ImproperlyConfigured
from django.urls import get_resolver

from rlviewer.embedded.serving import address_from_environment, refuse_unsafe

# Pages send nothing over a websocket; a big or compressed frame can only be an attack.
WEBSOCKET_LIMIT_BYTES = 64 * 1024


class AnnouncingServer(uvicorn.Server):
    """Waits for "go" on `channel` before it accepts, then says "up" on it."""

    channel: socket.socket | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        # Imports every view now, not in the first request.
        get_resolver().url_patterns  # noqa: B018
        if self.channel is not None and self.channel.recv(2) != b"go":
            sys.exit("told to stop before the database was ready")
        # What is loaded stays: no collection of garbage, in the middle of a request, need walk it again.
        gc.collect()
        gc.freeze()
        await super().startup(sockets=sockets)
        if self.channel is not None and self.started:
            self.channel.sendall(b"up")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--listen-fd", type=int, help="a socket that already listens")
    parser.add_argument("--channel-fd", type=int, help="where to read go from and to write up to")
    args = parser.parse_args()

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "rlviewer.settings")
    # numpy's matrices are small here. Beside a training its threads wait for each other longer than they compute.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from django.conf import settings

    address = address_from_environment()
    try:
        refuse_unsafe(address, settings.SECRET_KEY)
    except ImproperlyConfigured as error:
        sys.exit(str(error))
    server = AnnouncingServer(
        uvicorn.Config(
            "rlviewer.asgi:application",
            host=address.host,
            port=address.port,
            log_level="warning",
            access_log=False,
            lifespan="off",
            server_header=False,
            ws_max_size=WEBSOCKET_LIMIT_BYTES,
            ws_per_message_deflate=False,
            timeout_graceful_shutdown=2,
        )
    )
    if args.channel_fd is not None:
        server.channel = socket.socket(fileno=args.channel_fd)
    server.run(sockets=None if args.listen_fd is None else [socket.socket(fileno=args.listen_fd)])
    sys.exit(0 if server.started else 1)


if __name__ == "__main__":
    main()
