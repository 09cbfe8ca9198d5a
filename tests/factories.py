"""Builders of people, projects and runs for tests."""

from typing import Any

from rlviewer.accounts.models import Member, Project, Role, User
from rlviewer.runs.models import Attempt, Run

PASSWORD = "correct horse battery"


def make_user(name: str, **extra: Any) -> User:
    return User.objects.create_user(username=name, password=PASSWORD, **extra)


def make_project(name: str = "arithmetic", *, admin: User | None = None) -> Project:
    project = Project.objects.create(name=name)
    if admin is not None:
        Member.objects.create(project=project, user=admin, role=Role.ADMIN)
    return project


def make_run(project: Project, name: str = "run", **extra: Any) -> Run:
    """A queued run with its first attempt."""
    defaults: dict[str, Any] = {"algorithm": "grpo", "task": "addition", "model": "builtin:tiny", "steps_planned": 10}
    run = Run.objects.create(project=project, name=name, **{**defaults, **extra})
    Attempt.objects.create(run=run, number=1)
    return run
