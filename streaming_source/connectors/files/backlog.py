"""Files of directories that wait, packed, in the order in which they are opened."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np
from sortedcontainers import SortedDict, SortedList

from alignment.watermarks import MAX_WATERMARK
from streaming_source.connectors.files.finished import order_key
from streaming_source.connectors.files.listing import ListedFile
from streaming_source.connectors.files.split import FileOrder, OrderKey
from streaming_source.data_files.file import FileBlocks

_KEY: Final = struct.Struct(">?Q")
_TO_UNSIGNED: Final = 2**63


class WaitingFile(NamedTuple):
    """A file as it was listed, and its blocks; None if it is not described yet, where the order is by other things."""

    file: ListedFile
    blocks: FileBlocks | None = None

    def pack(self, order: FileOrder) -> bytes:
        """Pack the file into bytes that sort in this order: key, path, a zero byte, the rest."""
        key = b""
        if order == "modificationTime":
            key = _KEY.pack(True, self.file.modified_ms + _TO_UNSIGNED)
        elif order == "eventTime":
            assert self.blocks is not None, "by event time a file is described before it waits"
            earliest_us = self.blocks.earliest_us
            key = _KEY.pack(earliest_us != MAX_WATERMARK, earliest_us + _TO_UNSIGNED)
        path, blocks = self.file.relative_path.encode(), None
        if self.blocks is not None:
            of_times = (self.blocks.min_us, self.blocks.max_us, self.blocks.valid_min_us)
            blocks = (*(column.tobytes() for column in (self.blocks.rows, *of_times)), self.blocks.offsets)
        return b"".join((key, path, b"\0", pickle.dumps((self.file.modified_ms, self.file.size, blocks))))

    @staticmethod
    def unpack(data: bytes, order: FileOrder) -> WaitingFile:
        start = 0 if order == "name" else _KEY.size
        end = data.index(b"\0", start)
        modified_ms, size, blocks = pickle.loads(memoryview(data)[end + 1 :])
        if blocks is not None:
            *columns, offsets = blocks
            rows, low, high, earliest = (np.frombuffer(column, np.int64) for column in columns)
            blocks = FileBlocks(rows, low, high, earliest, offsets)
        return WaitingFile(ListedFile.of(data[start:end].decode(), modified_ms, size), blocks)


class Backlog:
    """A queue of files, packed: about 100 bytes a file beside its path.

    In the order of event times the earliest event time of a file counts. Files without a valid one come first: no other
    file waits for them, and they wait for none. In that order `lowest` may be up to `width_ms` below the oldest file: a
    wider span needs less memory.

    With n files waiting, adding one, taking the next one and `lowest` cost O(log n).
    """

    def __init__(self, order: FileOrder, width_ms: int = 1000) -> None:
        self._order = order
        self._width_ms = width_ms
        self._files: SortedList[bytes] = SortedList()
        # In the order of event times: how many files were modified in each span of `width_ms`.
        self._modified: SortedDict[int, int] = SortedDict()

    def __len__(self) -> int:
        return len(self._files)

    def add(self, packed: Iterable[bytes]) -> None:
        """Add files, packed with `WaitingFile.pack` in the order of this backlog."""
        new = list(packed)
        if self._order == "eventTime":
            for entry in new:
                self._count(WaitingFile.unpack(entry, self._order), 1)
        self._files.update(new)

    def pop(self) -> WaitingFile:
        """Remove and return the next file; raises an `IndexError` if none waits."""
        return self._taken(self._files.pop(0))

    @property
    def earliest_us(self) -> int:
        """The earliest valid event time of all waiting files, in their order; `MAX_WATERMARK` if they have none."""
        assert self._order == "eventTime"
        first = self._files.bisect_left(_KEY.pack(True, 0))
        return int(_KEY.unpack_from(self._files[first])[1]) - _TO_UNSIGNED if first < len(self) else MAX_WATERMARK

    def take(self, path: str) -> WaitingFile | None:
        """Remove and return a file by its path; None if it does not wait. O(n)."""
        searched, start = path.encode() + b"\0", 0 if self._order == "name" else _KEY.size
        entry = next((entry for entry in self._files if entry.startswith(searched, start)), None)
        if entry is None:
            return None
        self._files.remove(entry)
        return self._taken(entry)

    @property
    def lowest(self) -> OrderKey | None:
        """A lower bound of the `order_key` of all waiting files; None if none waits."""
        if not self:
            return None
        if self._order == "eventTime":
            return (self._modified.peekitem(0)[0] * self._width_ms, "")
        return order_key(WaitingFile.unpack(self._files[0], self._order).file, self._order)

    def _taken(self, entry: bytes) -> WaitingFile:
        waiting = WaitingFile.unpack(entry, self._order)
        if self._order == "eventTime":
            self._count(waiting, -1)
        return waiting

    def _count(self, waiting: WaitingFile, change: int) -> None:
        span = waiting.file.modified_ms // self._width_ms
        count = self._modified[span] = self._modified.get(span, 0) + change
        if not count:
            del self._modified[span]
