"""What passes between a worker and the process that works over stored steps (`training.replay`). Imports no torch.

A frame is the sizes of its header (uint32) and of its body (uint64), little-endian, a header in JSON and a body of bytes.

A request's header: `key` of the step, `config` (TOML; empty: the source had none), `recipe`, `constants`, `rewards`,
`earlier_rewards`, and `batch_bytes`. Its body is a batch file of so many bytes and the run's vocabulary; nothing when the process has
that step in memory from the request before. An answer's header: `labels` and `measures`, of rewards judged anew `errors` by rollout and
`definitions`; its body is an Arrow stream with a row a rollout.
"""

import json
import struct
from collections.abc import Mapping
from typing import Any, BinaryIO

HEAD = struct.Struct("<IQ")
LONGEST_HEADER = 64 * 1024 * 1024
# Raised whenever the same step may give other numbers; what is stored of older versions is worked out again.
VERSION = 1


def pack_frame(header: Mapping[str, Any], body: bytes = b"") -> bytes:
    told = json.dumps(header, allow_nan=False).encode()
    return HEAD.pack(len(told), len(body)) + told + body


def frame_size(data: bytes | bytearray) -> int | None:
    """Bytes of the frame that begins with `data`; None: more are needed to tell."""
    if len(data) < HEAD.size:
        return None
    header, body = HEAD.unpack_from(data)
    return HEAD.size + int(header) + int(body)


def unpack_frame(data: bytes) -> tuple[dict[str, Any], bytes]:
    header, _ = HEAD.unpack_from(data)
    end = HEAD.size + header
    return dict(json.loads(data[HEAD.size : end])), data[end:]


def read_frame(stream: BinaryIO) -> tuple[dict[str, Any], bytes] | None:
    """The next frame; None: the other side has ended.

    Raises:
        ValueError: the bytes are no frame.
    """
    head = stream.read(HEAD.size)
    if len(head) < HEAD.size:
        return None
    header, body = HEAD.unpack(head)
    if header > LONGEST_HEADER:
        raise ValueError(f"a header of {header} bytes")
    told, rest = stream.read(header), stream.read(body)
    if len(rest) < body:
        return None
    return dict(json.loads(told)), rest
