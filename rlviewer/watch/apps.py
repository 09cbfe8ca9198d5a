from django.apps import AppConfig


class WatchConfig(AppConfig):
    name = "rlviewer.watch"
