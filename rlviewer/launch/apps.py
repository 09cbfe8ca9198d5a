from django.apps import AppConfig


class LaunchConfig(AppConfig):
    name = "rlviewer.launch"

    def ready(self) -> None:
        # Tasks bind to this Celery application; imported here, so that the rest of the package stays light.
        import rlviewer.celery  # noqa: F401
