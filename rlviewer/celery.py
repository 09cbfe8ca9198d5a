"""The Celery application. The trainer never runs in it: a task starts it as a fresh child process."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "rlviewer.settings")
# The checks import every page of the site, which costs an idle worker 40 MB; the web process runs them.
os.environ.setdefault("CELERY_SKIP_CHECKS", "1")

app = Celery("rlviewer")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
