"""The keys that Spark's default state store has written, newest first.

They are in the files of `HDFSBackedStateStoreProvider`: `<version>.delta` of each micro-batch, and now and then all as
`<version>.snapshot`. Other providers are not read.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from io import BytesIO
from typing import Final

import pyarrow as pa

from streaming_source.auditing.checkpoint import Checkpoint

__all__ = ["entries_of", "partitions_of", "time_in", "versions_of", "window_in"]

_FILE: Final = re.compile(r"(\d+)(_[\w-]+)?\.(delta|snapshot)")
_MAGIC: Final = b"LZ4Block"
_HEADER: Final = struct.Struct("<8sBiii")
_RAW: Final = 0x10
_WORD: Final = 8


def partitions_of(checkpoint: Checkpoint, operator: int) -> list[str]:
    """The folders of the state of an operator, by its number."""
    folder = f"state/{operator}"
    return [f"{folder}/{name}" for name in checkpoint.names_in(folder) if name.isdigit()]


def versions_of(checkpoint: Checkpoint, folder: str) -> list[str]:
    """The files of a partition, newest first."""
    files = ((int(match[1]), name) for name in checkpoint.names_in(folder) if (match := _FILE.fullmatch(name)))
    return [f"{folder}/{name}" for _, name in sorted(files, reverse=True)]


def entries_of(checkpoint: Checkpoint, file: str) -> list[tuple[bytes, bool]] | None:
    """Keys in the order of writing, and whether each has a value: one that has none was removed.

    None if the file cannot be read: it is compressed otherwise, or not yet written to its end.
    """
    try:
        return list(_entries(_decompressed(checkpoint.bytes_of(file) or b"")))
    except (struct.error, ValueError, pa.ArrowException):
        return None


def window_in(key: bytes, columns: int, place: int) -> tuple[int, int] | None:
    """Start and end, in microseconds, of the window in a column of an `UnsafeRow`; None if it is null."""
    where = time_in(key, columns, place)
    if where is None:
        return None
    start, end = struct.unpack_from("<qq", key, (where >> 32) + _WORD)
    return start, end


def time_in(key: bytes, columns: int, place: int) -> int | None:
    """The timestamp, in microseconds, in a column of an `UnsafeRow`; None if it is null."""
    (nulls,) = struct.unpack_from("<q", key, place // 64 * _WORD)
    if nulls >> place % 64 & 1:
        return None
    return int(struct.unpack_from("<q", key, (-(-columns // 64) + place) * _WORD)[0])


def _decompressed(data: bytes) -> bytes:
    """The blocks of lz4-java's streams."""
    codec, parts, at = pa.Codec("lz4_raw"), [], 0
    while at < len(data):
        magic, token, stored, size, _ = _HEADER.unpack_from(data, at)
        if magic != _MAGIC:
            raise ValueError("no LZ4 stream of Java")
        at += _HEADER.size
        block = data[at : at + stored]
        at += stored
        if size:
            parts.append(block if token & 0xF0 == _RAW else bytes(codec.decompress(block, size)))
    return b"".join(parts)


def _entries(data: bytes) -> Iterator[tuple[bytes, bool]]:
    """Of a file: a size and a key, a size and a value; a size of -1 for no value, and at the end."""
    stream = BytesIO(data)

    def size() -> int:
        (found,) = struct.unpack(">i", stream.read(4))
        return int(found)

    while (length := size()) >= 0:
        key, value = stream.read(length), size()
        stream.seek(max(value, 0), 1)
        yield key, value >= 0
