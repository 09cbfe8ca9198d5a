"""The web side of rlviewer."""

from rlviewer.celery import app as celery_app

__all__ = ["celery_app"]
