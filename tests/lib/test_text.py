"""Any bytes to text and back; strict JSON in and out."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlviewer.lib.json import JsonError, dumps, loads
from rlviewer.lib.text import bytes_from_text, cut_text, text_from_bytes

odd = st.sampled_from(
    [b"\0", b"\xff", b"\xed\xa0\xbd", b"\xf4\x8f\xbc\x80", b"\xf4\x8f", "\U0010ffff".encode(), "é\n".encode()]
)


@given(st.lists(st.binary(max_size=6) | odd, max_size=8).map(b"".join))
def test_bytes_come_back_and_the_text_can_be_stored(data: bytes) -> None:
    text = text_from_bytes(data)
    assert bytes_from_text(text) == data
    assert "\0" not in text
    text.encode()  # no lone surrogate


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0", max_codepoint=0x10FEFF)))
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert text_from_bytes(text.encode()) == text


def test_text_with_newlines_takes_the_fast_path() -> None:
    data = b"a line of a completion\n" * 90_000
    start = time.perf_counter()
    text_from_bytes(data)
    # 2 MB; a loop over characters takes half a second.
    assert time.perf_counter() - start < 0.1


def test_a_cut_is_shown() -> None:
    assert cut_text("abc", 3) == "abc"
    assert cut_text("abcd", 3) == "ab…"


@pytest.mark.parametrize(
    "text", ["NaN", "[Infinity]", "1e999", '{"a":1,"a":2}', "[" * 60 + "]" * 60, "9" * 400, "", "{", "[1] x"]
)
def test_what_is_not_strict_json_is_refused(text: str) -> None:
    with pytest.raises(JsonError):
        loads(text)


def test_json_is_read_as_postgres_can_keep_it() -> None:
    assert loads('{"a\\u0000": ["\\ud83d", 1.5, null, true]}') == {
        "a\U0010ff00": ["\U0010ffed\U0010ffa0\U0010ffbd", 1.5, None, True]
    }


def test_non_finite_numbers_are_written_as_words() -> None:
    text = dumps({"a": [float("nan"), float("inf"), -float("inf"), -0.0]})
    assert json.loads(text) == {"a": ["NaN", "Infinity", "-Infinity", -0.0]}
