"""Commands use the running stack, else bring a database for their own time."""

import subprocess
import sys
from pathlib import Path

from tests.embedded.conftest import ROOT, Stack, environment_for, processes_of, wait_until

COUNT = """
import sys, django
django.setup()
from django.db import connection
from rlviewer.embedded.attach import attached
with attached(redis=True):
    print("in", flush=True)
    sys.stdin.readline()
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM accounts_user")
        print("people", cursor.fetchone()[0], flush=True)
"""


def start_command(home: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", COUNT],
        cwd=ROOT,
        env=environment_for(home, DJANGO_SETTINGS_MODULE="rlviewer.settings"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_command_alone_brings_its_own_and_leaves_nothing(home: Path) -> None:
    command = start_command(home)
    output, errors = command.communicate(timeout=90)
    assert output == "in\npeople 0\n", errors
    assert processes_of(home) == []


def test_whoever_started_the_database_waits_for_the_others(home: Path) -> None:
    first = start_command(home)
    assert first.stdout and first.stdout.readline() == "in\n"
    second = start_command(home)
    assert second.stdout and second.stdout.readline() == "in\n"

    assert first.stdin and first.stdin.write("go on\n")
    first.stdin.flush()
    assert first.stdout.readline() == "people 0\n"
    assert first.stderr and "Other commands" in first.stderr.readline()

    output, errors = second.communicate("go on\n", timeout=90)
    assert output == "people 0\n", errors
    assert first.wait(30) == 0
    assert processes_of(home) == []


def test_a_killed_command_leaves_no_server(home: Path) -> None:
    command = start_command(home)
    assert command.stdout and command.stdout.readline() == "in\n"
    command.kill()
    command.communicate()
    wait_until(lambda: processes_of(home) == [], seconds=20, what="its servers to end")


def test_a_command_uses_the_running_stack(running: Stack) -> None:
    command = start_command(running.home)
    output, errors = command.communicate(timeout=90)
    assert output == "in\npeople 1\n", errors
    assert running.health() == 200
