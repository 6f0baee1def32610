"""What a format of files has to offer: blocks of event times ahead of reading, and rows."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import ClassVar, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import fs

from alignment.columns import top_level_column
from alignment.exceptions import AlignmentError
from alignment.timestamps import NO_TIMESTAMP, TimestampAssigner
from alignment.watermarks import MAX_WATERMARK
from streaming_source.api import RecordBlock
from streaming_source.connectors.files.places.patience import may_pass
from streaming_source.exceptions import DataLossError, FileGoneError, MalformedDataError, StoreUnavailableError

__all__ = [
    "BATCH_ROWS",
    "NO_BLOCKS",
    "BlockList",
    "FileBlocks",
    "FileFormat",
    "FileRows",
    "Place",
    "StoredFile",
    "Tolerance",
    "malformed_as",
    "opened",
    "readable",
    "replaced",
    "times_alone",
    "times_of",
    "unavailable",
]

_log = logging.getLogger(__name__)

BATCH_ROWS: Final = 65_536
"""Rows of a batch that is read, at most."""

Int64Array = npt.NDArray[np.int64]


class Place(NamedTuple):
    """Where in a file a reader can begin: the row that begins there, and what the format calls the place."""

    row: int
    at: int


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file where it lies: its file system, and its path in that."""

    filesystem: fs.FileSystem
    path: str


@dataclass(frozen=True, slots=True)
class FileRows:
    """The rows `[start, stop)` of a file, and the place of the block in which they begin; None for the file's."""

    file: StoredFile
    start: int
    stop: int
    place: Place | None = None


@dataclass(frozen=True, slots=True)
class FileBlocks:
    """The parts of a file that have rows, in their order: row groups, stripes, batches, or runs of lines.

    Attributes
    ----------
    rows, min_us, max_us
        `int64[k]`, as `alignment.EventTimeIndex.append` takes them.
    places
        What the format needs to begin at each block (a byte offset, say); None where the number of the row is enough,
        or where a file can be read from its beginning only.
    one_range
        Whether the file can be read from its beginning only: then one reader reads it.
    earliest_us
        No valid event time in the file is before this; `MAX_WATERMARK` if there is none, `NO_TIMESTAMP` if that is not
        known. `min_us` does not bound it where a record has no valid event time.
    columns
        Names of the file's columns, where it says them before its records.
    """

    rows: Int64Array
    min_us: Int64Array
    max_us: Int64Array
    places: tuple[int, ...] | None = None
    one_range: bool = False
    earliest_us: int = NO_TIMESTAMP
    columns: tuple[str, ...] = ()


_NOTHING: Final = np.empty(0, np.int64)
NO_BLOCKS: Final = FileBlocks(_NOTHING, _NOTHING, _NOTHING, earliest_us=MAX_WATERMARK)
"""Of a file without rows."""


@dataclass(slots=True)
class BlockList:
    """Blocks as they are found: four numbers each."""

    _blocks: list[tuple[int, int, int, int]] = field(default_factory=list)
    _earliest_us: int = MAX_WATERMARK

    def add(self, times: Int64Array, place: int = 0) -> None:
        """Add a block by the event times of its rows, `NO_TIMESTAMP` where there is none; one without rows is left out.

        O(rows).
        """
        if times.size:
            # NO_TIMESTAMP is the smallest int64: it is the minimum where a row has no time, the maximum where none has.
            earliest = int(times.min(initial=MAX_WATERMARK, where=times != NO_TIMESTAMP))
            self.add_bounds(times.size, int(times.min()), int(times.max()), earliest, place)

    def add_bounds(self, rows: int, min_us: int, max_us: int, earliest_us: int, place: int = 0) -> None:
        """Add a block by its bounds, and that of its valid event times; `MAX_WATERMARK` if it has none."""
        self._blocks.append((rows, min_us, max_us, place))
        self._earliest_us = min(self._earliest_us, earliest_us)

    def blocks(self, columns: Sequence[str], *, with_places: bool = False, one_range: bool = False) -> FileBlocks:
        """All of them, of a file with these columns."""
        rows, low, high, places = np.array(self._blocks, np.int64).reshape(-1, 4).T
        begins = tuple(places.tolist()) if with_places else None
        return FileBlocks(rows, low, high, begins, one_range, self._earliest_us, tuple(columns))


