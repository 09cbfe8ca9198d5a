import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from training.attempt import Attempt, FolderTaken, take_folder


def status(attempt: Attempt) -> dict[str, object]:
    return dict(json.loads((attempt.folder / "status.json").read_text()))


def test_a_report_replaces_the_whole_status(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, 3)
    attempt.report(state="running", step=2)
    attempt.report(phase="evaluating")
    found = status(attempt)
    assert (found["state"], found["step"], found["phase"], found["pid"]) == ("running", 2, "evaluating", os.getpid())
    assert [entry.name for entry in (tmp_path / "attempts" / "3").iterdir()] == ["status.json"]


@pytest.mark.parametrize(
    ("written", "wanted"), [(None, "run"), ("run", "run"), ("pause\n", "pause"), ("stop", "stop"), ("", "run")]
)
def test_the_control_file_says_what_is_wanted(tmp_path: Path, written: str | None, wanted: str) -> None:
    attempt = Attempt(tmp_path, 1)
    if written is not None:
        (attempt.folder / "control").write_text(written)
    assert attempt.wanted == wanted


@pytest.mark.parametrize(("then", "stops", "state"), [("run", False, "running"), ("stop", True, "paused")])
def test_a_pause_lasts_until_the_next_word(tmp_path: Path, then: str, stops: bool, state: str) -> None:
    attempt = Attempt(tmp_path, 1)
    control = attempt.folder / "control"
    control.write_text("pause")
    seen: list[object] = []

    def go_on() -> None:
        deadline = time.monotonic() + 10
        while not (attempt.folder / "status.json").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        seen.append(status(attempt)["state"])
        control.write_text(then)

    other = threading.Thread(target=go_on)
    other.start()
    assert attempt.is_stop_wanted(phase="training") is stops
    other.join()
    assert seen == ["paused"]
    assert status(attempt)["state"] == state


def test_one_trainer_at_a_time_in_a_folder(tmp_path: Path) -> None:
    with take_folder(tmp_path):
        code = f"from pathlib import Path; from training.attempt import *; take_folder(Path({str(tmp_path)!r}))"
        other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert FolderTaken.__name__ in other.stderr
    with take_folder(tmp_path):
        pass


def test_the_end_of_the_parent_ends_the_process() -> None:
    read_end, lifeline = os.pipe()
    code = f"import time; from training.attempt import die_with_parent; die_with_parent({read_end}); time.sleep(60)"
    child = subprocess.Popen([sys.executable, "-c", code], pass_fds=(read_end,))
    os.close(read_end)
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(timeout=1.0)
    os.close(lifeline)
    assert child.wait(timeout=10) == 1


def test_leftovers_of_killed_trainers_go_when_the_next_takes_the_folder(tmp_path: Path) -> None:
    killed = Attempt(tmp_path, 1)
    killed.report(state="running")
    killed.reserve_space()
    (killed.folder / "status.json.part").write_text('{"state": "runn')
    with take_folder(tmp_path):
        assert [entry.name for entry in killed.folder.iterdir()] == ["status.json"]
