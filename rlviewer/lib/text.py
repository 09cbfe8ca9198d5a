r"""Any bytes to text that Postgres, JSON and browsers accept, and back without loss.

A byte that is not valid UTF-8, or is NUL, becomes one character of plane 16's last private block (U+10FF00 + byte).
The bytes of a real character of that block are treated as invalid, so the way back is unique.
"""

ESCAPE_BASE = 0x10FF00


def text_from_bytes(data: bytes) -> str:
    """Reversible text of `data`; `bytes_from_text` gives the same bytes back."""
    text = data.decode("utf-8", "surrogateescape")
    if text.isprintable():
        # Fast path: no NUL, no surrogate and no private character is printable.
        return text
    out = []
    for char in text:
        code = ord(char)
        if code == 0:
            out.append(chr(ESCAPE_BASE))
        elif 0xDC80 <= code <= 0xDCFF:
            out.append(chr(ESCAPE_BASE + code - 0xDC00))
        elif code >= ESCAPE_BASE:
            out.extend(chr(ESCAPE_BASE + byte) for byte in char.encode())
        else:
            out.append(char)
    return "".join(out)


def bytes_from_text(text: str) -> bytes:
    """The bytes behind `text_from_bytes`."""
    out = bytearray()
    for char in text:
        code = ord(char)
        if ESCAPE_BASE <= code <= ESCAPE_BASE + 0xFF:
            out.append(code - ESCAPE_BASE)
        else:
            out += char.encode("utf-8", "surrogatepass")
    return bytes(out)


def bytes_from_str(text: str) -> bytes:
    """UTF-8 of a Python string; a lone surrogate keeps its three bytes."""
    return text.encode("utf-8", "surrogatepass")