class FileFormat(ABC):
    """How files are read: a picklable, hashable value that holds the format's options.

    Rows are numbered from 0 in each file. What is a row, and what its number is, depends on the file and the format
    alone, never on the columns that are read: the planner reads the time column only, the readers all of them.
    """

    name: ClassVar[str]
    """As option `fileFormat` has it."""

    has_statistics: ClassVar[bool] = False
    """Whether files have bounds of their event times without the time column being read."""

    fixed_schema: ClassVar[pa.Schema | None] = None
    """Of files that all have the same columns, whatever is in them."""

    @property
    def identity(self) -> str:
        """Decides which rows a file has: offsets of one identity mean nothing under another."""
        return self.name

    @property
    def added_columns(self) -> tuple[pa.Field, ...]:
        """Columns that are in no file, and added to those that are."""
        return ()

    def told(self, schema: pa.Schema) -> FileFormat:
        """The format of files that have these columns, all of them and in this order."""
        return self

    def in_zone(self, zone: str) -> FileFormat:
        """The format with times in text that say no zone in this one, unless it says one itself."""
        return self

    @abstractmethod
    def schema_of(self, file: StoredFile) -> pa.Schema:
        """Columns of a file, without metadata.

        Raises
        ------
        NoSchemaError
            If files of this format have no types, and none are to be inferred.
        MalformedDataError, SchemaError
            If the file is not of this format, or two of its columns have one name.
        """

    @abstractmethod
    def describe(self, file: StoredFile, schema: pa.Schema, assigner: TimestampAssigner, indexing: str) -> FileBlocks:
        """The blocks of a file: from statistics where it has them, else by reading its time column.

        Called on the planner's worker threads. Holds no more of the file than a block at a time.

        Parameters
        ----------
        schema
            The columns that the query reads.
        indexing
            `auto`, `statistics` (there must be some), or `scan` (do not trust them).

        Raises
        ------
        MalformedDataError, SchemaError
            If the file is not of this format, has none of the columns of `schema` or one in a type that does not widen,
            or has no statistics where there must be some.
        """

    @abstractmethod
    def event_times(self, rows: FileRows, schema: pa.Schema, assigner: TimestampAssigner) -> Int64Array:
        """Event times of rows, `int64[stop - start]`; `NO_TIMESTAMP` where there is none."""

    @abstractmethod
    def read_rows(self, rows: FileRows, schema: pa.Schema) -> Iterator[RecordBlock]:
        """Rows with the columns of `schema`, in blocks whose positions are numbers of rows.

        Raises
        ------
        DataLossError
            If the file is gone, or has fewer rows.
        MalformedDataError
            If it cannot be read.
        """


@dataclass(frozen=True, slots=True)
class Tolerance:
    """What a source goes on without: `missing` files, and `corrupt` ones, or the rest of one that breaks."""

    missing: bool = False
    corrupt: bool = False

    @contextmanager
    def tolerated(self) -> Iterator[None]:
        """Log what fails inside and go on, where that is allowed."""
        try:
            yield
        except (FileGoneError, MalformedDataError) as error:
            if not (self.missing if isinstance(error, FileGoneError) else self.corrupt):
                raise
            _log.warning("ignored: %s", error)


# ---- what formats share ----------------------------------------------------------------------------------------------


@contextmanager
def opened(file: StoredFile) -> Iterator[pa.NativeFile]:
    """A file while it is read.

    Raises
    ------
    FileGoneError
        If it is gone.
    """
    try:
        stream = file.filesystem.open_input_file(file.path)
    except FileNotFoundError:
        raise FileGoneError(
            f"{file.path} is gone: it was deleted after it had been listed and before it was read. "
            "Restore it, or set ignoreMissingFiles = true"
        ) from None
    except OSError as error:
        raise unavailable(file.path, error) if may_pass(error) else error from None
    with stream:
        yield stream


@contextmanager
def malformed_as(what: str, fix: str = "") -> Iterator[None]:
    """Whatever a decoder raises inside is a `MalformedDataError` that begins with `what`.

    What the store is to blame for is none: the file may be whole.
    """
    try:
        yield
    except AlignmentError:
        raise
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        if may_pass(error):
            raise unavailable(what, error) from None
        raise MalformedDataError(f"{what}: {str(error).rstrip('.')}{fix}") from None


def unavailable(what: str, error: BaseException) -> StoreUnavailableError:
    """The error of a store that failed in a way that may pass."""
    return StoreUnavailableError(f"{what}: the store failed: {str(error).rstrip('.')}; start again when it answers")


def readable(path: str, format_name: str) -> AbstractContextManager[None]:
    """What fails in opening a file is an error with its path and a likely cause."""
    return malformed_as(
        f"{path} is not a readable {format_name} file",
        ". If it is still being written, write it under a name that begins with _ or . and rename it when it is "
        "complete",
    )


def times_alone(schema: pa.Schema, assigner: TimestampAssigner) -> pa.Schema:
    """The columns that an assigner reads, in their order; all where it does not declare them."""
    if assigner.columns is None:
        return schema
    wanted = {top_level_column(column, schema.names) for column in assigner.columns}
    return pa.schema([field for field in schema if field.name in wanted])


def replaced(planned: FileRows, found: int) -> DataLossError:
    """The error of a file that has fewer rows than were planned."""
    wanted = f"rows {planned.start} to {planned.stop}"
    path = planned.file.path
    return DataLossError(f"{path} has {found} rows, but {wanted} were planned: it was replaced; restore it")


def times_of(path: str, batches: Sequence[pa.RecordBatch], assigner: TimestampAssigner) -> Int64Array:
    """Event times of batches, one after another.

    Raises
    ------
    MalformedDataError
        If a column is not what its type says: text that is no UTF-8.
    """
    try:
        parts = [assigner.extract(batch, None).values for batch in batches]
    except pa.ArrowException as error:
        raise MalformedDataError(f"{path}: its event times cannot be read: {error}; write it again") from None
    return np.concatenate([np.empty(0, np.int64), *parts])
