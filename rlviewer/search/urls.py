from django.urls import path

from rlviewer.search import views

urlpatterns = [
    path("projects/<int:project_id>/rollouts/", views.project_rollouts, name="project-rollouts"),
    path("runs/<int:run_id>/rollouts/", views.rollout_list, name="rollout-list"),
    path("rollouts/compare/", views.rollout_compare, name="rollout-compare"),
    path("rollouts/columns/", views.columns_save, name="rollout-columns"),
]
