"""Why an attempt ended, in words a person understands, and what follows from it. Pure functions."""

import signal
from dataclasses import dataclass

from rlviewer.launch.status import TrainerStatus
from rlviewer.runs.models import RunState

# Exit codes of training.run.
EXIT_FINISHED, EXIT_EXCEPTION, EXIT_REFUSED, EXIT_STOPPED = 0, 1, 2, 3

# Signals by which an operator or a job scheduler asks a process to end; the others are accidents.
POLITE_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
ACCIDENTS = {
    signal.SIGKILL: "probably out of memory",
    signal.SIGSEGV: "a segmentation fault in native code",
    signal.SIGBUS: "a bus error, often a full /dev/shm or disk",
    signal.SIGABRT: "aborted by native code",
    signal.SIGILL: "a CPU instruction that this machine lacks",
}


@dataclass(frozen=True, slots=True)
class Ending:
    """How a trainer process ended, as its host saw it."""

    code: int | None = None  # exit code; None: by a signal, or nobody saw it
    signal: int | None = None
    frozen: str = ""  # why we held it for frozen and killed it
    out_of_grace: bool = False  # asked to stop, reached no step boundary, and we killed it
    out_of_memory: bool = False  # the kernel says that it killed something for lack of memory meanwhile
    interruption: str = ""  # why its supervisor had to end and asked it to stop
    worker_died: str = ""  # what became of the worker, when nobody was left to see the trainer's end
    could_not_start: str = ""  # why there is no process at all
    last_words: str = ""  # last line of the log


@dataclass(frozen=True, slots=True)
class Verdict:
    state: RunState
    reason: str
    resumes: bool = False  # a new attempt follows without being asked
    is_death: bool = False  # counts towards the limit of deaths


def judge(ending: Ending, status: TrainerStatus, *, wanted: str, wanted_by: str) -> Verdict:
    """What an ending means for its attempt. `wanted`: run, pause or stop, as a person asked by then."""
    where = status.where
    if ending.could_not_start:
        return Verdict(RunState.FAILED, f"could not start: {ending.could_not_start}")
    if status.state == "finished" and ending.code in {None, EXIT_FINISHED}:
        return Verdict(RunState.FINISHED, "")
    if status.error is not None and (status.state == "failed" or ending.code in {EXIT_EXCEPTION, EXIT_REFUSED}):
        return Verdict(RunState.FAILED, _error_reason(ending, status))
    if wanted == "stop":
        late = "; killed, since it reached no step boundary in time" if ending.out_of_grace else ""
        return Verdict(RunState.STOPPED, f"stopped by {wanted_by} {where}{late}")
    if ending.interruption:
        return Verdict(RunState.STOPPED, f"{ending.interruption} {where}", resumes=True)
    if ending.worker_died:
        return Verdict(RunState.FAILED, f"{ending.worker_died} {where}", resumes=True, is_death=True)
    if ending.frozen:
        return Verdict(RunState.FAILED, f"frozen {where}: {ending.frozen}; killed", resumes=True, is_death=True)
    if ending.code == EXIT_STOPPED or ending.signal in POLITE_SIGNALS:
        by = f" ({signal.Signals(ending.signal).name})" if ending.signal else ""
        return Verdict(RunState.STOPPED, f"stopped by a signal from outside{by} {where}")
    if ending.signal is not None:
        reason = f"killed by signal {ending.signal}{_accident(ending)} {where}"
        return Verdict(RunState.FAILED, reason, resumes=True, is_death=True)
    planned = f" of {status.steps}" if status.steps else ""
    words = f"; its log ends with: {ending.last_words}" if ending.last_words else ""
    return Verdict(RunState.FAILED, f"exited with code {ending.code} {where}{planned} without saying why{words}")


def _error_reason(ending: Ending, status: TrainerStatus) -> str:
    error = status.error
    assert error is not None
    if ending.code == EXIT_REFUSED:
        return f"refused the configuration: {error.message}"
    memory = "out of memory: " if "memory" in (error.type + error.message).lower() else ""
    place = f" ({error.where})" if error.where else ""
    return f"{memory}{error.type}: {error.message} {status.where}{place}"


def _accident(ending: Ending) -> str:
    """`, probably out of memory,` for what people know the signal by, else its name."""
    try:
        number = signal.Signals(ending.signal or 0)
    except ValueError:
        return ""
    if number == signal.SIGKILL and ending.out_of_memory:
        return ", out of memory,"
    return f", {ACCIDENTS[number]}," if number in ACCIDENTS else f" ({number.name})"
