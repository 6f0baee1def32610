"""A data file: where it is, what is known of it without reading it, and its blocks of event times.

A connector that finds files (in directories, in the log of a table) gives a `DataFile` for each, and `FileBlocks` where
it knows bounds of its event times; nothing in this package depends on how the file was found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from pyarrow import fs

from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import MAX_WATERMARK, BoolArray, Int64Array

__all__ = [
    "NO_BLOCKS",
    "Block",
    "DataFile",
    "DeletedRows",
    "FileBlocks",
    "FileRows",
    "Place",
    "StoredColumn",
    "StoredFile",
]


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file as the connector that found it describes it: picklable, and all that a reader needs beside the format.

    `path` is that in its file system. `given` are the columns whose values the connector knows, so that they are not
    read from the file (names of directories, partition values of a table, metadata): one value for all rows of the
    file, in the type of the query's column. Of the rows `deleted` nothing is seen: the others are numbered without
    them. `stored` are the columns under the query's names where the file has them under others; None where it has them
    under the same. `origin` is the table that the file is of, and its version, for messages; empty without a table.
    """

    path: str
    given: Mapping[str, pa.Scalar] = field(default_factory=dict, compare=False)
    deleted: DeletedRows | None = field(default=None, compare=False)
    stored: Mapping[str, StoredColumn] | None = field(default=None, compare=False)
    origin: str = field(default="", compare=False)

    def __getstate__(self) -> tuple[Any, ...]:
        given: Any = self.given
        # Files of one directory may share them, and pickle then writes them once. The type of a struct is longer than
        # its values: it is written once for all files of a task.
        if any(isinstance(value, pa.StructScalar) for value in given.values()):
            types = _shared(tuple([(name, value.type) for name, value in given.items()]))
            given = types, tuple([_plain(value) for value in given.values()])
        return self.path, given, self.deleted, self.stored, self.origin

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        path, given, *others = state
        if isinstance(given, tuple):
            given = {name: _scalar(value, kind) for (name, kind), value in zip(*given, strict=True)}
        for slot, value in zip(self.__slots__, (path, given, *others), strict=True):
            object.__setattr__(self, slot, value)


_GivenTypes: TypeAlias = tuple[tuple[str, pa.DataType], ...]


@lru_cache(64)
def _shared(types: _GivenTypes) -> _GivenTypes:
    """Return the same object for equal types: pickle knows it again."""
    return types


def _plain(value: pa.Scalar) -> Any:
    """Return the value without its type, and without the names of the fields of a struct."""
    if isinstance(value, pa.StructScalar) and value.is_valid:
        return tuple([child.as_py() for child in value.values()])
    return value.as_py()


def _scalar(value: Any, kind: pa.DataType) -> pa.Scalar:
    if isinstance(value, tuple):
        value = dict(zip([one.name for one in kind], value, strict=True))
    return pa.scalar(value, kind)


