from django.urls import path

from rlviewer.review import views

urlpatterns = [
    path("rollouts/<int:rollout_id>/labels/", views.rollout_labels, name="rollout-labels"),
    path("rollouts/<int:rollout_id>/labels/add/", views.label_add, name="label-add"),
    path("labels/<int:label_id>/edit/", views.label_edit, name="label-edit"),
    path("labels/<int:label_id>/remove/", views.label_remove, name="label-remove"),
    path("projects/<int:project_id>/labels/", views.project_labels, name="project-labels"),
    path("projects/<int:project_id>/labels/add/", views.label_name_add, name="label-name-add"),
    path("projects/<int:project_id>/labels/change/", views.label_name_change, name="label-name-change"),
]
