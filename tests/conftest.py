"""Shared fixtures: alice administers the project, bob is a member, charlie is neither."""

import os
import shutil
from collections.abc import Iterator
from urllib.parse import quote

import hypothesis
import pytest
from django.db import connection

from rlviewer.accounts.models import Member, Project, Role, User
from rlviewer.embedded.folders import make_home
from rlviewer.embedded.postgres import Postgres
from rlviewer.embedded.redis import Redis
from tests import settings as test_settings
from tests.factories import make_project, make_user

# A busy machine is no wrong answer.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")


def pytest_unconfigure() -> None:
    shutil.rmtree(test_settings.HOME_OF_TESTS, ignore_errors=True)


@pytest.fixture(scope="session")
def stack() -> Iterator[None]:
    """Postgres and Redis of this test session, in a folder of their own; each only when no variable names another."""
    home = test_settings.HOME_OF_TESTS
    account = make_home(home)
    servers: list[Postgres | Redis] = []
    if test_settings.BRINGS_REDIS:
        servers.append(Redis(home, account))
    if test_settings.BRINGS_POSTGRES:
        servers.append(Postgres(home, account, durable=False))
    try:
        for server in servers:
            assert server.claim(timeout=0)
            server.start()
            server.wait_ready()
        yield
    finally:
        for server in servers:
            server.stop()


@pytest.fixture(scope="session")
def django_db_modify_db_settings(stack: None) -> None:
    """The database server starts with the first test that needs it."""


@pytest.fixture(scope="session")
def redis_url(stack: None) -> str:
    """A Redis that answers."""
    return os.environ["REDIS_URL"]


@pytest.fixture(scope="session")
def database_url(django_db_setup: None) -> str:
    """The test database, for a program that a test starts as DATABASE_URL."""
    found = connection.settings_dict
    password = f":{quote(found['PASSWORD'])}" if found["PASSWORD"] else ""
    host = quote(found["HOST"], safe="")
    port = f"&port={found['PORT']}" if found["PORT"] else ""
    return f"postgresql://{quote(found['USER'])}{password}@/{found['NAME']}?host={host}{port}"


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
