"""Runs of two real processes on the CPU: they learn what one process learns, and live and end together."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pytest

from tests.training.test_run import RUN_UID, MakeRun, attempt, batches, metrics, start, status
from training import checkpoint_files
from training.run import FAILED, FINISHED, REFUSED, STOPPED

# Sums in another order, at most.
TOLERANCE = 1e-5
KL = "[algorithm_params]\nkl_coefficient = 0.05"


def change(folder: Path, *changes: tuple[str, str]) -> None:
    config = (folder / "config.toml").read_text()
    for old, new in changes:
        assert old in config
        config = config.replace(old, new)
    (folder / "config.toml").write_text(config)


def two(folder: Path, number: int = 1, *, resume: bool = False) -> int:
    code = start(folder, number, resume=resume).wait(timeout=250)
    assert code == FINISHED, (folder / f"log-{number}.txt").read_text()[-3000:]
    return code


def assert_same(ours: Path, theirs: Path, *, steps: range) -> None:
    found = [
        {batch.header.step: batch for batch in batches(folder) if batch.header.split == "train"}
        for folder in (ours, theirs)
    ]
    for step in steps:
        one, other = (batches[step] for batches in found)
        assert one.rollouts["token_ids"] == other.rollouts["token_ids"]
        mine, yours = metrics(one), metrics(other)
        assert {name for name in mine if not name.startswith("seconds_")} == {
            name for name in yours if not name.startswith("seconds_")
        }
        for name in (name for name in mine if name.startswith(("loss", "value_loss", "reward", "tokens_"))):
            assert mine[name] == pytest.approx(yours[name], abs=TOLERANCE), (step, name)
        for name in (name for name in mine if name.startswith(("ref_kl", "grad_norm", "clip_", "explained"))):
            assert mine[name] == pytest.approx(yours[name], rel=1e-4, abs=TOLERANCE), (step, name)
        for column in ("policy_logprobs", "token_advantages", "clip_flag"):
            flat = [pa.compute.list_flatten(batch.rollouts[column]).to_numpy() for batch in (one, other)]
            np.testing.assert_allclose(*flat, atol=1e-4, rtol=0)


def test_two_processes_learn_what_one_learns_and_one_goes_on_from_their_checkpoint(make_run: MakeRun) -> None:
    alone = make_run("alone", steps=20, tables=KL)
    shared = make_run("shared", steps=20, top="processes = 2", tables=KL)
    for folder in (alone, shared):
        # Five micro-batches of unlike lengths: an odd number, so that one process has one less.
        change(folder, ("learning_rate = 1e-4", "learning_rate = 1e-4\nmicro_batch_rollouts = 3"))
        change(folder, ("prompts_per_step = 3", "prompts_per_step = 5"), ("every_steps = 3", "every_steps = 10"))
    assert attempt(alone) == FINISHED
    two(shared)
    assert_same(alone, shared, steps=range(20))
    assert any(metrics(batch)["loss"] for batch in batches(shared) if batch.header.split == "train")
    # All of it stands in one folder that a process alone can read, and the other way round.
    saved = [checkpoint_files.listed(folder / "checkpoints") for folder in (alone, shared)]
    assert [one.step for one in saved[0]] == [one.step for one in saved[1]] == [10, 20]
    checkpoint_files.discard(saved[1][1].path)
    change(shared, ("processes = 2", "processes = 1"))
    assert attempt(shared, 2, resume=True) == FINISHED
    assert_same(alone, shared, steps=range(20))


def torchrun(folder: Path, processes: int) -> int:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    command += ["-m", "training.run", "--run-dir", str(folder), "--run-uid", RUN_UID, "--attempt", "1"]
    with open(folder / "log-1.txt", "wb") as log:
        return subprocess.run(
            command, stdout=log, stderr=log, env=os.environ | {"OMP_NUM_THREADS": "1"}, timeout=250
        ).returncode


def test_torchrun_trains_adapters_critic_and_average_as_one_process_does(make_run: MakeRun) -> None:
    knobs = "[algorithm_params]\nkl_coefficient = 0.05\nkl_place = 'loss'\nkl_estimator = 'k3'"
    folders = [make_run(name, steps=4, top="algorithm = 'ppo'", tables=knobs) for name in ("alone", "shared")]
    for folder in folders:
        change(
            folder,
            ("[sampling]", "lora_rank = 4\ngradient_checkpointing = true\n[sampling]"),
            ("learning_rate = 1e-4", "learning_rate = 1e-3\nmicro_batch_rollouts = 5\nema_decay = 0.5"),
            ("samples = 2", "samples = 2\naverage_weights = true"),
        )
    assert attempt(folders[0]) == FINISHED
    assert torchrun(folders[1], 2) == 0, (folders[1] / "log-1.txt").read_text()[-3000:]
    assert_same(*folders, steps=range(4))
    last = [[b for b in batches(folder) if b.header.split == "heldout"][-1] for folder in folders]
    assert last[0].rollouts["token_ids"] == last[1].rollouts["token_ids"]


def test_torchrun_and_the_configuration_must_agree(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    folder = make_run(top="processes = 3")
    assert attempt(folder) == REFUSED
    assert "processes: is 3, but 2 were started" in status(folder)["reason"]


@pytest.mark.parametrize(
    ("top", "tables", "key", "said"),
    [
        ("algorithm = 'trpo'\nprocesses = 2", "", "processes", "works in one process only"),
        ("processes = 2", "engine = 'vllm'", "sampling.engine", "take vllm_server"),
    ],
)
def test_what_several_processes_cannot_do_is_refused(
    make_run: MakeRun, top: str, tables: str, key: str, said: str
) -> None:
    folder = make_run(top=top)
    change(folder, ("[sampling]", f"[sampling]\n{tables}"))
    assert attempt(folder) == REFUSED
    assert status(folder)["error"]["where"] == key
    assert said in status(folder)["reason"]


@pytest.fixture
def long_run(make_run: MakeRun) -> tuple[Path, "subprocess.Popen[bytes]", psutil.Process]:
    """A run of two processes that has done a step; the further process."""
    folder = make_run(steps=100_000, top="processes = 2")
    process = start(folder, 1, resume=False)
    wait_for(lambda: bool(list(folder.glob("spool/*-1-*.batch"))) or process.poll() is not None)
    assert process.poll() is None, (folder / "log-1.txt").read_text()[-3000:]
    (further,) = psutil.Process(process.pid).children()
    return folder, process, further


def wait_for(happened: Callable[[], Any], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_stop_reaches_all_processes_and_leaves_a_checkpoint(long_run: Any) -> None:
    folder, process, further = long_run
    for one in (further.pid, process.pid):  # Ctrl-C in a terminal goes to both
        os.kill(one, signal.SIGINT)
    assert process.wait(timeout=60) == STOPPED
    assert not further.is_running()
    found = status(folder)
    assert (found["state"], found["last_checkpoint"]) == ("stopped", found["step"])


def test_a_process_that_dies_ends_the_run_with_the_reason(long_run: Any) -> None:
    folder, process, further = long_run
    further.kill()
    assert process.wait(timeout=60) == FAILED
    assert status(folder)["state"] == "failed"
    assert re.search(r"after \d+ steps: process 1 of the run ended with signal 9$", status(folder)["reason"])


def test_no_process_outlives_the_one_that_leads(long_run: Any) -> None:
    _, process, further = long_run
    process.kill()
    process.wait()
    wait_for(lambda: not further.is_running() or further.status() == psutil.STATUS_ZOMBIE, 20)


def test_a_failure_in_another_process_is_told(make_run: MakeRun, tmp_path: Path) -> None:
    folder = make_run(steps=3, top="processes = 2")
    # Fails in the further process alone.
    (tmp_path / "sitecustomize.py").write_text(
        "import os\n"
        "if os.environ.get('RANK') == '1':\n"
        "    import training.learner\n"
        "    def fails(*arguments, **options):\n"
        "        raise ValueError('only here')\n"
        "    training.learner.accumulate_gradient = fails\n"
    )
    paths = os.pathsep.join([str(tmp_path), str(Path.cwd()), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "training.run", "--run-dir", str(folder), "--run-uid", RUN_UID, "--attempt", "1"]
    code = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}, timeout=120, capture_output=True
    ).returncode
    assert code == FAILED
    assert status(folder)["reason"] == "another process of the run failed after 0 steps: ValueError: only here"
