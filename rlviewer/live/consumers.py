"""One open socket: checks access, says where the topic stands, then forwards frames. What a client sends is ignored."""

import asyncio
import contextlib
from typing import Any

from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer

from rlviewer.accounts.models import Project, User
from rlviewer.live.relay import Mailbox, frame, relay
from rlviewer.outbox.services import current_seq
from rlviewer.runs.models import Run

SIGNED_OUT = 4403
NOT_FOUND = 4404
# A page that hears nothing for longer than this, and some, knows that its connection is dead.
BEAT_SECONDS = 25


@database_sync_to_async
def find_topic(user: User, kind: str, pk: int) -> tuple[int, int] | None:
    """Project and newest number of the topic if this person may see it. The number first: a change after it is sent."""
    seq = current_seq(f"{kind}:{pk}")
    if kind == "run":
        project_id = Run.objects.visible_to(user).filter(pk=pk).values_list("project_id", flat=True).first()
    else:
        project_id = Project.objects.visible_to(user).filter(pk=pk).values_list("pk", flat=True).first()
    return None if project_id is None else (project_id, seq)


class LiveConsumer(AsyncWebsocketConsumer):
    """For members of the project, viewers included."""

    mailbox: Mailbox | None = None
    forwarding: asyncio.Task[None] | None = None

    async def connect(self) -> None:
        kind, pk = (self.scope["url_route"]["kwargs"][name] for name in ("kind", "pk"))
        user = self.scope["user"]
        # Accepted before it is refused, so that the page learns the reason and stops asking.
        await self.accept()
        if not user.is_authenticated:
            await self.close(SIGNED_OUT)
            return
        found = await find_topic(user, kind, pk)
        if found is None:
            await self.close(NOT_FOUND)
            return
        project_id, seq = found
        self.mailbox = Mailbox(f"{kind}:{pk}", project_id, user.pk, self.scope["session"].session_key, seq)
        relay.subscribe(self.mailbox)
        self.forwarding = asyncio.create_task(self.forward(self.mailbox))

    async def forward(self, mailbox: Mailbox) -> None:
        # The transport's buffer is bounded: sending to a slow client waits here, while its mailbox stays small.
        await self.send(frame(mailbox.topic, mailbox.seq, "hello"))
        while True:
            try:
                async with asyncio.timeout(BEAT_SECONDS):
                    text = await mailbox.next()
            except TimeoutError:
                text = frame(mailbox.topic, mailbox.seq, "beat")
            if text is None:
                await self.close(SIGNED_OUT)
                return
            await self.send(text)

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        """Nothing to say to us; the server's size limit has already closed on anything big."""

    async def disconnect(self, code: int) -> None:
        if self.mailbox is not None:
            relay.unsubscribe(self.mailbox)
        if self.forwarding is not None:
            self.forwarding.cancel()
            # A client that went away mid-send ends the task with an error of the server's own kind.
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await self.forwarding


class NowhereConsumer(AsyncWebsocketConsumer):
    async def websocket_connect(self, message: dict[str, Any]) -> None:
        await self.close()
