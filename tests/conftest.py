"""Shared fixtures: alice administers the project, bob is a member, charlie is neither."""

import os

os.environ.setdefault("RLVIEWER_SECRET_KEY", "only-for-tests")

import pytest

from rlviewer.accounts.models import Member, Project, Role, User
from tests.factories import make_project, make_user


@pytest.fixture
def alice(db: None) -> User:
    return make_user("alice")


@pytest.fixture
def bob(db: None) -> User:
    return make_user("bob")


@pytest.fixture
def charlie(db: None) -> User:
    return make_user("charlie")


@pytest.fixture
def project(alice: User, bob: User) -> Project:
    project = make_project(admin=alice)
    Member.objects.create(project=project, user=bob, role=Role.MEMBER)
    return project
