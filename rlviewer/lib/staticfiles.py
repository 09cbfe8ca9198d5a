"""Static files whose address changes with their content, so browsers may keep them for a year."""

import gzip
import hashlib
from functools import lru_cache
from pathlib import Path
from typing import Any

from django.contrib.staticfiles import finders
from django.http import HttpRequest, HttpResponse
from whitenoise.middleware import WhiteNoiseMiddleware
from whitenoise.responders import StaticFile
from whitenoise.storage import CompressedStaticFilesStorage


@lru_cache(maxsize=512)
def _digest(path: str, modified_ns: int, size: int) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:12]


# Of a type that a browser can read less of; pictures are compressed already.
COMPRESSED_TYPES = ("text/", "application/json", "application/javascript", "image/svg+xml")
SMALLEST_COMPRESSED_BYTES = 1_000


@lru_cache(maxsize=64)
def _gzipped(path: str, modified_ns: int, size: int) -> bytes:
    return gzip.compress(Path(path).read_bytes(), mtime=0)


def _is_compressed(kind: str, headers: dict[str, str], request: HttpRequest) -> bool:
    """Whether a whole file of this type goes out compressed here; `collectstatic` may have done it before."""
    return (
        kind.startswith(COMPRESSED_TYPES)
        and "Content-Encoding" not in headers
        and "Content-Range" not in headers
        and "gzip" in request.headers.get("Accept-Encoding", "")
    )


class VersionedStorage(CompressedStaticFilesStorage):
    """`{% static %}` adds `?v=` and a digest of the content; `collectstatic` adds compressed copies."""

    def url(self, name: str | None, *args: Any, **kwargs: Any) -> str:
        url = super().url(name)
        found = finders.find(name or "")
        if not isinstance(found, str):
            return url
        stat = Path(found).stat()
        return f"{url}?v={_digest(found, stat.st_mtime_ns, stat.st_size)}"


class StaticFilesMiddleware(WhiteNoiseMiddleware):
    """WhiteNoise with answers that are whole: under ASGI a streamed file is read whole too, with a warning each time."""

    @staticmethod
    def serve(static_file: StaticFile, request: HttpRequest) -> HttpResponse:
        found = static_file.get_response(request.method, request.META)
        headers = dict(found.headers)
        content = b""
        if found.file is not None:
            with found.file:
                content = found.file.read()
            if len(content) >= SMALLEST_COMPRESSED_BYTES and _is_compressed(
                headers.get("Content-Type", ""), headers, request
            ):
                stat = Path(found.file.name).stat()
                content = _gzipped(found.file.name, stat.st_mtime_ns, stat.st_size)
                headers |= {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
        response = HttpResponse(content, status=int(found.status))
        del response.headers["Content-Type"]  # WhiteNoise's own is the right one, and a 304 has none
        for name, value in headers.items():
            response.headers[name] = value
        if found.file is not None:  # a file that was replaced under a running server
            response.headers["Content-Length"] = str(len(content))
        return response
