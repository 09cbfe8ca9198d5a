from django.urls import path

from rlviewer.analysis import views

urlpatterns = [
    path("runs/<int:run_id>/clusters/", views.run_clusters, name="run-clusters"),
    path("projects/<int:project_id>/clusters/", views.project_clusters, name="project-clusters"),
    path("runs/<int:run_id>/embed/", views.run_embed, name="run-embed"),
    path("projects/<int:project_id>/embed/", views.project_embed, name="project-embed"),
    path("embedding/<int:job_id>/stop/", views.embedding_stop, name="embedding-stop"),
    path("rollouts/<int:rollout_id>/similar/", views.rollout_similar, name="rollout-similar"),
]
