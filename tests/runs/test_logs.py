from pathlib import Path
from uuid import UUID

from rlviewer.runs import logs
from rlviewer.runs.logs import log_tail

UID = UUID("00000000-0000-0000-0000-000000000001")


def write_log(home: Path, data: bytes, attempt: int = 1) -> None:
    folder = home / "runs" / str(UID) / "attempts" / str(attempt)
    folder.mkdir(parents=True)
    (folder / "log.txt").write_bytes(data)


def test_no_log_on_this_host(tmp_path: Path) -> None:
    assert log_tail(tmp_path, UID, 1) is None


def test_lines_are_shown_as_a_person_saw_them(tmp_path: Path) -> None:
    write_log(tmp_path, b"\x1b[31mred\x1b[0m\nstep 1/9\rstep 2/9\rstep 3/9\r\n<b>\xff\x00\n")
    tail = log_tail(tmp_path, UID, 1)
    assert tail is not None
    assert tail.lines == ["red", "step 3/9", "<b>⟨FF⟩⟨00⟩"] and not tail.is_cut


def test_an_empty_log_has_no_lines(tmp_path: Path) -> None:
    write_log(tmp_path, b"")
    tail = log_tail(tmp_path, UID, 1)
    assert tail is not None and tail.lines == [] and not tail.is_cut


def test_only_the_end_of_a_long_log_is_read(tmp_path: Path) -> None:
    write_log(tmp_path, b"".join(b"line %07d\n" % n for n in range(50_000)))
    tail = log_tail(tmp_path, UID, 1)
    assert tail is not None and tail.is_cut
    assert len(tail.lines) == logs.TAIL_LINES and tail.lines[-1] == "line 0049999"
    assert all(len(line) == len("line 0000000") for line in tail.lines)
