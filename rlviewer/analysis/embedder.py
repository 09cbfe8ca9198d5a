"""The sentence model as a child process of the worker: texts in, vectors out, no memory held between jobs."""

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import IO, Self

from django.conf import settings

from rlviewer.analysis.vectors import Embedded
from rlviewer.lib.child import outside_environment
from training.sentences import RECORD_BYTES, pack_request

ANSWER_SECONDS = 180.0  # for loading the model and one request, on a machine that trains
TICK_SECONDS = 0.5
PIPE_BYTES = 65_536


class EmbedderError(RuntimeError):
    """The process failed; the message is for the person who asked."""


class Embedder:
    """Use it with `with`: the process ends with it. It also ends when this process dies, as its input does.

    `is_sound` says whether it can be asked again: not once it died or somebody left in the midst of an answer.
    """

    def __init__(self) -> None:
        # What it says on standard error.
        self._words = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-m", "training.embed"],
            cwd=settings.BASE_DIR,
            env=outside_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._words,
            start_new_session=True,
        )
        self._input, self._output = self._process.stdin, self._process.stdout
        assert self._input is not None and self._output is not None
        self.is_sound = True
        os.set_blocking(self._input.fileno(), False)

    @property
    def pid(self) -> int:
        return self._process.pid

    def embed(self, texts: Sequence[str], *, tick: Callable[[], None]) -> list[Embedded]:
        """One answer a text. `tick` is called first and about twice a second while it waits; what it raises ends the waiting.

        Raises:
            EmbedderError: the process died or does not answer.
        """
        tick()
        if not self.is_sound:
            raise EmbedderError("the embedding process was left in the midst of an answer")
        self.is_sound = False
        answer = self._exchange(pack_request(texts), RECORD_BYTES * len(texts), tick)
        self.is_sound = True
        records = (answer[at : at + RECORD_BYTES] for at in range(0, len(answer), RECORD_BYTES))
        return [Embedded(record[1:], bool(record[0])) for record in records]

    def _exchange(self, request: bytes, expected: int, tick: Callable[[], None]) -> bytes:
        unsent, answer = memoryview(request), bytearray()
        now = time.monotonic()
        deadline, next_tick = now + ANSWER_SECONDS, now + TICK_SECONDS
        with selectors.DefaultSelector() as selector:
            selector.register(_open(self._input), selectors.EVENT_WRITE)
            selector.register(_open(self._output), selectors.EVENT_READ)
            while len(answer) < expected:
                for key, _ in selector.select(TICK_SECONDS):
                    if key.fileobj is self._output:
                        data = os.read(key.fd, PIPE_BYTES)
                        if not data:
                            raise EmbedderError(self._how_it_ended())
                        answer += data
                        continue
                    with contextlib.suppress(BrokenPipeError):  # the read says why
                        unsent = unsent[os.write(key.fd, unsent[:PIPE_BYTES]) :]
                        if unsent:
                            continue
                    selector.unregister(key.fileobj)
                now = time.monotonic()
                if now >= next_tick:
                    next_tick = now + TICK_SECONDS
                    tick()
                if now > deadline:
                    raise EmbedderError(f"the embedding process gave no answer for {ANSWER_SECONDS:g} s")
        return bytes(answer)

    def _how_it_ended(self) -> str:
        code = self._process.wait(10)
        if code < 0:
            why = f"was killed by signal {-code}{', probably out of memory' if code == -signal.SIGKILL else ''}"
            return f"the embedding process {why}"
        self._words.seek(0)
        lines = self._words.read().decode("utf-8", "replace").replace("\0", "").split("\n")
        last = next((line.strip()[:300] for line in reversed(lines) if line.strip()), "without saying why")
        return f"the embedding process ended with code {code}: {last}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)  # not reaped, so the number is still its own
        for pipe in (self._input, self._output):
            with contextlib.suppress(OSError):
                _open(pipe).close()
        self._process.wait()
        self._words.close()


def _open(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe
