from django.urls import path

from rlviewer.sweeps import views

urlpatterns = [
    path("projects/<int:project_id>/sweeps/", views.sweeps, name="sweep-list"),
    path("projects/<int:project_id>/sweeps/new/", views.sweep_launch, name="sweep-launch"),
    path("sweeps/<int:sweep_id>/", views.sweep_detail, name="sweep-detail"),
    path("sweeps/<int:sweep_id>/edit/", views.sweep_edit, name="sweep-edit"),
    *(
        path(f"sweeps/<int:sweep_id>/{verb}/", views.sweep_ask, {"verb": verb}, name=f"sweep-{verb}")
        for verb in views.ASKED
    ),
]
