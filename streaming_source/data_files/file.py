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


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file as the connector that found it describes it: picklable, and all that a reader needs beside the format.

    `path` is that in its file system. `given` are the columns whose values the connector knows, so that they are not
    read from the file (names of directories, partition values of a table, metadata): one value for all rows of the
    file, in the type of the query's column. `deleted` rows are not read, and the others are numbered without them.
    `stored` has, by the query's names, the columns that the file has under other names; None if all names are the same.
    `origin` is the table of the file with its version, for messages; empty without a table. A reader finds the file
    with `size` bytes, if that is given: a file that was appended to or cut has another.
    """

    path: str
    given: Mapping[str, pa.Scalar] = field(default_factory=dict, compare=False)
    deleted: DeletedRows | None = field(default=None, compare=False)
    stored: Mapping[str, StoredColumn] | None = field(default=None, compare=False)
    origin: str = field(default="", compare=False)
    size: int | None = field(default=None, compare=False)

    def __getstate__(self) -> tuple[Any, ...]:
        given: Any = self.given
        # Pickle writes `given` once for all files that share the same mapping, as those of one directory do. The type
        # of a struct is longer than its values: it is written once for all files of a task.
        if any(isinstance(value, pa.StructScalar) for value in given.values()):
            types = _shared(tuple([(name, value.type) for name, value in given.items()]))
            given = types, tuple([_plain(value) for value in given.values()])
        return self.path, given, self.deleted, self.stored, self.origin, self.size

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        path, given, *others = state
        if isinstance(given, tuple):
            given = {name: _scalar(value, kind) for (name, kind), value in zip(*given, strict=True)}
        for slot, value in zip(self.__slots__, (path, given, *others), strict=True):
            object.__setattr__(self, slot, value)


_GivenTypes: TypeAlias = tuple[tuple[str, pa.DataType], ...]


@lru_cache(64)
def _shared(types: _GivenTypes) -> _GivenTypes:
    """Return one object for equal types, so that pickle writes them once."""
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

    Rows after the last bit are not deleted.
    """

    bits: bytes

    @staticmethod
    def of_rows(rows: Int64Array) -> DeletedRows:
        """Mark the rows of these numbers, in any order, as deleted. O(the highest of them)."""
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
    """The place of a column in a file: by `field_id` if it is given, else by its `name` in the file.

    Where `field_id` is given and the file has no ids at all, the column is the one whose name is in `aliases`.
    `inner` has the fields inside, by the query's names: those of a struct, `element` of a list, `key` and `value` of a
    map. A field that is not in `inner` has the same name in the file.
    """

    name: str
    field_id: int | None = None
    inner: Mapping[str, StoredColumn] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()


class SeekPoint(NamedTuple):
    """A place in a file at which a reader can start: `row` is the first row there, `at` what the format seeks by."""

    row: int
    at: int


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A data file in its file system.

    `opening` is given where another thread opens the file ahead; its result can be read once. With `checks_size` it
    is refused if it has not the size of its description. With `case_sensitive` upper and
    lower case of the names of its columns count.
    """

    filesystem: fs.FileSystem
    file: DataFile
    opening: Future[pa.NativeFile] | None = None
    checks_size: bool = False
    case_sensitive: bool = False

    @property
    def path(self) -> str:
        return self.file.path

    def own(self, schema: pa.Schema) -> pa.Schema:
        """Return the columns of `schema` that are read from the file itself."""
        given = self.file.given
        return pa.schema([column for column in schema if column.name not in given]) if given else schema


@dataclass(frozen=True, slots=True)
class FileRows:
    """The rows `[start, stop)` of a file, numbered without deleted ones.

    `seek_point` is that of the block with the first of them; None for the start of the file.
    """

    file: StoredFile
    start: int
    stop: int
    seek_point: SeekPoint | None = None


@dataclass(frozen=True, slots=True)
class FileBlocks:
    """The parts of a file that have rows, in their order: row groups, stripes, batches, or runs of lines.

    `rows`, `min_us`, `max_us` and `valid_min_us` are `int64[k]`, as `alignment.EventTimeIndex.append` takes them; the
    last one is its `earliest_us`. `offsets` is what the format needs to start at each block, such as a byte offset;
    None if the file can only be read from its start, by one reader. `columns` are the names of the file's columns, and
    of the fields in them as dotted paths, where they can be read without its records.
    """

    rows: Int64Array
    min_us: Int64Array
    max_us: Int64Array
    valid_min_us: Int64Array
    offsets: tuple[int, ...] | None = None
    columns: tuple[str, ...] = ()

    @staticmethod
    def of(blocks: Sequence[Block], *, seeks: bool, columns: tuple[str, ...] = ()) -> FileBlocks:
        """Collect blocks; without `seeks` the file can only be read from its start."""
        rows, low, high, earliest, offsets = np.array(blocks, np.int64).reshape(-1, 5).T
        return FileBlocks(rows, low, high, earliest, tuple(offsets.tolist()) if seeks else None, columns)

    def followed_by(self, more: FileBlocks) -> FileBlocks:
        """Return these blocks, and those that follow them in the file."""
        offsets = None if self.offsets is None or more.offsets is None else self.offsets + more.offsets
        return FileBlocks(
            np.append(self.rows, more.rows),
            np.append(self.min_us, more.min_us),
            np.append(self.max_us, more.max_us),
            np.append(self.valid_min_us, more.valid_min_us),
            offsets,
            more.columns,
        )

    @property
    def earliest_us(self) -> int:
        """A lower bound of the file's valid event times: `MAX_WATERMARK` if it has none, `NO_TIMESTAMP` if unknown."""
        return int(self.valid_min_us.min(initial=MAX_WATERMARK))


_NOTHING: Final = np.empty(0, np.int64)
NO_BLOCKS: Final = FileBlocks(_NOTHING, _NOTHING, _NOTHING, _NOTHING)


class Block(NamedTuple):
    """One of `FileBlocks`."""

    rows: int
    min_us: int
    max_us: int
    earliest_us: int
    offset: int

    @staticmethod
    def of(times: Int64Array, offset: int) -> Block:
        """Make a block from the event times of its rows, `NO_TIMESTAMP` for a row without one. O(rows)."""
        # NO_TIMESTAMP is the smallest int64: the minimum if any row has no time, the maximum if no row has one.
        earliest = int(times.min(initial=MAX_WATERMARK, where=times != NO_TIMESTAMP))
        return Block(times.size, int(times.min()), int(times.max()), earliest, offset)
