"""Static files come whole, also under ASGI, with WhiteNoise's own headers."""

import gzip
import warnings
from pathlib import Path

from django.conf import settings
from django.test import AsyncClient, Client

CSS = "/static/css/app.css"
CONTENT = (Path(settings.BASE_DIR) / "static/css/app.css").read_bytes()


async def test_a_file_comes_whole_under_asgi_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        response = await AsyncClient().get(CSS)
    assert not response.streaming and response.content == CONTENT
    assert response["Content-Type"] == 'text/css; charset="utf-8"' and "immutable" in response["Cache-Control"]
    assert int(response["Content-Length"]) == len(CONTENT)


def test_a_part_a_head_and_an_unchanged_file() -> None:
    client = Client()
    part = client.get(CSS, headers={"range": "bytes=10-19"})
    assert part.status_code == 206 and part.content == CONTENT[10:20]
    head = client.head(CSS)
    assert head.content == b"" and int(head["Content-Length"]) == len(CONTENT)
    unchanged = (
        client.get(CSS, headers={"if-none-match": head["ETag"]})
        if head.has_header("ETag")
        else client.get(CSS, headers={"if-modified-since": head["Last-Modified"]})
    )
    assert unchanged.status_code == 304 and unchanged.content == b"" and not unchanged.has_header("Content-Type")


def test_a_file_goes_out_compressed_to_whoever_takes_it() -> None:
    packed = Client().get(CSS, headers={"accept-encoding": "gzip, br"})
    assert packed["Content-Encoding"] == "gzip" and "Accept-Encoding" in packed["Vary"]
    assert "immutable" in packed["Cache-Control"] and gzip.decompress(packed.content) == CONTENT
    assert int(packed["Content-Length"]) == len(packed.content) < len(CONTENT) / 2
    part = Client().get(CSS, headers={"accept-encoding": "gzip", "range": "bytes=10-19"})
    assert part.content == CONTENT[10:20] and "Content-Encoding" not in part
