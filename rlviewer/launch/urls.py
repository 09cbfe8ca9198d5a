from django.urls import path

from rlviewer.launch import views

urlpatterns = [
    path("", views.home, name="home"),
    path("demo/", views.demo_launch, name="demo-launch"),
    path("projects/<int:project_id>/launch/", views.run_launch, name="run-launch"),
    path("runs/<int:run_id>/stop/", views.run_stop, name="run-stop"),
    path("runs/<int:run_id>/pause/", views.run_pause, name="run-pause"),
    path("runs/<int:run_id>/continue/", views.run_continue, name="run-continue"),
    path("runs/<int:run_id>/resume/", views.run_resume, name="run-resume"),
    path("workers/", views.workers, name="workers"),
]
