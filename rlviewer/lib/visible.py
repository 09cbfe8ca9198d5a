"""Stored text for one line of a list: nothing in it can hide, reorder or break the page's own text."""

NAMED = {"\n": "⏎", "\t": "⇥"}


def _shown(char: str) -> str:
    code = ord(char)
    if char in NAMED:
        return NAMED[char]
    if 0xDC80 <= code <= 0xDCFF:  # how the decoder hands over a byte that is no UTF-8
        return f"⟨{code - 0xDC00:02X}⟩"
    return f"⟨{code:02X}⟩" if code < 0x80 else f"⟨U+{code:04X}⟩"


def _named(text: str, keep: str = "") -> str:
    """`text` with every control, format, private, unassigned and odd space character named."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in keep else _shown(char) for char in text)


def decoded(data: bytes) -> str:
    """Text of `data` without loss, which must be named before it is shown."""
    return data.decode("utf-8", "surrogateescape")


def visible(data: bytes) -> str:
    """All of `data` as printable text: a newline is ⏎, a control or a byte that is no UTF-8 is ⟨FF⟩, a hidden character ⟨U+202E⟩."""
    return _named(decoded(data))


def visible_end(data: bytes, limit: int = 120) -> str:
    """The last `limit` characters, where an answer usually stands; an ellipsis says that more came before."""
    # A character has at most four bytes, so one that the cut splits lies outside of the last `limit`.
    text = decoded(data[-4 * limit - 3 :])
    is_all = len(text) <= limit and len(data) <= 4 * limit + 3
    return _named(text) if is_all else "…" + _named(text[-limit:])


def visible_start(data: bytes, limit: int = 200) -> str:
    """The first `limit` characters; an ellipsis says that more follows."""
    text = decoded(data[: 4 * limit + 3])
    is_all = len(text) <= limit and len(data) <= 4 * limit + 3
    return _named(text) if is_all else _named(text[:limit]) + "…"


def visible_lines(text: str) -> str:
    """All of a decoded text with its line breaks and tabs; everything else that hides is named."""
    return _named(text, keep="\n\t")


def visible_block(data: bytes, limit: int) -> tuple[str, bool]:
    """Up to `limit` characters with their line breaks and tabs, for a `pre`; and whether more follows."""
    text = decoded(data[: 4 * limit + 3])
    is_all = len(text) <= limit and len(data) <= 4 * limit + 3
    return visible_lines(text[:limit]), not is_all
