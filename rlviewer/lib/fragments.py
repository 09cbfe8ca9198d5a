"""A page and its fragment share one address; caches must not mix them up."""

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse
from django.utils.cache import patch_vary_headers


class FragmentCacheMiddleware:
    """Pages are private and asked for again; a fragment is never kept, else the back button could show it as a page."""

    sync_capable = True
    async_capable = False

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self.get_response(request)
        is_fragment = "HX-Request" in request.headers
        response.headers.setdefault("Cache-Control", "no-store" if is_fragment else "private, no-cache")
        patch_vary_headers(response, ["HX-Request"])
        return response
