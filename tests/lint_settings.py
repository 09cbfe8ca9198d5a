"""Settings of `make lint`: looking for missing migrations needs no database."""

from rlviewer.settings import *  # noqa: F403

DATABASES = {"default": {"ENGINE": "django.db.backends.dummy"}}
