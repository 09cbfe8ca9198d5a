"""What `make run` starts: the whole stack, on real processes."""

import os
import re
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import httpx
import psutil

from rlviewer.embedded.folders import Account
from tests.embedded.conftest import ROOT, START_SECONDS, Stack, environment_for, free_port, processes_of, wait_until


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_first_start_prints_an_address_and_a_password_that_signs_in(running: Stack) -> None:
    assert f"rlviewer is ready: {running.url}\n" in running.output
    password = re.search(r"Sign in as admin with the password (\S+)", running.output)
    assert password, running.output
    with httpx.Client(base_url=running.url, headers={"Origin": running.url}) as client:
        client.get("/sign-in/")
        form = {"username": "admin", "password": password[1], "csrfmiddlewaretoken": client.cookies["csrftoken"]}
        assert client.post("/sign-in/", data=form).status_code == 302
        assert client.cookies["sessionid"]


def test_health_is_200_only_when_the_database_answers(running: Stack) -> None:
    assert running.health() == 200
    postgres = running.wait_for_child("-D")
    postgres.suspend()
    try:
        assert running.health() == 503
    finally:
        postgres.resume()
    wait_until(lambda: running.health() == 200, seconds=60, what="the database to come back")


def test_secrets_data_and_sockets_are_private(running: Stack) -> None:
    home = running.home
    assert mode(home / "secrets" / "django") == 0o600
    assert len((home / "secrets" / "django").read_text()) >= 50
    sockets = [home / "sockets" / "pg", home / "sockets" / "redis"]
    for folder in (home / "secrets", home / "postgres", home / "runs", home / "logs", home / "locks", *sockets):
        assert mode(folder) == 0o700, folder
    assert mode(home) & 0o066 == 0
    assert all(mode(path) & 0o077 == 0 for path in (home / "logs").iterdir())


def test_nothing_listens_on_tcp_but_the_web(running: Stack) -> None:
    listening = {
        (connection.laddr.ip, connection.laddr.port)
        for process in processes_of(running.home)
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }
    assert listening == {("127.0.0.1", running.port)}


def test_servers_do_not_run_as_root(running: Stack) -> None:
    servers = [p for p in processes_of(running.home) if p.name() in {"postgres", "redis-server", "valkey-server"}]
    assert len(servers) > 2
    assert all(process.uids().effective != 0 for process in servers)


def test_a_second_start_on_the_folder_is_refused(running: Stack) -> None:
    second = Stack(running.home)
    assert second.process.wait(START_SECONDS) == 1
    assert f"already runs on {running.home}: {running.url} (process {running.process.pid})" in second.output
    assert running.health() == 200


def test_doctor_finds_every_part(running: Stack) -> None:
    found = subprocess.run(
        [sys.executable, "manage.py", "doctor"],
        cwd=ROOT,
        env=environment_for(running.home),
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stdout + found.stderr
    assert re.search(r"ok +postgres +version 18", found.stdout)
    assert re.search(rf"ok +stack +{running.url}; \d+ MB in all: supervisor", found.stdout)


def test_the_idle_stack_is_small(running: Stack) -> None:
    running.wait_for_child("celery")
    total = sum(process.memory_full_info().pss for process in processes_of(running.home))
    assert total < 440e6


def test_every_stop_signal_ends_all_of_it(home: Path) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        stack = Stack(home).wait_ready()
        assert stack.stop(number) == 0, stack.output
        assert processes_of(home) == []
        assert not (home / "postgres" / "postmaster.pid").exists()


def test_a_stop_in_the_middle_of_the_start_ends_all_of_it(home: Path) -> None:
    stack = Stack(home)
    wait_until((home / "postgres").exists, seconds=START_SECONDS, what="the database to be made")
    assert stack.stop() == 0, stack.output
    assert processes_of(home) == []


def test_killed_supervisor_leaves_no_process_and_the_next_start_recovers(home: Path) -> None:
    first = Stack(home).wait_ready()
    first.process.kill()
    first.process.wait()
    wait_until(lambda: processes_of(home) == [], seconds=60, what="every child to end")

    second = Stack(home).wait_ready()
    assert second.health() == 200
    assert "password" not in second.output
    second.stop()


def test_the_stack_stops_when_make_is_killed(home: Path) -> None:
    command = f"{sys.executable} -m rlviewer.embedded.supervise --stop-with-parent & wait"
    env = environment_for(home, RLVIEWER_PORT=str(free_port()))
    make = subprocess.Popen(["sh", "-c", command], cwd=ROOT, env=env, stdout=subprocess.DEVNULL)
    wait_until((home / "postgres" / "postmaster.pid").exists, seconds=START_SECONDS, what="Postgres to start")
    make.kill()
    make.wait()
    wait_until(lambda: processes_of(home) == [], seconds=30, what="everything to end")


def test_what_dies_is_started_again(home: Path) -> None:
    stack = Stack(home).wait_ready()
    for mark in ("embedded.web", "-D", "unixsocket", "celery"):
        died = stack.wait_for_child(mark)
        died.kill()
        psutil.wait_procs([died], timeout=30)
        assert not died.is_running()
        assert stack.wait_for_child(mark).pid != died.pid
    # Who asked meanwhile has waited in the queue of the socket, which outlives the web process.
    wait_until(lambda: stack.health() == 200, seconds=START_SECONDS, what="the page to come back")
    assert stack.output.count("killed by SIGKILL") == 4
    assert stack.stop() == 0


def test_a_port_in_use_is_named_with_the_way_out(home: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        stack = Stack(home, RLVIEWER_PORT=str(port))
        assert stack.process.wait(START_SECONDS) == 1
    assert f"cannot listen at 127.0.0.1:{port}" in stack.output
    assert "RLVIEWER_PORT=" in stack.output
    assert processes_of(home) == []


def test_other_machines_are_let_in_only_under_a_name(home: Path) -> None:
    stack = Stack(home, RLVIEWER_BIND="0.0.0.0")
    assert stack.process.wait(START_SECONDS) == 1
    assert "set RLVIEWER_HOSTS" in stack.output


def test_a_database_that_cannot_start_is_told_with_its_log(home: Path) -> None:
    Stack(home).wait_ready().stop()
    (home / "postgres" / "PG_VERSION").write_text("12\n")
    stack = Stack(home)
    assert stack.process.wait(START_SECONDS) == 1
    assert "Postgres did not start" in stack.output
    assert "not compatible" in stack.output
    assert processes_of(home) == []


def test_an_ordinary_user_runs_everything_as_itself(tmp_path: Path) -> None:
    account = Account.of(os.geteuid() or 65534)
    folder = Path("/tmp") / f"rlviewer-user-{os.getpid()}"
    folder.mkdir()
    os.chown(folder, account.uid, account.gid)
    stack = Stack(folder / "home", account=account)
    try:
        stack.wait_ready()
        assert {p.uids().effective for p in processes_of(folder / "home")} == {account.uid}
        assert stack.health() == 200
        assert mode(folder / "home") == 0o700
        assert stack.stop() == 0
    finally:
        for process in processes_of(folder):
            process.kill()
        subprocess.run(["rm", "-rf", folder], check=True)
