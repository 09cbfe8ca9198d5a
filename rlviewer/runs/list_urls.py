from django.urls import path

from rlviewer.runs import list_views

urlpatterns = [
    path("projects/<int:project_id>/", list_views.run_list, name="run-list"),
]
