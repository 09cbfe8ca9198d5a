from django.apps import AppConfig


class ReviewConfig(AppConfig):
    name = "rlviewer.review"
