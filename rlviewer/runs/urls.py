from django.urls import path, re_path

from rlviewer.runs import curve_views, group_views, views

urlpatterns = [
    path("runs/<int:run_id>/", views.run_detail, name="run-detail"),
    path("runs/<int:run_id>/curves/", curve_views.run_curves, name="run-curves"),
    path("runs/<int:run_id>/overlay/", curve_views.run_overlay, name="run-overlay"),
    path("runs/<int:run_id>/rename/", views.run_rename, name="run-rename"),
    path("runs/<int:run_id>/tags/", views.run_tags, name="run-tags"),
    path("runs/<int:run_id>/steps/<str:split>/<int:index>/", views.step_detail, name="step-detail"),
    path("groups/<int:group_id>/", group_views.group_detail, name="group-detail"),
    path("prompts/<int:prompt_id>/", group_views.prompt_detail, name="prompt-detail"),
    path("runs/<int:run_id>/prompts/", group_views.run_prompts, name="run-prompts"),
    path("rollouts/<int:rollout_id>/", views.rollout_detail, name="rollout-detail"),
    re_path(
        r"^rollouts/(?P<rollout_id>[0-9]{1,18})/(?P<what>text|prompt|ids|json|csv)/$",
        views.rollout_raw,
        name="rollout-raw",
    ),
    re_path(
        r"^rollouts/(?P<rollout_id>[0-9]{1,18})/(?P<part>turns|group|step|numbers)/$",
        views.rollout_part,
        name="rollout-part",
    ),
]
