"""Commands use the running stack, else bring a database for their own time."""

import subprocess
import sys
from pathlib import Path

from tests.embedded.conftest import ROOT, Stack, environment_for, processes_of, wait_until

COUNT = """
import sys, time, django
django.setup()
from django.db import connection
from rlviewer.embedded.attach import attached
with attached(redis=True):
    print("in", flush=True)
    time.sleep(float(sys.argv[1]))
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM accounts_user")
        print("people", cursor.fetchone()[0], flush=True)
"""


def start_command(home: Path, seconds: float) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", COUNT, str(seconds)],
        cwd=ROOT,
        env=environment_for(home, DJANGO_SETTINGS_MODULE="rlviewer.settings"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_command_alone_brings_its_own_and_leaves_nothing(home: Path) -> None:
    command = start_command(home, 0)
    output, errors = command.communicate(timeout=90)
    assert output == "in\npeople 0\n", errors
    assert processes_of(home) == []


def test_whoever_started_the_database_waits_for_the_others(home: Path) -> None:
    first = start_command(home, 0.5)
    assert first.stdout and first.stdout.readline() == "in\n"
    second = start_command(home, 3)
    for command in (first, second):
        output, errors = command.communicate(timeout=90)
        assert output.endswith("people 0\n"), errors
        assert command.returncode == 0
    assert processes_of(home) == []


def test_a_killed_command_leaves_no_server(home: Path) -> None:
    command = start_command(home, 60)
    assert command.stdout and command.stdout.readline() == "in\n"
    command.kill()
    command.communicate()
    wait_until(lambda: processes_of(home) == [], seconds=20, what="its servers to end")


def test_a_command_uses_the_running_stack(running: Stack) -> None:
    command = start_command(running.home, 0)
    output, errors = command.communicate(timeout=90)
    assert output == "in\npeople 1\n", errors
    assert running.health() == 200
