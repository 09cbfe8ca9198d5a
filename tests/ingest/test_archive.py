"""Export and import: the same run again, byte for byte, and nothing of a damaged folder."""

from pathlib import Path

import pytest

from rlviewer.accounts.models import Project
from rlviewer.ingest.exporting import export_run
from rlviewer.ingest.importing import import_run
from rlviewer.runs.models import Run
from tests.factories import fill_run, make_run


@pytest.fixture
def run(project: Project) -> Run:
    run = make_run(project)
    fill_run(run, 3)
    return run


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_run_comes_back_byte_for_byte(run: Run, tmp_path: Path) -> None:
    export_run(run, tmp_path / "first")
    again = import_run(tmp_path / "first", run.project)
    export_run(again, tmp_path / "second")
    first, second = files_of(tmp_path / "first"), files_of(tmp_path / "second")
    assert first.keys() == second.keys()
    assert [name for name in first if first[name] != second[name]] == []
    assert again.rollout_count == run.rollout_count == 80
