"""The process that works over stored steps, as the worker asks it."""

from collections.abc import Callable, Mapping
from typing import Any

from django.conf import settings

from rlviewer.lib.child_process import ChildProcess
from training.replay_frames import frame_size, pack_frame, unpack_frame

ANSWER_SECONDS = 120.0  # for one recipe of one step, on a machine that trains


class Refused(RuntimeError):
    """The process has an answer that is none; the message is for the person who asked."""


class Replayer(ChildProcess):
    """Use it with `with`. It keeps the step of the last question: `holds` says which."""

    def __init__(self) -> None:
        super().__init__(
            "training.replay", folder=settings.BASE_DIR, title="the replay process", answer_seconds=ANSWER_SECONDS
        )
        self.holds = ""

    def replay(
        self, key: str, request: Mapping[str, Any], body: Callable[[], tuple[bytes, bytes]], *, tick: Callable[[], None]
    ) -> tuple[dict[str, Any], bytes]:
        """What the process answers to `request` about the step of that `key`.

        Args:
            body: gives the step's batch file and its run's vocabulary; asked where the process has another step.

        Raises:
            Refused: the step or the question cannot be worked with.
            ChildProcessError: the process died or does not answer.
        """
        batch, pieces = (b"", b"") if self.holds == key else body()
        self.holds = ""
        header = {"key": key, "batch_bytes": len(batch), **request}
        told, answer = unpack_frame(self.exchange(pack_frame(header, batch + pieces), frame_size, tick=tick))
        if "error" in told:
            raise Refused(told["error"])
        self.holds = key
        return told, answer
