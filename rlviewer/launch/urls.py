from django.urls import path

from rlviewer.launch import views

urlpatterns = [
    path("", views.home, name="home"),
    path("go/", views.go, name="go"),
    path("demo/", views.demo_launch, name="demo-launch"),
    path("projects/<int:project_id>/launch/", views.run_launch, name="run-launch"),
    *(path(f"runs/<int:run_id>/{verb}/", views.run_ask, {"verb": verb}, name=f"run-{verb}") for verb in views.ASKED),
    path("workers/", views.workers, name="workers"),
]
