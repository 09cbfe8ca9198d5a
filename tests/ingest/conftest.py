import pytest

from rlviewer.accounts.models import Project
from rlviewer.runs.models import Run
from tests.factories import make_run


@pytest.fixture
def run(project: Project) -> Run:
    return make_run(project)
