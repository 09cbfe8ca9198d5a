"""Is the site alive?"""

import psycopg
from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from rlviewer.embedded.database import ping


@require_safe
def healthz(request: HttpRequest) -> HttpResponse:
    """200 when the database answers, else 503; open to everybody."""
    try:
        ping()
    except psycopg.Error:
        return HttpResponse("database away\n", status=503, content_type="text/plain")
    return HttpResponse("ok\n", content_type="text/plain")
