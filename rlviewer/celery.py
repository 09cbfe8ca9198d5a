"""The Celery application. The trainer never runs in it: a task starts it as a fresh child process."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "rlviewer.settings")

app = Celery("rlviewer")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
