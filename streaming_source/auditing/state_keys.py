"""The keys that Spark's default state store has written, newest first.

They are in the files of `HDFSBackedStateStoreProvider`: `<version>.delta` for each micro-batch, and sometimes a
`<version>.snapshot` of all entries. Files of other providers are not read.
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
    """Return the folders with the state of an operator, by its number."""
    folder = f"state/{operator}"
    return [f"{folder}/{name}" for name in checkpoint.names_in(folder) if name.isdigit()]


def versions_of(checkpoint: Checkpoint, folder: str) -> list[str]:
    """Return the files of a partition, newest first."""
    files = ((int(match[1]), name) for name in checkpoint.names_in(folder) if (match := _FILE.fullmatch(name)))
    return [f"{folder}/{name}" for _, name in sorted(files, reverse=True)]


def entries_of(checkpoint: Checkpoint, file: str) -> list[tuple[bytes, bool]] | None:
    """Return keys in the order of writing, and whether each has a value: a key without one was removed.

    None if the file cannot be read: it has another compression, or is being written.
    """
    try:
        return list(_entries(_decompressed(checkpoint.bytes_of(file) or b"")))
    except (struct.error, ValueError, pa.ArrowException):
        return None


def window_in(key: bytes, columns: int, place: int) -> tuple[int, int] | None:
    """Return start and end, in microseconds, of the window in a column of an `UnsafeRow`; None if it is null."""
    where = time_in(key, columns, place)
    if where is None:
        return None
    start, end = struct.unpack_from("<qq", key, (where >> 32) + _WORD)
    return start, end


def time_in(key: bytes, columns: int, place: int) -> int | None:
    """Return the timestamp, in microseconds, in a column of an `UnsafeRow`; None if it is null."""
    (nulls,) = struct.unpack_from("<q", key, place // 64 * _WORD)
    if nulls >> place % 64 & 1:
        return None
    return int(struct.unpack_from("<q", key, (-(-columns // 64) + place) * _WORD)[0])


def _decompressed(data: bytes) -> bytes:
    """Decompress a stream of blocks as lz4-java writes it."""
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
    """Yield keys, and whether they have values. A file has sizes before keys and values.

    -1 for no value, and at the end.
    """
    stream = BytesIO(data)

    def size() -> int:
        (found,) = struct.unpack(">i", stream.read(4))
        return int(found)

    while (length := size()) >= 0:
        key, value = stream.read(length), size()
        stream.seek(max(value, 0), 1)
        yield key, value >= 0
