"""The windows of an aggregation, from the keys that Spark's default state store has written.

A checkpoint keeps no size of windows, but each key in the state has the start and the end of one. They are in the files
of `HDFSBackedStateStoreProvider`: `<version>.delta` of each micro-batch, and now and then all as `<version>.snapshot`.
Other providers are not read.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from io import BytesIO
from itertools import pairwise
from typing import Final

import pyarrow as pa

from streaming_source.auditing.checkpoint import Checkpoint
from streaming_source.auditing.rule import Windows

__all__ = ["windows_of_state"]

_FILE: Final = re.compile(r"(\d+)(_[\w-]+)?\.(delta|snapshot)")
_MAGIC: Final = b"LZ4Block"
_HEADER: Final = struct.Struct("<8sBiii")
_RAW: Final = 0x10
_FILES: Final = 20
"""Of each partition, the latest ones."""
_ENOUGH: Final = 1_000
_WORD: Final = 8


def windows_of_state(checkpoint: Checkpoint, operator: int, keys: int, place: int) -> Windows | None:
    """Size, slide and start of the windows; None where the state does not show them.

    Parameters
    ----------
    operator
        Its number.
    keys, place
        How many columns the key has, and which of them is the window.

    Notes
    -----
    All windows must have one size. Where each row is in one window, they lie side by side, at multiples of the size;
    where it is in several, they overlap, and the nearest two are one slide apart: a row that was not dropped from its
    earliest windows has written them both. Two windows at least must be there.
    """
    found: set[tuple[int, int]] = set()
    for partition in checkpoint.names_in(f"state/{operator}"):
        if partition.isdigit() and len(found) < _ENOUGH:
            found.update(_of_partition(checkpoint, f"state/{operator}/{partition}", keys, place))
    sizes = {end - start for start, end in found}
    starts = sorted(start for start, _ in found)
    if len(sizes) != 1 or len(starts) < 2:
        return None
    (size,) = sizes
    nearest = min(b - a for a, b in pairwise(starts))
    slide = min(nearest, size)
    if size <= 0 or any((start - starts[0]) % slide for start in starts):
        return None
    return Windows(size, slide, starts[0] % slide)


def _of_partition(checkpoint: Checkpoint, folder: str, keys: int, place: int) -> Iterator[tuple[int, int]]:
    files = sorted(
        ((int(match[1]), name) for name in checkpoint.names_in(folder) if (match := _FILE.fullmatch(name))),
        reverse=True,
    )
    for _, name in files[:_FILES]:
        data = checkpoint.bytes_of(f"{folder}/{name}")
        try:
            for key in _keys(_decompressed(data or b"")):
                if (window := _window(key, keys, place)) is not None:
                    yield window
        except (struct.error, ValueError, pa.ArrowException):
            # Compressed otherwise, or not yet written to its end.
            continue


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


def _keys(data: bytes) -> Iterator[bytes]:
    """Of the entries of a file: a size and a key, a size and a value; a size of -1 for no value, and at the end."""
    stream = BytesIO(data)

    def size() -> int:
        (found,) = struct.unpack(">i", stream.read(4))
        return int(found)

    while (length := size()) >= 0:
        yield stream.read(length)
        stream.seek(max(size(), 0), 1)


def _window(key: bytes, keys: int, place: int) -> tuple[int, int] | None:
    """Start and end, in microseconds, of a window in an `UnsafeRow`; None if it is null."""
    (nulls,) = struct.unpack_from("<q", key, place // 64 * _WORD)
    if nulls >> place % 64 & 1:
        return None
    (where,) = struct.unpack_from("<q", key, (-(-keys // 64) + place) * _WORD)
    start, end = struct.unpack_from("<qq", key, (where >> 32) + _WORD)
    return start, end
