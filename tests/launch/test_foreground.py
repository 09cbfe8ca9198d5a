"""What a terminal shows of a run, and what becomes of it when showing it fails."""

import io
from typing import Any

import psutil
import pytest
from django.db import OperationalError

from rlviewer.accounts.models import Project
from rlviewer.launch.foreground import ProgressBar, exit_code, project_called, train_in_foreground
from rlviewer.launch.process import TrainerRecord
from rlviewer.launch.status import TrainerStatus
from rlviewer.runs.models import Run
from tests.factories import make_project, make_run
from training.config import RunConfig


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class File(io.StringIO):
    pass


@pytest.fixture
def run(project: Project) -> Run:
    return make_run(project, latest_reward=0.5, base_pass=0.25, latest_pass=0.75)


def at(step: int, state: str = "running") -> TrainerStatus:
    return TrainerStatus(state=state, step=step, steps=10, phase="training")


def test_a_terminal_gets_one_line_redrawn_with_what_was_learned(run: Run) -> None:
    out = Terminal()
    bar = ProgressBar(run, out)
    for step in (0, 5, 10):
        bar.show(at(step))
    bar.close()
    assert out.getvalue().count("\n") == 1
    assert "5/10 steps  reward 0.50  pass@1 0.25 -> 0.75" in out.getvalue()


def test_a_file_gets_a_line_now_and_then_and_the_last_one(run: Run) -> None:
    out = File()
    bar = ProgressBar(run, out)
    for step in range(10):
        bar.show(at(step))
    bar.show(at(10, "finished"))
    assert [line.split()[1] for line in out.getvalue().splitlines()] == ["0/10", "10/10"]


def test_a_database_that_is_away_does_not_end_a_run_by_way_of_its_bar(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(**_: Any) -> None:
        raise OperationalError("the server closed the connection")

    monkeypatch.setattr(run, "refresh_from_db", away)
    out = Terminal()
    ProgressBar(run, out).show(at(3))
    assert "3/10 steps" in out.getvalue()


@pytest.mark.django_db
def test_a_name_finds_its_project_or_makes_it() -> None:
    assert project_called("").name == "Local runs"
    assert project_called("").name == "Local runs"
    sums = make_project("Sums")
    assert project_called("sums") == sums
    assert project_called("").name == "Local runs"
    assert Project.objects.count() == 2


@pytest.mark.django_db(transaction=True)
def test_supervision_that_fails_ends_its_trainer_and_says_so(settings: Any, tmp_path: Any, monkeypatch: Any) -> None:
    settings.HOME = tmp_path
    settings.TRAINER_MODULE = "tests.launch.scripted_trainer"

    def broken(self: ProgressBar, status: TrainerStatus) -> None:
        raise ZeroDivisionError("in the bar")

    monkeypatch.setattr(ProgressBar, "show", broken)
    config = RunConfig(name="step_seconds=0.1", steps=50)
    run = train_in_foreground(make_project(), config, out=File())
    assert (run.state, exit_code(run)) == ("failed", 1)
    assert run.state_reason.startswith("its worker failed (ZeroDivisionError: in the bar) ")


@pytest.mark.django_db(transaction=True)
def test_a_trainer_that_cannot_be_noted_down_is_ended(settings: Any, tmp_path: Any, monkeypatch: Any) -> None:
    """On a full disk: a trainer that nobody watches would hold the run's folder for ever."""
    settings.HOME = tmp_path
    settings.TRAINER_MODULE = "tests.launch.scripted_trainer"

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(TrainerRecord, "write", full)
    run = train_in_foreground(make_project(), RunConfig(name="step_seconds=0.1", steps=500), out=File())
    assert run.state == "failed"
    assert run.state_reason.startswith("its worker failed (OSError: [Errno 28] No space left on device)")
    trainers = [child for child in psutil.Process().children() if settings.TRAINER_MODULE in child.cmdline()]
    assert trainers == []
