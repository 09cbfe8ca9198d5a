from django.urls import path

from rlviewer.embedded import views

urlpatterns = [path("healthz", views.healthz, name="healthz")]
