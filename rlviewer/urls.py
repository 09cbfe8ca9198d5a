"""One include per app."""

from django.urls import URLPattern, URLResolver, include, path

from rlviewer.api import api

urlpatterns: list[URLPattern | URLResolver] = [
    path("", include("rlviewer.embedded.urls")),
    path("", include("rlviewer.accounts.urls")),
    path("", include("rlviewer.runs.list_urls")),
    path("", include("rlviewer.runs.urls")),
    path("", include("rlviewer.review.urls")),
    path("", include("rlviewer.search.urls")),
    path("", include("rlviewer.watch.urls")),
    path("", include("rlviewer.analysis.urls")),
    path("", include("rlviewer.counterfactual.urls")),
    path("", include("rlviewer.signal.urls")),
    path("", include("rlviewer.launch.urls")),
    path("", include("rlviewer.sweeps.urls")),
    path("", include("rlviewer.compare.urls")),
    path("api/v1/", api.urls),
]
