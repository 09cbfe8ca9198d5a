from django.urls import path

from rlviewer.counterfactual import reward_views, views

urlpatterns = [
    path("runs/<int:run_id>/counterfactual/", views.counterfactual, name="counterfactual"),
    path("runs/<int:run_id>/counterfactual/ask/", views.counterfactual_ask, name="counterfactual-ask"),
    path("runs/<int:run_id>/rescore/", reward_views.rescore, name="rescore"),
    path("runs/<int:run_id>/rescore/ask/", reward_views.rescore_ask, name="rescore-ask"),
    path("projects/<int:project_id>/rewards/", reward_views.project_rewards, name="project-rewards"),
    path("projects/<int:project_id>/rewards/note/", reward_views.reward_note, name="reward-note"),
]
