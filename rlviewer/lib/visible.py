"""Stored text for one line of a list: nothing in it can hide, reorder or break the page's own text."""

import re

# Controls, zero-width and bidirectional marks, line separators, lone surrogates, private use and non-characters.
HIDDEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ue000-\uf8ff\ufe00-\ufe0f\ufeff"
    "\ufff0-\uffff\U000e0000-\U0010ffff]"
)
NAMED = {"\n": "⏎", "\t": "⇥", "\r": "␍", "\x00": "␀"}


def _shown(match: "re.Match[str]") -> str:
    char = match.group()
    code = ord(char)
    if char in NAMED:
        return NAMED[char]
    # How the decoder hands over a byte that is no UTF-8.
    return f"⟨{code - 0xDC00:02X}⟩" if 0xDC80 <= code <= 0xDCFF else f"⟨U+{code:04X}⟩"


def _decoded(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def visible(data: bytes) -> str:
    """All of `data` as printable text: a newline is ⏎, a byte that is no UTF-8 is ⟨FF⟩, a hidden character ⟨U+202E⟩."""
    return HIDDEN.sub(_shown, _decoded(data))


def visible_end(data: bytes, limit: int = 120) -> str:
    """The last `limit` characters, where an answer usually stands; an ellipsis says that more came before."""
    # A character has at most four bytes, so one that the cut splits lies outside of the last `limit`.
    text = _decoded(data[-4 * limit - 3 :])
    is_all = len(text) <= limit and len(data) <= 4 * limit + 3
    return HIDDEN.sub(_shown, text) if is_all else "…" + HIDDEN.sub(_shown, text[-limit:])


def visible_start(data: bytes, limit: int = 200) -> str:
    """The first `limit` characters; an ellipsis says that more follows."""
    text = _decoded(data[: 4 * limit + 3])
    is_all = len(text) <= limit and len(data) <= 4 * limit + 3
    return HIDDEN.sub(_shown, text) if is_all else HIDDEN.sub(_shown, text[:limit]) + "…"


def visible_block(data: bytes, limit: int) -> tuple[str, bool]:
    """Up to `limit` characters with their line breaks and tabs, for a `pre`; and whether more follows."""
    text = _decoded(data[: 4 * limit + 3])
    is_all = len(text) <= limit and len(data) <= 4 * limit + 3
    kept = HIDDEN.sub(lambda match: match.group() if match.group() in "\n\t" else _shown(match), text[:limit])
    return kept, not is_all
