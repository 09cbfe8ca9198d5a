"""What each ending is called, and what follows from it."""

import pytest

from rlviewer.launch.reasons import Ending, Verdict, judge
from rlviewer.launch.status import TrainerError, TrainerStatus
from rlviewer.runs.models import RunState

AT_41 = TrainerStatus(state="running", step=41, steps=100, last_checkpoint=40)


def verdict(ending: Ending, status: TrainerStatus = AT_41, wanted: str = "run") -> Verdict:
    return judge(ending, status, wanted=wanted, wanted_by="alice")


def failed_with(type_: str, message: str, where: str = "") -> TrainerStatus:
    return TrainerStatus(state="failed", step=41, error=TrainerError(type_, message, where))


@pytest.mark.parametrize(
    ("ending", "state", "reason"),
    [
        (Ending(signal=9), "failed", "killed by signal 9, probably out of memory, at step 41"),
        (Ending(signal=9, out_of_memory=True), "failed", "killed by signal 9, out of memory, at step 41"),
        (Ending(signal=11), "failed", "killed by signal 11, a segmentation fault in native code, at step 41"),
        (Ending(signal=10), "failed", "killed by signal 10 (SIGUSR1) at step 41"),
        (Ending(signal=15), "stopped", "stopped by a signal from outside (SIGTERM) at step 41"),
        (Ending(code=3), "stopped", "stopped by a signal from outside at step 41"),
        (Ending(code=0), "failed", "exited with code 0 at step 41 of 100 without saying why"),
        (Ending(code=7, last_words="bye"), "failed", "exited with code 7 at step 41 of 100 without saying why; its log ends with: bye"),
        (Ending(signal=9, frozen="the process was stopped (SIGSTOP) for 20 s"), "failed", "frozen at step 41: the process was stopped (SIGSTOP) for 20 s; killed"),
        (Ending(code=3, interruption="the worker was shut down"), "stopped", "the worker was shut down at step 41"),
        (Ending(worker_died="its worker failed"), "failed", "its worker failed at step 41"),
        (Ending(could_not_start="No space left on device"), "failed", "could not start: No space left on device"),
    ],
)  # fmt: skip
def test_an_end_nobody_asked_for_is_named(ending: Ending, state: str, reason: str) -> None:
    assert (verdict(ending).state, verdict(ending).reason) == (state, reason)


def test_finished_needs_the_trainers_word_and_its_exit_code() -> None:
    done = TrainerStatus(state="finished", step=100, steps=100)
    assert verdict(Ending(code=0), done) == Verdict(RunState.FINISHED, "")
    # Nobody saw the exit (the worker died), but the trainer had written that it was done.
    assert verdict(Ending(worker_died="its worker failed"), done).state == RunState.FINISHED
    # Everything was written; that native code crashed on the way out takes nothing back.
    assert verdict(Ending(signal=11), done).state == RunState.FINISHED
    assert verdict(Ending(code=1), done).state == RunState.FAILED


def test_an_exception_is_quoted_and_never_retried() -> None:
    out = verdict(Ending(code=1), failed_with("ValueError", "loss is NaN", "training/run.py:12"))
    assert out == Verdict(RunState.FAILED, "ValueError: loss is NaN at step 41 (training/run.py:12)")
    memory = verdict(Ending(code=1), failed_with("OutOfMemoryError", "CUDA out of memory"))
    assert memory.reason.startswith("out of memory: ")


def test_a_refused_configuration_names_the_key() -> None:
    out = verdict(Ending(code=2), failed_with("ConfigError", "steps: must be at least 1", "steps"))
    assert out == Verdict(RunState.FAILED, "refused the configuration: steps: must be at least 1")


def test_stop_on_request_names_who_asked_even_when_it_had_to_be_killed() -> None:
    assert verdict(Ending(code=3), wanted="stop") == Verdict(RunState.STOPPED, "stopped by alice at step 41")
    killed = verdict(Ending(signal=9, out_of_grace=True), wanted="stop")
    assert killed.reason == "stopped by alice at step 41; killed, since it reached no step boundary in time"
    assert not killed.resumes


def test_only_accidents_and_shutdowns_are_resumed_and_only_accidents_are_deaths() -> None:
    resumed = [Ending(signal=9), Ending(signal=11), Ending(frozen="x", signal=9), Ending(worker_died="x")]
    assert all(verdict(e).resumes and verdict(e).is_death for e in resumed)
    assert verdict(Ending(code=3, interruption="the worker was shut down")).resumes
    assert not verdict(Ending(code=3, interruption="the worker was shut down")).is_death
    assert not any(verdict(e).resumes for e in [Ending(code=1), Ending(code=2), Ending(code=3), Ending(signal=15)])


def test_before_the_first_step_it_says_so() -> None:
    assert verdict(Ending(signal=9), TrainerStatus()).reason.endswith("while starting")
