from django.apps import AppConfig


class CompareConfig(AppConfig):
    name = "rlviewer.compare"
