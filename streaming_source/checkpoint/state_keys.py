"""The keys that Spark's default state store has written, newest first.

They are in the files of `HDFSBackedStateStoreProvider`: `<version>.delta` for each micro-batch, and sometimes a
`<version>.snapshot` of all entries. Files of other providers are not read.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from itertools import islice
from typing import Final

import pyarrow as pa

from streaming_source.checkpoint.files import CheckpointFiles

__all__ = ["entries_of", "partitions_of", "time_in", "versions_of", "window_in", "window_length"]

_FILE: Final = re.compile(r"(\d+)(_[\w-]+)?\.(delta|snapshot)")
_MAGIC: Final = b"LZ4Block"
_HEADER: Final = struct.Struct("<8sBiii")
_RAW: Final = 0x10
_WORD: Final = 8


def partitions_of(files: CheckpointFiles, operator: int) -> list[str]:
    """Return the folders with the state of an operator, by its number."""
    folder = f"state/{operator}"
    return [f"{folder}/{number}" for number in files.numbered(folder) or ()]


def versions_of(files: CheckpointFiles, folder: str) -> list[tuple[int, str]]:
    """Return the files of a partition with their versions, newest first: version n + 1 is of micro-batch n."""
    found = ((match, name) for name in files.list_folder(folder) or () if (match := _FILE.fullmatch(name)))
    return sorted(((int(match[1]), f"{folder}/{name}") for match, name in found), reverse=True)


def entries_of(files: CheckpointFiles, file: str, most: int | None = None) -> list[tuple[bytes, bytes | None]] | None:
    """Return keys and values in the order of writing, `most` of them; a key without a value was removed.

    None if the file cannot be read: it has another compression, or is being written.
    """
    try:
        return list(islice(_entries(files.bytes_of(file) or b""), most))
    except (struct.error, ValueError, pa.ArrowException):
        return None


def window_in(row: bytes, columns: int, place: int) -> tuple[int, int] | None:
    """Return start and end, in microseconds, of the window in a column of an `UnsafeRow`; None if it is null."""
    where = time_in(row, columns, place)
    if where is None:
        return None
    start, end = struct.unpack_from("<qq", row, (where >> 32) + _WORD)
    return start, end


def window_length(files: CheckpointFiles, operator: int, columns: int, place: int) -> int | None:
    """Return the length, in microseconds, of the newest window in the keys of an operator; None if none shows."""
    for partition in partitions_of(files, operator):
        for _, file in versions_of(files, partition):
            for key, _ in entries_of(files, file, 1) or ():
                if (found := window_in(key, columns, place)) is not None:
                    return found[1] - found[0]
    return None


def time_in(row: bytes, columns: int, place: int) -> int | None:
    """Return the timestamp, in microseconds, in a column of an `UnsafeRow`; None if it is null."""
    (nulls,) = struct.unpack_from("<q", row, place // 64 * _WORD)
    if nulls >> place % 64 & 1:
        return None
    return int(struct.unpack_from("<q", row, (-(-columns // 64) + place) * _WORD)[0])


def _blocks(data: bytes) -> Iterator[bytes]:
    """Decompress a stream as lz4-java writes it, block by block."""
    codec, at = pa.Codec("lz4_raw"), 0
    while at < len(data):
        magic, token, stored, size, _ = _HEADER.unpack_from(data, at)
        if magic != _MAGIC:
            raise ValueError("no LZ4 stream of Java")
        at += _HEADER.size
        block = data[at : at + stored]
        at += stored
        if size:
            yield block if token & 0xF0 == _RAW else bytes(codec.decompress(block, size))


def _entries(data: bytes) -> Iterator[tuple[bytes, bytes | None]]:
    """Yield keys and values. A file has sizes before keys and values: -1 for no value, and at the end."""
    blocks, rest, at = _blocks(data), b"", 0

    def take(size: int) -> bytes:
        nonlocal rest, at
        while len(rest) - at < size:
            if not (more := next(blocks, b"")):
                raise ValueError("the file was cut")
            rest, at = rest[at:] + more, 0
        at += size
        return rest[at - size : at]

    def number() -> int:
        return int.from_bytes(take(4), "big", signed=True)

    while (length := number()) >= 0:
        key, size = take(length), number()
        yield key, None if size < 0 else take(size)
