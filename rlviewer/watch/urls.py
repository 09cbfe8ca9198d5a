from django.urls import path

from rlviewer.watch import views

urlpatterns = [
    path("projects/<int:project_id>/searches/", views.project_searches, name="project-searches"),
    path("projects/<int:project_id>/searches/add/", views.search_create, name="search-create"),
    path("projects/<int:project_id>/searches/suspect/", views.suspect_save, name="suspect-save"),
    path("searches/<int:search_id>/", views.search_detail, name="search-detail"),
    path("searches/<int:search_id>/edit/", views.search_edit, name="search-edit"),
    path("searches/<int:search_id>/archive/", views.search_archive, name="search-archive"),
    path("searches/<int:search_id>/csv/", views.search_csv, name="search-csv"),
    path("runs/<int:run_id>/alarms/", views.run_alarms, name="run-alarms"),
]
