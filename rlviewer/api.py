"""The API under /api/v1/: who may call, strict JSON, errors in words. Each app brings its router."""

from typing import Any

from django.http import HttpRequest, HttpResponse
from ninja import NinjaAPI
from ninja.errors import HttpError, ValidationError
from ninja.renderers import BaseRenderer

from rlviewer.accounts.api_auth import TokenOrSession
from rlviewer.lib.json import encoded
from rlviewer.runs.api import router as runs_router
from rlviewer.search.api import router as search_router

DESCRIPTION = """Read runs, steps and rollouts with every token.

JSON has no NaN and no infinities: such a number is the string "NaN", "Infinity" or "-Infinity". Bytes that are text are
given as `text`, and also as `base64` when they are not valid UTF-8. Lists go on while `next` is not null: pass it as `after`.
"""


class StrictRenderer(BaseRenderer):
    """JSON that every strict parser accepts."""

    media_type = "application/json"

    def render(self, request: HttpRequest, data: Any, *, response_status: int) -> bytes:
        return encoded(data)


api = NinjaAPI(
    title="rlviewer",
    version="1",
    description=DESCRIPTION,
    # Its page loads scripts from elsewhere, which our Content-Security-Policy forbids; docs/api.md is for people.
    docs_url=None,
    urls_namespace="api",
    auth=TokenOrSession(),
    renderer=StrictRenderer(),
)
api.add_router("", runs_router)
api.add_router("", search_router)


@api.exception_handler(HttpError)
def say_http_error(request: HttpRequest, error: HttpError) -> HttpResponse:
    response = api.create_response(request, {"detail": str(error)}, status=error.status_code)
    if error.status_code == 401:
        response.headers["WWW-Authenticate"] = 'Bearer realm="rlviewer"'
    return response


@api.exception_handler(ValidationError)
def say_bad_parameter(request: HttpRequest, error: ValidationError) -> HttpResponse:
    """400 that names each parameter, what is wrong with it and what came."""
    said = "; ".join(f"{part['loc'][-1]}={shown(request, part)!r}: {part['msg']}" for part in error.errors)
    return api.create_response(request, {"detail": f"{said}. /api/v1/openapi.json lists what is allowed."}, status=400)


def shown(request: HttpRequest, part: dict[str, Any]) -> str:
    name = str(part["loc"][-1])
    assert request.resolver_match is not None
    return str(request.GET.get(name, request.resolver_match.kwargs.get(name, "")))[:100]
