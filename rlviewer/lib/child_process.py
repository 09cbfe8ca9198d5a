"""A process of our own that answers requests on its standard input: no memory is held when nobody asks."""

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Self

from rlviewer.lib.child import outside_environment

TICK_SECONDS = 0.5
PIPE_BYTES = 65_536


class ChildProcessError(RuntimeError):
    """The process failed; the message is for the person who asked."""


class ChildProcess:
    """Use it with `with`: the process ends with it. It also ends when this process dies, as its input does.

    `is_sound` says whether it can be asked again: not once it died or somebody left in the midst of an answer.
    """

    def __init__(self, module: str, *, folder: Path, title: str, answer_seconds: float) -> None:
        self._title, self._answer_seconds = title, answer_seconds
        # What it says on standard error.
        self._words = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            cwd=folder,
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

    def exchange(
        self, request: bytes, size_of: Callable[[bytearray], int | None], *, tick: Callable[[], None]
    ) -> bytes:
        """The answer to a request. `tick` is called first and about twice a second; what it raises ends the waiting.

        Args:
            size_of: of the beginning of an answer, how many bytes the whole has; None: more is needed to tell.
        Raises:
            ChildProcessError: the process died or does not answer.
        """
        tick()
        if not self.is_sound:
            raise ChildProcessError(f"{self._title} was left in the midst of an answer")
        self.is_sound = False
        answer = self._exchange(request, size_of, tick)
        self.is_sound = True
        return answer

    def _exchange(self, request: bytes, size_of: Callable[[bytearray], int | None], tick: Callable[[], None]) -> bytes:
        unsent, answer = memoryview(request), bytearray()
        now = time.monotonic()
        deadline, next_tick = now + self._answer_seconds, now + TICK_SECONDS
        with selectors.DefaultSelector() as selector:
            selector.register(_open(self._input), selectors.EVENT_WRITE)
            selector.register(_open(self._output), selectors.EVENT_READ)
            while (size := size_of(answer)) is None or len(answer) < size:
                for key, _ in selector.select(TICK_SECONDS):
                    if key.fileobj is self._output:
                        data = os.read(key.fd, PIPE_BYTES)
                        if not data:
                            raise ChildProcessError(self._how_it_ended())
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
                    raise ChildProcessError(f"{self._title} gave no answer for {self._answer_seconds:g} s")
        return bytes(answer)

    def _how_it_ended(self) -> str:
        code = self._process.wait(10)
        if code < 0:
            why = f"was killed by signal {-code}{', probably out of memory' if code == -signal.SIGKILL else ''}"
            return f"{self._title} {why}"
        self._words.seek(0)
        lines = self._words.read().decode("utf-8", "replace").replace("\0", "").split("\n")
        last = next((line.strip()[:300] for line in reversed(lines) if line.strip()), "without saying why")
        return f"{self._title} ended with code {code}: {last}"

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
