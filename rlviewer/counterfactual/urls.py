from django.urls import path

from rlviewer.counterfactual import views

urlpatterns = [
    path("runs/<int:run_id>/counterfactual/", views.counterfactual, name="counterfactual"),
    path("runs/<int:run_id>/counterfactual/ask/", views.counterfactual_ask, name="counterfactual-ask"),
]
