"""Settings of the test process: a data folder of its own, and an embedded database unless DATABASE_URL names one.

Programs that tests start get the real settings, with this test run's variables.
"""

import os
import tempfile
from pathlib import Path

from rlviewer.embedded import paths

HOME_OF_TESTS = Path(tempfile.mkdtemp(prefix="rlviewer-tests-"))
(HOME_OF_TESTS / "static").mkdir()  # WhiteNoise warns of a folder that is not there
# Processes that share the tests inherit what the first one decided, and each brings its own.
missing = " ".join(name for name in ("DATABASE_URL", "REDIS_URL") if not os.environ.get(name))
brought = os.environ.setdefault("RLVIEWER_TESTS_BRING", missing)
BRINGS_POSTGRES, BRINGS_REDIS = "DATABASE_URL" in brought, "REDIS_URL" in brought

os.environ["RLVIEWER_HOME"] = str(HOME_OF_TESTS)
os.environ.setdefault("RLVIEWER_SECRET_KEY", "only-for-tests-and-long-enough-to-be-one")
if BRINGS_POSTGRES:
    os.environ["DATABASE_URL"] = paths.postgres_url(HOME_OF_TESTS)
if BRINGS_REDIS:
    os.environ["REDIS_URL"] = paths.redis_url(HOME_OF_TESTS)

from rlviewer.settings import *  # noqa: E402, F403

PASSWORD_HASHERS = [
    "django.contrib.auth.hashers.MD5PasswordHasher",
    "django.contrib.auth.hashers.PBKDF2PasswordHasher",  # of the people whom tests make, for servers that they start
]

os.environ["DJANGO_SETTINGS_MODULE"] = "rlviewer.settings"
