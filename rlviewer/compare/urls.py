from django.urls import path

from rlviewer.compare import views

urlpatterns = [
    path("projects/<int:project_id>/compare/", views.runs_compared, name="runs-compared"),
    path("projects/<int:project_id>/algorithms/", views.algorithms, name="algorithms"),
    path("projects/<int:project_id>/algorithms/<slug:name>/", views.algorithm_detail, name="algorithm-detail"),
]
