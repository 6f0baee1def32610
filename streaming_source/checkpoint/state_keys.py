"""The keys that Spark's default state store has written, newest first.

They are in the files of `HDFSBackedStateStoreProvider`: `<version>.delta` for each micro-batch, and sometimes a
`<version>.snapshot` of all entries. Files of other providers are not read.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Final, NamedTuple

import pyarrow as pa

from streaming_source.checkpoint.offset_log import CheckpointFiles
from streaming_source.checkpoint.operators import Operator

_FILE: Final = re.compile(r"(\d+)(_[\w-]+)?\.(delta|snapshot)")
_MAGIC: Final = b"LZ4Block"
_HEADER: Final = struct.Struct("<8sBiii")
_RAW: Final = 0x10
_WORD: Final = 8
_READERS: Final = 16
_LOOKS: Final = 3
"""At a state whose files are removed while they are read."""


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


class WindowLengths:
    """The lengths of the windows that the state of an operator has: its key has one at `place`.

    A file is read once, and again if it was written anew. A query that was started anew may have other windows.
    """

    def __init__(self, files: CheckpointFiles, operator: Operator, place: int) -> None:
        self._files, self._operator, self._columns, self._place = files, operator.number, len(operator.key), place
        self._read: dict[_StateFile, int] = {}
        self._last_us: int | None = None

    def longest_us(self) -> int | None:
        """Return the length of the longest one, in microseconds; None if it is not known."""
        with ThreadPoolExecutor(_READERS) as pool:
            for _ in range(_LOOKS):
                listed = list(pool.map(self._listed, partitions_of(self._files, self._operator)))
                # A partition without its beginning has older windows as well.
                if not all(any(one.is_whole for one in files) for files in listed if files):
                    return None
                there = [one for files in listed for one in files]
                found = zip(there, pool.map(self._longest_in, there), strict=True)
                self._read = {one: us for one, us in found if us is not None}
                if len(self._read) == len(there):
                    # Where all windows are out the next ones are as long as those before, as far as the state shows.
                    self._last_us = max(self._read.values(), default=0) or self._last_us
                    return self._last_us
        return None

    def _listed(self, folder: str) -> list[_StateFile]:
        found = ((_FILE.fullmatch(name), name, info) for name, info in (self._files.list_folder(folder) or {}).items())
        return [
            _StateFile(f"{folder}/{name}", info.mtime_ns, info.size, match[3] == "snapshot" or int(match[1]) == 1)
            for match, name, info in found
            if match
        ]

    def _longest_in(self, file: _StateFile) -> int | None:
        """Return the longest of a file, 0 without any; None if it cannot be read, or is gone."""
        if (known := self._read.get(file)) is not None:
            return known
        if (entries := entries_of(self._files, file.name)) is None:
            return None
        windows = (window_in(key, self._columns, self._place) for key, _ in entries)
        return max((window[1] - window[0] for window in windows if window is not None), default=0)


class _StateFile(NamedTuple):
    """A file of a state as it is now; one that `is_whole` needs none of an older version."""

    name: str
    mtime_ns: int | None
    size: int
    is_whole: bool


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
