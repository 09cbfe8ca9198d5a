"""A vLLM server that ends with the trainer that started it, however that ends. Both ends of the pipe between them."""

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

PROJECT = Path(__file__).parents[2]
START_SECONDS = 1800


class ServerFailed(RuntimeError):
    """The server ended, or never became ready: says its last error and where its log is."""


class ServerProcess:
    """`vllm serve` in a process group of its own, listening on a socket in a folder that no other user can open."""

    def __init__(self, arguments: Sequence[str], *, environment: Mapping[str, str], log: Path) -> None:
        # In the system's folder, since the path of a socket may have 107 bytes only.
        self._folder = Path(tempfile.mkdtemp(prefix="rlviewer-vllm-"))
        self.socket = str(self._folder / "socket")
        self._log = log
        listening, self._alive = os.pipe()
        # By its path, so that it watches the pipe before it imports torch, and not with that path among its own (-P).
        command = [sys.executable, "-P", __file__, str(listening), str(self._folder)]
        paths = os.pathsep.join(filter(None, [str(PROJECT), environment.get("PYTHONPATH")]))
        with open(log, "wb") as output:
            self._process = subprocess.Popen(
                [*command, *arguments, "--uds", self.socket],
                env={**environment, "PYTHONPATH": paths, "VLLM_WORKER_MULTIPROC_METHOD": "spawn"},
                pass_fds=[listening],
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        os.close(listening)

    def wait_until_ready(self, is_ready: Callable[[], bool]) -> None:
        """Raises ServerFailed when it ends, or takes half an hour."""
        deadline = time.monotonic() + START_SECONDS
        while not is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise ServerFailed(f"the vLLM server did not start ({self.last_words()})")
            time.sleep(0.2)

    def last_words(self) -> str:
        """Whether it still runs and the last error in its log."""
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        error = next((line.strip()[-300:] for line in reversed(lines) if "error" in line.lower()), "no error")
        code = self._process.poll()
        return f"{'still running' if code is None else f'ended with {code}'}: {error}; all of it in {self._log}"

    def close(self) -> None:
        """End it with all of its workers."""
        os.close(self._alive)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


def end_with_parent(descriptor: int, folder: Path) -> None:
    """Once the parent's end of the pipe closes, remove the folder and kill this process' group."""

    def watch() -> None:
        with contextlib.suppress(OSError):
            while os.read(descriptor, 1):
                pass
        shutil.rmtree(folder, ignore_errors=True)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, name="parent-watcher", daemon=True).start()


def main() -> None:
    parser = argparse.ArgumentParser(description="Serve with vLLM until the parent ends.")
    parser.add_argument("descriptor", type=int, help="read end of a pipe that the parent holds open")
    parser.add_argument("folder", type=Path, help="of the socket; removed at the end")
    options, serve = parser.parse_known_args()
    end_with_parent(options.descriptor, options.folder)
    # The command `vllm serve` itself asks for the metadata of a package called vllm, which the build for CPUs is not.
    from vllm.entrypoints.cli.serve import ServeSubcommand
    from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    arguments = make_arg_parser(FlexibleArgumentParser()).parse_args(serve)
    validate_parsed_serve_args(arguments)
    ServeSubcommand.cmd(arguments)


if __name__ == "__main__":
    main()
