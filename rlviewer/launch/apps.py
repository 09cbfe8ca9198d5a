from django.apps import AppConfig


class LaunchConfig(AppConfig):
    name = "rlviewer.launch"
