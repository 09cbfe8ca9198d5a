r"""Any bytes to text that Postgres, JSON and browsers accept, and back without loss.

A byte that is not valid UTF-8, or is NUL, becomes one character of plane 16's last private block (U+10FF00 + byte).
The bytes of a real character of that block are treated as invalid, so the way back is unique.
"""

import re

ESCAPE_BASE = 0x10FF00
# What decoding with "surrogateescape" leaves that must be escaped: NUL, invalid bytes, real characters of the block.
_ODD = re.compile("[\0\udc80-\udcff\U0010ff00-\U0010ffff]")
_ESCAPED = re.compile("([\U0010ff00-\U0010ffff])")


def text_from_bytes(data: bytes) -> str:
    """Reversible text of `data`; `bytes_from_text` gives the same bytes back."""
    # Fast path: two searches in C. Every character of the private block starts with these two bytes.
    if b"\0" not in data and b"\xf4\x8f" not in data:
        try:
            return data.decode()
        except UnicodeDecodeError:
            pass
    return _ODD.sub(_escape, data.decode("utf-8", "surrogateescape"))


def _escape(match: re.Match[str]) -> str:
    char = match[0]
    return "".join(chr(ESCAPE_BASE + byte) for byte in char.encode("utf-8", "surrogateescape"))


def bytes_from_text(text: str) -> bytes:
    """The bytes behind `text_from_bytes`."""
    if not _ESCAPED.search(text):
        return bytes_from_str(text)
    # A split by a captured group alternates: text, escaped character, text, ...
    return b"".join(
        bytes([ord(part) - ESCAPE_BASE]) if position % 2 else bytes_from_str(part)
        for position, part in enumerate(_ESCAPED.split(text))
    )


def bytes_from_str(text: str) -> bytes:
    """UTF-8 of a Python string; a lone surrogate keeps its three bytes."""
    return text.encode("utf-8", "surrogatepass")


def cut_text(text: str, limit: int) -> str:
    """At most `limit` characters; the last is an ellipsis where something was cut."""
    return text if len(text) <= limit else text[: limit - 1] + "…"
