"""`train`, `launch` and `demo` as a person types them, with the real trainer."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from rlviewer.launch.process import TrainerRecord
from rlviewer.runs.models import Rollout, Run, Step
from tests.launch.conftest import ROOT, wait_until

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.timeout(180),
]  # other processes read what is committed

CONFIG = """
name = "from a file"
steps = {steps}
[sampling]
group_size = 4
prompts_per_step = 4
max_new_tokens = 8
[eval]
every_steps = 0
prompts = 8
samples = 2
[checkpoint]
every_steps = 1
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(CONFIG.format(steps=3))
    return path


@pytest.fixture
def environment(tmp_path: Path, database_url: str, settings: Any) -> dict[str, str]:
    settings.HOME = tmp_path / "home"
    settings.HOME.mkdir()
    # Nobody answers there: no command may need a broker.
    broker = f"redis+socket://{tmp_path}/none.sock"
    own = {
        "DATABASE_URL": database_url,
        "REDIS_URL": broker,
        "RLVIEWER_HOME": str(settings.HOME),
        "OMP_NUM_THREADS": "1",
    }
    return {**os.environ, **own}


def start(environment: dict[str, str], *words: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "manage.py", *words]
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def manage(environment: dict[str, str], *words: str) -> tuple[int, str, str]:
    process = start(environment, *words)
    out, err = process.communicate()
    return process.returncode, out, err


def test_train_stores_a_run_like_any_other_and_goes_on_after_a_kill(config: Path, environment: dict[str, str]) -> None:
    config.write_text(CONFIG.format(steps=25))
    process = start(environment, "train", str(config), "--project", "Sums")
    wait_until(lambda: Step.objects.filter(split="train", index__gte=2).exists(), 60, "step 2")
    os.kill(TrainerRecord.all()[0].pid, signal.SIGKILL)
    out, err = process.communicate()
    run = Run.objects.get(project__name="Sums")
    assert (process.returncode, out) == (0, f"run {run.pk} finished\n"), err
    first, second = run.attempts.order_by("number")
    assert first.reason.startswith("killed by signal 9, probably out of memory, at step ")
    assert second.resumed_from_step >= 2
    current = Step.objects.filter(run=run, is_current=True, split="train")
    assert sorted(current.values_list("index", flat=True)) == list(range(25))
    assert Rollout.objects.filter(step__in=current).count() == 25 * 16
    assert "25/25 steps" in err


def test_train_stops_at_its_next_step_on_ctrl_c(config: Path, environment: dict[str, str]) -> None:
    config.write_text(CONFIG.format(steps=5000))
    process = start(environment, "train", str(config))
    wait_until(lambda: Step.objects.filter(split="train", index__gte=1).exists(), 60, "step 1")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    run = Run.objects.get(project__name="Local runs")
    assert process.returncode == 3, err
    assert run.state == "stopped"
    assert run.state_reason == f"stopped in the terminal at step {run.last_step + 1}"
    assert out == f"run {run.pk} stopped: {run.state_reason}\n"
    assert not TrainerRecord.all()


@pytest.mark.parametrize("command", ["train", "launch"])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stesp = 3", "stesp: unknown key; did you mean steps?"),
        ("[sampling]\ngroup_size = 1", "sampling.group_size: "),
        ("steps = nan", "steps: must be a whole number"),
        ("steps = ", "not valid TOML"),
        ("seed = " + "9" * 5000, "not valid TOML: Exceeds the limit"),
        ("x = " + "[" * 5000, "not valid TOML"),
        ("[task]\nname = 'additoin'", "task.name: "),
    ],
)
def test_a_bad_configuration_is_refused_by_name(config: Path, command: str, text: str, message: str) -> None:
    config.write_text(text)
    with pytest.raises(CommandError) as caught:
        call_command(command, str(config))
    assert caught.value.returncode == 2
    assert message in str(caught.value)
    assert not Run.objects.exists()


def test_a_missing_file_is_named() -> None:
    with pytest.raises(CommandError) as caught:
        call_command("train", "nowhere.toml")
    assert caught.value.returncode == 2
    assert "nowhere.toml" in str(caught.value)


def test_launch_queues_a_run_even_without_a_broker(config: Path, environment: dict[str, str]) -> None:
    code, out, err = manage(environment, "launch", str(config), "--project", "Sums")
    run = Run.objects.get()
    assert (code, out) == (0, f"run {run.pk} queued\n"), err
    assert (run.state, run.queue, run.name, run.project.name) == ("queued", "cpu", "from a file", "Sums")


def test_demo_prints_what_it_learned_on_its_last_line(environment: dict[str, str]) -> None:
    code, out, err = manage(environment, "demo", "--steps", "1", "--seed", "7", "--shuffle-rewards")
    assert code == 0, err
    run = Run.objects.get()
    found = re.fullmatch(
        r"demo: run=(\d+) steps=1 rollouts=(\d+) base_pass=(0\.\d+) final_pass=(0\.\d+) seconds=[\d.]+\n", out
    )
    assert found, out
    assert [int(found[1]), int(found[2])] == [run.pk, run.rollout_count]
    assert [float(found[3]), float(found[4])] == pytest.approx([run.base_pass, run.latest_pass], abs=1e-4)
    assert (run.seed, run.config["shuffle_rewards"], run.project.name) == (7, True, "Demo")
