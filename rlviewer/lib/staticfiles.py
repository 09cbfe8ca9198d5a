"""Static files whose address changes with their content, so browsers may keep them for a year."""

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import Any

from django.contrib.staticfiles import finders
from whitenoise.storage import CompressedStaticFilesStorage


@lru_cache(maxsize=512)
def _digest(path: str, modified_ns: int, size: int) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:12]


class VersionedStorage(CompressedStaticFilesStorage):
    """`{% static %}` adds `?v=` and a digest of the content; `collectstatic` adds compressed copies."""

    def url(self, name: str | None, *args: Any, **kwargs: Any) -> str:
        url = super().url(name)
        found = finders.find(name or "")
        if not isinstance(found, str):
            return url
        stat = Path(found).stat()
        return f"{url}?v={_digest(found, stat.st_mtime_ns, stat.st_size)}"
