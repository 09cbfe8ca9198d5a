from django.urls import path

from rlviewer.search import views

urlpatterns = [
    path("projects/<int:project_id>/rollouts/", views.project_rollouts, name="project-rollouts"),
    path("runs/<int:run_id>/rollouts/", views.rollout_list, name="rollout-list"),
    path(
        "projects/<int:project_id>/rollouts/export/<slug:name>/", views.project_export, name="project-rollouts-export"
    ),
    path("runs/<int:run_id>/rollouts/export/<slug:name>/", views.run_export, name="run-rollouts-export"),
    path("rollouts/<int:rollout_id>/preview/", views.rollout_preview, name="rollout-preview"),
    path("rollouts/compare/", views.rollout_compare, name="rollout-compare"),
    path("rollouts/columns/", views.columns_save, name="rollout-columns"),
]