@dataclass(frozen=True, slots=True)
class DeletedRows:
    """Rows of a file that its table has deleted: a bit for each row, the first in the highest bit of a byte.

    Rows behind the last bit are not deleted.
    """

    bits: bytes

    @staticmethod
    def of_rows(rows: Int64Array) -> DeletedRows:
        """Make them of the numbers of rows, in any order. O(the highest of them)."""
        deleted = np.zeros(int(rows.max(initial=-1)) + 1, np.bool_)
        deleted[rows] = True
        return DeletedRows(np.packbits(deleted).tobytes())

    def among(self, first: int, count: int) -> BoolArray:
        """Return which of `count` rows from number `first` on are deleted, `bool[count]`. O(count)."""
        begin = first // 8
        packed = np.frombuffer(self.bits, np.uint8)[begin : -(-(first + count) // 8)]
        known = np.unpackbits(packed)[first - 8 * begin :][:count].view(np.bool_)
        return np.pad(known, (0, count - known.size))

    def row_of(self, number: int) -> int:
        """Return the row of the file that has this number without the deleted ones. O(the highest deleted row)."""
        left = np.flatnonzero(np.unpackbits(np.frombuffer(self.bits, np.uint8)) == 0)
        return int(left[number]) if number < left.size else 8 * len(self.bits) + number - left.size


@dataclass(frozen=True, slots=True)
class StoredColumn:
    """Where a file has a column: by the id of its field if that is given, else by its name in the file.

    Of a file without any ids, one of the names `aliases` is the column's where an id is given.
    `inner` are the fields in it, by the query's names: those of a struct, `element` of a list, `key` and `value` of a
    map. What is not in it has the same name in the file.
    """

    name: str
    field_id: int | None = None
    inner: Mapping[str, StoredColumn] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()


class Place(NamedTuple):
    """Where in a file a reader can begin: the row that begins there, and what the format calls the place."""

    row: int
    at: int


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A data file in its file system.

    `opening` is the open file where another thread opens it ahead; it can be read once.
    """

    filesystem: fs.FileSystem
    file: DataFile
    opening: Future[pa.NativeFile] | None = None

    @property
    def path(self) -> str:
        return self.file.path

    def own(self, schema: pa.Schema) -> pa.Schema:
        """Return those of the columns that are read from the file itself."""
        given = self.file.given
        return pa.schema([column for column in schema if column.name not in given]) if given else schema


@dataclass(frozen=True, slots=True)
class FileRows:
    """The rows `[start, stop)` of a file, and the place of the block in which they begin; None for the file's.

    Rows are numbered without deleted ones.
    """

    file: StoredFile
    start: int
    stop: int
    place: Place | None = None


@dataclass(frozen=True, slots=True)
class FileBlocks:
    """The parts of a file that have rows, in their order: row groups, stripes, batches, or runs of lines.

    `rows`, `min_us` and `max_us` are `int64[k]`, as `alignment.EventTimeIndex.append` takes them; `places` is what the
    format needs to begin at each block, such as a byte offset: None where a file can be read from its beginning only,
    by one reader. No valid event time in the file is before `earliest_us`: `MAX_WATERMARK` if there is none,
    `NO_TIMESTAMP` if that is not known; `min_us` does not bound it where a record has no valid one. `columns` are the
    names of the file's columns, where they can be read without its records.
    """

    rows: Int64Array
    min_us: Int64Array
    max_us: Int64Array
    places: tuple[int, ...] | None = None
    earliest_us: int = NO_TIMESTAMP
    columns: tuple[str, ...] = ()

    @staticmethod
    def of(blocks: Sequence[Block], *, seeks: bool, columns: tuple[str, ...] = ()) -> FileBlocks:
        """Make the columns of blocks; without `seeks` the file can be read from its beginning only."""
        rows, low, high, earliest, places = np.array(blocks, np.int64).reshape(-1, 5).T
        begins = tuple(places.tolist()) if seeks else None
        return FileBlocks(
            rows, low, high, places=begins, earliest_us=int(earliest.min(initial=MAX_WATERMARK)), columns=columns
        )


_NOTHING: Final = np.empty(0, np.int64)
NO_BLOCKS: Final = FileBlocks(_NOTHING, _NOTHING, _NOTHING, earliest_us=MAX_WATERMARK)


class Block(NamedTuple):
    """One of `FileBlocks`."""

    rows: int
    min_us: int
    max_us: int
    earliest_us: int
    place: int

    @staticmethod
    def of(times: Int64Array, place: int) -> Block:
        """By the event times of its rows, `NO_TIMESTAMP` where there is none. O(rows)."""
        # NO_TIMESTAMP is the smallest int64: it is the minimum where a row has no time, the maximum where none has.
        earliest = int(times.min(initial=MAX_WATERMARK, where=times != NO_TIMESTAMP))
        return Block(times.size, int(times.min()), int(times.max()), earliest, place)
