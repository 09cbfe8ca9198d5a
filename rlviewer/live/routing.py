"""Addresses of the live channel."""

from django.urls import path, re_path

from rlviewer.live.consumers import LiveConsumer, NowhereConsumer

websocket_urlpatterns = [
    path("ws/runs/<int:pk>/", LiveConsumer.as_asgi(), {"kind": "run"}),
    path("ws/projects/<int:pk>/", LiveConsumer.as_asgi(), {"kind": "project"}),
    re_path(r"", NowhereConsumer.as_asgi()),
]
