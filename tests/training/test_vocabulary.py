import pytest

from training import vocabulary
from training.vocabulary import VocabularyError


def test_pieces_come_back_byte_for_byte(tmp_path) -> None:
    pieces = [b"", b"a", b"\x00", b"\xf0\x9f", b" carry", "\ud800".encode("utf-8", "surrogatepass"), b"x" * 5000]
    path = tmp_path / vocabulary.FILE_NAME
    vocabulary.write(path, pieces)
    assert vocabulary.unpack(path.read_bytes()) == pieces
    assert vocabulary.pack(pieces) == path.read_bytes()  # equal pieces share one stored row
    assert vocabulary.unpack(vocabulary.pack([])) == []


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: b"PK" + data,
        lambda data: data[:-3],
        lambda data: data[:8] + b"\xff\xff\xff\xff" + data[12:],
        lambda data: data[:12] + b"\xff" * 8 + data[20:],
        lambda data: data[:25] + b"\x00" * 9 + data[34:],
    ],
)
def test_damaged_bytes_are_named_not_guessed(damage) -> None:
    with pytest.raises(VocabularyError):
        vocabulary.unpack(damage(vocabulary.pack([b"one", b"two", b"three" * 100])))


def test_byte_level_table_is_a_bijection() -> None:
    table = vocabulary.byte_level_table()
    assert sorted(table.values()) == list(range(256))
    assert (table["Ġ"], table["Ċ"], table["a"]) == (32, 10, 97)


class Tokenizer:
    """The three methods of a Hugging Face tokenizer that are read."""

    def __init__(self, tokens: list[str | None], added: dict[int, str]) -> None:
        self.tokens, self.added_tokens_decoder = tokens, added

    def __len__(self) -> int:
        return len(self.tokens)

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str | None]:
        return [self.tokens[i] for i in ids]


def test_pieces_of_a_byte_level_tokenizer_join_to_the_text() -> None:
    tokenizer = Tokenizer(["<eos>", "Ġcarry", "Ċ", "ðŁ", "Ģ", None], {0: "<eos>"})
    assert vocabulary.pieces_of(tokenizer) == [b"<eos>", b" carry", b"\n", b"\xf0\x9f", b"\x80", b""]


def test_pieces_of_a_sentencepiece_tokenizer_join_to_the_text() -> None:
    tokenizer = Tokenizer(["<s>", "▁sum", "<0x0A>", "é"], {0: "<s>"})
    assert vocabulary.pieces_of(tokenizer) == [b"<s>", b" sum", b"\n", "é".encode()]


def test_pieces_of_a_character_tokenizer_are_its_characters() -> None:
    tokenizer = Tokenizer(["<pad>", "7", "+", " "], {0: "<pad>"})
    assert vocabulary.pieces_of(tokenizer) == [b"<pad>", b"7", b"+", b" "]
