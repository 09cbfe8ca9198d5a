from django.apps import AppConfig


class SignalConfig(AppConfig):
    name = "rlviewer.signal"
