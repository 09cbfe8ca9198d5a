from hypothesis import given
from hypothesis import strategies as st

from rlviewer.lib.visible import visible, visible_block, visible_end, visible_start


def test_what_hides_is_named() -> None:
    assert visible(b"a\nb\tc\r\x00") == "a⏎b⇥c⟨0D⟩⟨00⟩"
    assert visible(b"\xff ok \xed\xa0\x80") == "⟨FF⟩ ok ⟨ED⟩⟨A0⟩⟨80⟩"
    assert visible("abc\u202edef\u200b".encode()) == "abc⟨U+202E⟩def⟨U+200B⟩"
    assert visible("7 ÷ é 日 🙂 <b>".encode()) == "7 ÷ é 日 🙂 <b>"


def test_a_block_keeps_lines_and_tabs() -> None:
    assert visible_block(b"a\n\tb\r\x00\xff", 100) == ("a\n\tb⟨0D⟩⟨00⟩⟨FF⟩", False)
    assert visible_block(b"abc\ndef", 5) == ("abc\nd", True)


def test_the_end_is_cut_between_characters() -> None:
    assert visible_end("ab🙂🙂🙂".encode(), limit=2) == "…🙂🙂"
    assert visible_end(b"short", limit=5) == "short"
    assert visible_start("🙂🙂🙂ab".encode(), limit=2) == "🙂🙂…"
    assert visible_start(b"short", limit=5) == "short"


@given(st.binary(max_size=300), st.integers(1, 40))
def test_any_bytes_give_printable_text(data: bytes, limit: int) -> None:
    for text in (visible(data), visible_end(data, limit), visible_start(data, limit)):
        assert text.isprintable()
        text.encode()
    for length in (limit, limit * 3):
        text = ("é🙂" * length)[:length]
        assert visible_end(text.encode(), limit).endswith(text[-limit:])
        assert visible_start(text.encode(), limit).startswith(text[:limit])
