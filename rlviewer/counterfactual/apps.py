from django.apps import AppConfig


class CounterfactualConfig(AppConfig):
    name = "rlviewer.counterfactual"
