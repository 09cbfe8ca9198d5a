"""The text of every token id, kept once per tokenizer, so that a page can show tokens without one. Imports no torch.

File: 8 magic bytes, the number of pieces (uint32) and the body's size (uint64), little endian; then the body as one zstd frame:
the pieces' lengths (uint32 each) and the pieces joined. A piece is bytes, since half of a character is a token too.
"""

import struct
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from training.spool import write_bytes_durably

FILE_NAME = "vocabulary.bin"
MAGIC = b"RLVVOC1\n"
HEAD = struct.Struct("<IQ")
# A vocabulary of 256 k pieces is about 3 MB; anything near this is not one.
BODY_LIMIT = 1 << 30


class VocabularyError(ValueError):
    """Bytes that are no vocabulary."""


def pack(pieces: Sequence[bytes]) -> bytes:
    """The file's bytes: equal pieces give equal bytes."""
    lengths = struct.pack(f"<{len(pieces)}I", *map(len, pieces))
    body = lengths + b"".join(pieces)
    frame = pa.Codec("zstd", compression_level=9).compress(body, asbytes=True)
    return MAGIC + HEAD.pack(len(pieces), len(body)) + frame


def unpack(data: bytes) -> list[bytes]:
    """The piece of each token id.

    Raises:
        VocabularyError: not a vocabulary, or damaged.
    """
    if not data.startswith(MAGIC) or len(data) < len(MAGIC) + HEAD.size:
        raise VocabularyError(f"not a vocabulary: it starts with {data[:8]!r}, not {MAGIC!r}")
    count, size = HEAD.unpack_from(data, len(MAGIC))
    if size > BODY_LIMIT or 4 * count > size:
        raise VocabularyError(f"damaged vocabulary: {count} pieces in {size} bytes")
    try:
        body = pa.decompress(data[len(MAGIC) + HEAD.size :], decompressed_size=size, codec="zstd", asbytes=True)
    except (pa.ArrowException, OSError) as error:
        raise VocabularyError(f"damaged vocabulary: {error}") from error
    lengths = struct.unpack_from(f"<{count}I", body)
    if 4 * count + sum(lengths) != size:
        raise VocabularyError("damaged vocabulary: the pieces do not add up to its size")
    pieces, start = [], 4 * count
    for length in lengths:
        pieces.append(body[start : start + length])
        start += length
    return pieces


def write(path: Path, pieces: Sequence[bytes]) -> None:
    """Write the vocabulary of a run, durably, beside its configuration (`FILE_NAME`)."""
    write_bytes_durably(path, pack(pieces))


def pieces_of(tokenizer: object) -> list[bytes]:
    """The bytes of every id of a Hugging Face tokenizer; an id without a token gives empty bytes.

    Byte-level tokenizers spell bytes as printable characters and SentencePiece spells a space as U+2581 and a lone byte
    as <0x0A>; both are undone, so that the pieces of a completion join to its text.
    """
    size = len(tokenizer)  # type: ignore[arg-type]
    tokens: list[str | None] = tokenizer.convert_ids_to_tokens(list(range(size)))  # type: ignore[attr-defined]
    added = {int(key): str(value) for key, value in getattr(tokenizer, "added_tokens_decoder", {}).items()}
    ordinary = {char for index, token in enumerate(tokens) if token and index not in added for char in token}
    # A byte-level vocabulary spells its spaces, so it has the spelling and never a space itself.
    byte_level = "Ġ" in ordinary and " " not in ordinary
    table = byte_level_table()
    pieces = []
    for index, token in enumerate(tokens):
        if token is None:
            pieces.append(b"")
        elif index in added:
            pieces.append(added[index].encode("utf-8", "surrogatepass"))
        elif byte_level and all(char in table for char in token):
            pieces.append(bytes(table[char] for char in token))
        elif len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            pieces.append(bytes([int(token[3:5], 16)]))
        else:
            pieces.append(token.replace("▁", " ").encode("utf-8", "surrogatepass"))
    return pieces


def byte_level_table() -> dict[str, int]:
    """GPT-2's printable spelling of each byte, and back to the byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {chr(byte): byte for byte in printable}
    for byte in range(256):
        if byte not in printable:
            table[chr(256 + len(table) - len(printable))] = byte
    return table
