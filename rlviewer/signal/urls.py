from django.urls import path

from rlviewer.signal import views

urlpatterns = [
    path("runs/<int:run_id>/signal/", views.signal_page, name="signal"),
    path("runs/<int:run_id>/signal/prompts/<slug:which>.csv", views.signal_prompts, name="signal-prompts"),
    path("runs/<int:run_id>/signal/<slug:name>/", views.signal_page, name="signal-page"),
]
