"""The notebook example of docs/api.md, as a reader would run it."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rlviewer.accounts.models import ApiToken, Project
from tests.factories import fill_run, make_project, make_run, make_user
from tests.live.conftest import WebServer

PAGE = Path(__file__).parents[2] / "docs" / "api.md"


@pytest.mark.django_db(transaction=True)
def test_notebook_example_reads_every_training_rollout(web: WebServer) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    imported = {
        alias.name.split(".")[0]
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    assert imported == {"os", "httpx", "pyarrow"}
    assert len(code.strip().splitlines()) <= 10
    project: Project = make_project(admin=(alice := make_user("alice")))
    run = make_run(project, "addition")
    fill_run(run, steps=9, groups=4, group_size=4)
    told = {"RLVIEWER_URL": web.origin, "RLVIEWER_TOKEN": ApiToken.issue(alice, "notebook")[1]}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **told}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    # More than one page, so the loop is run.
    assert done.stdout.startswith(f"addition {9 * 16} rollouts ")
