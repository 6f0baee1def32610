"""Formats whose files are chunks of columns: Parquet, whose chunks are row groups, and Arrow IPC, files and streams."""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from operator import attrgetter
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import ipc

from alignment.column_paths import fields_on_path, top_level_column
from alignment.timestamps import NO_TIMESTAMP, TimestampAssigner
from alignment.watermarks import MAX_WATERMARK, BoolArray
from streaming_source.data_files.evolution import (
    check_columns,
    check_distinct,
    conformed,
    is_spelled_as,
    names_in,
    own_columns,
    spelled_as,
)
from streaming_source.data_files.faults import malformed_as, opened
from streaming_source.data_files.file import Block, FileBlocks, FileRows, SeekPoint, StoredFile
from streaming_source.data_files.formats.base import BATCH_ROWS, Chunk, FileFormat, OpenFile, times_in
from streaming_source.exceptions import MalformedDataError

if TYPE_CHECKING:
    from streaming_source.data_files.stored_names import StoredNames


_ANOTHER_KIND_OF_FILES: Final = ". If it is another kind of file leave it out with pathGlobFilter"


class ColumnarFile(OpenFile):
    """An open file that has the names and types of its columns: `stored` as in the file, `schema` as in the query."""

    def __init__(self, path: str, name_of_format: str, stored: pa.Schema) -> None:
        self.path = path
        self.stored = self.schema = stored
        # Names that are not UTF-8 raise a `UnicodeDecodeError` here.
        self.columns = names_in(stored)
        self._name_of_format = name_of_format
        self._names: StoredNames | None = None

    @abstractmethod
    def batches(self, columns: Sequence[str], first: int, stop_row: int) -> Iterator[pa.RecordBatch]:
        """Yield the chunks from number `first` on (from 0 if the file does not seek), with at least these columns.

        The columns have the names and types of `stored`. Chunks after the row `stop_row` of the file may be left out.
        """

    def name_columns(self, file: StoredFile, wanted: pa.Schema) -> None:
        """Give the columns the names by which a query reads them: its table's, or its own where the case differs."""
        columns = file.file.stored
        if columns is None and wanted.names and not (file.case_sensitive or is_spelled_as(self.stored, wanted)):
            columns = spelled_as(self.path, self.stored, wanted)
        if columns is None:
            return
        # Imported here: few files have columns under other names.
        from streaming_source.data_files.stored_names import StoredNames

        self._names = StoredNames(columns)
        self.schema = self._names.known_as(self.stored)
        if file.file.stored is not None:
            self.columns = names_in(self.schema)

    def schema_for(self, wanted: pa.Schema) -> pa.Schema:
        """Return the columns of the file, in the wanted types where its values can be read in more than one."""
        return self.schema

    def chunks(self, schema: pa.Schema, rows: FileRows) -> Iterator[Chunk]:
        columns, names = own_columns(self.schema.names, schema.names), self._names
        stored = columns if names is None else names.stored_as(self.stored, columns)
        row, number = (rows.seek_point if self.seeks else None) or SeekPoint(0, 0)
        # At least one column is read, to count the rows.
        batches = self.batches(stored or self.stored.names[:1], number, rows.stop)
        while True:
            with malformed_as(f"{self.path}: cannot be read as {self._name_of_format} after row {row}"):
                batch = next(batches, None)
            if batch is None:
                return
            yield Chunk(row, batch.num_rows, number, batch if names is None else names.renamed(batch))
            row, number = row + batch.num_rows, number + 1

    def decoded(self, chunk: Chunk, schema: pa.Schema) -> tuple[pa.RecordBatch, BoolArray | None]:
        return conformed(self.path, chunk.content, schema), None


class ColumnarFormat(FileFormat):
    """A format whose blocks are the chunks of its files."""

    __slots__ = ()

    title: ClassVar[str]

    @abstractmethod
    def _open(self, file: StoredFile, stream: pa.NativeFile) -> ColumnarFile: ...

    @contextmanager
    def _opened(self, file: StoredFile, schema: pa.Schema) -> Iterator[ColumnarFile]:
        path = file.file.path
        other = "" if file.file.origin else _ANOTHER_KIND_OF_FILES
        with opened(file) as stream:
            with malformed_as(
                f"{path} is not a readable {self.title} file",
                f"{other}. If it is still being written, write it under a name that begins with _ or . and rename it "
                "when it is complete",
            ):
                found = self._open(file, stream)
            found.name_columns(file, schema)
            check_columns(path, found.schema_for(schema), schema, of_table=bool(file.file.origin))
            yield found

    def schema_of(self, file: StoredFile) -> pa.Schema:
        with self._opened(file, pa.schema([])) as found:
            check_distinct(file.path, found.schema, case_sensitive=file.case_sensitive)
            return found.schema.remove_metadata()


# ---- Parquet ---------------------------------------------------------------------------------------------------------

_BUFFER_BYTES: Final = 1 << 16
"""Bytes per read of a column that is read in pieces."""


@dataclass(frozen=True, slots=True)
class ParquetFormat(ColumnarFormat):
    """Parquet: blocks are row groups, and their statistics bound the event times."""

    name: ClassVar[str] = "parquet"
    title: ClassVar[str] = "Parquet"
    has_statistics: ClassVar[bool] = True

    def _open(self, file: StoredFile, stream: pa.NativeFile) -> ColumnarFile:
        return _ParquetFile(file, stream, is_local=file.filesystem.type_name == "local")

    def describe(self, file: StoredFile, schema: pa.Schema, assigner: TimestampAssigner, indexing: str) -> FileBlocks:
        blocks: list[Block] = []
        deleted = file.file.deleted
        with self._opened(file, file.own(schema)) as parquet:
            assert isinstance(parquet, _ParquetFile)
            column = None if indexing == "scan" else parquet.statistics_column(assigner, file.file.given)
            if _zone_of(parquet.schema, assigner) != _zone_of(schema, assigner):
                # Moments without their flag: statistics are those of local times.
                column = None
            constant = _bounds_of_given(file, assigner)
            number = 0
            for group, first, stored in parquet.groups:
                count = stored if deleted is None else stored - int(deleted.among(first, stored).sum())
                if not count:
                    continue
                # The latest row may be deleted, and must then not determine a watermark.
                bounds = constant or (parquet.bounds(group, column, assigner) if count == stored else None)
                if bounds is not None:
                    blocks.append(Block(count, *bounds, group))
                elif indexing == "statistics" and count == stored:
                    raise MalformedDataError(
                        f"{file.path}: row group {group} has no statistics of the event time; "
                        "option indexing = auto reads the column where they are missing"
                    )
                else:
                    rows = FileRows(file, number, number + count, SeekPoint(number, group))
                    blocks.append(Block.of(times_in(parquet, rows, schema, assigner), group))
                number += count
            return FileBlocks.of(blocks, seeks=parquet.seeks, columns=parquet.columns)


def _zone_of(schema: pa.Schema, assigner: TimestampAssigner) -> bool:
    """Return whether the column of event times has a zone."""
    fields = fields_on_path(schema, assigner.statistics_column or "")
    return bool(fields) and pa.types.is_timestamp(fields[-1].type) and fields[-1].type.tz is not None


def _bounds_of_given(file: StoredFile, assigner: TimestampAssigner) -> tuple[int, int, int] | None:
    """Return bounds as `_ParquetFile.bounds` does, if the event time is a given column; else None."""
    value = file.file.given.get(assigner.statistics_column or "")
    if value is None:
        return None
    if not value.is_valid:
        return NO_TIMESTAMP, NO_TIMESTAMP, MAX_WATERMARK
    time_us = assigner.from_statistics(value.type, value.as_py())
    return None if time_us is None else (time_us, time_us, time_us)


class _RowGroup(NamedTuple):
    number: int
    first: int
    rows: int


class _ParquetFile(ColumnarFile):
    """An open Parquet file. A footer whose row groups do not add up to its rows is refused."""

    def __init__(self, file: StoredFile, stream: pa.NativeFile, *, is_local: bool) -> None:
        # From a store all columns of a row group are fetched in few requests. From a disk they are read piece by piece,
        # which takes less memory.
        self._file = pq.ParquetFile(
            stream,
            pre_buffer=not is_local,
            buffer_size=_BUFFER_BYTES if is_local else 0,
            # Nanoseconds would wrap outside of the years 1677 to 2262.
            coerce_int96_timestamp_unit="us",
        )
        self._size = stream.size()
        self._footer = self._file.metadata
        super().__init__(file.file.path, "parquet", self._as_in_spark(self._file.schema_arrow))
        counts = [self._footer.row_group(group).num_rows for group in range(self._footer.num_row_groups)]
        if min(counts, default=0) < 0 or sum(counts) != self._footer.num_rows:
            shown = ", ".join(map(str, counts[:10])) + (", ..." if len(counts) > 10 else "")
            raise self._contradiction(f"{self._footer.num_rows} rows in all, and in its row groups {shown}")
        firsts = accumulate(counts, initial=0)
        self.groups = [_RowGroup(*group) for group in zip(range(len(counts)), firsts, counts, strict=False) if group[2]]
        """The row groups that have rows."""

    def stored_point(self, point: SeekPoint) -> SeekPoint:
        group = self.groups[bisect_left(self.groups, point.at, key=attrgetter("number"))]
        return SeekPoint(group.first, point.at)

    def batches(self, columns: Sequence[str], first: int, stop_row: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows from a row group on; small groups are read together."""
        groups: list[int] = []
        unread = 0
        for group in self.groups[bisect_left(self.groups, first, key=attrgetter("number")) :]:
            if group.first >= stop_row:
                break
            groups.append(group.number)
            unread += group.rows
            if unread >= BATCH_ROWS:
                yield from self._read(groups, columns)
                groups, unread = [], 0
        if groups:
            yield from self._read(groups, columns)

    def statistics_column(self, assigner: TimestampAssigner, given: Collection[str]) -> int | None:
        """Return the number of the column whose statistics bound event times.

        None if the assigner has no such column, it is a given one, or another one cannot be told from it.
        """
        name = assigner.statistics_column
        if name is None or top_level_column(name, given) in given:
            return None
        if self._names is not None:
            name = self._names.path_in(self.stored, name)
        columns = self._footer.schema
        indices = [i for i in range(len(columns)) if columns.column(i).path == name]
        # A column `a.b` and the field `b` of a column `a` have the same path.
        return indices[0] if len(indices) == 1 else None

    def bounds(self, group: int, column: int | None, assigner: TimestampAssigner) -> tuple[int, int, int] | None:
        """Return smallest, largest and smallest valid event time of a row group; None if its statistics lack them."""
        if column is None:
            return None
        self._check(group, column)
        chunk = self._footer.row_group(group).column(column)
        statistics = chunk.statistics
        if statistics is None or not statistics.has_null_count:
            return None
        if statistics.null_count == chunk.num_values:
            return NO_TIMESTAMP, NO_TIMESTAMP, MAX_WATERMARK
        if not statistics.has_min_max:
            return None
        data_type = fields_on_path(self.schema, assigner.statistics_column or "")[-1].type
        # A stored number of microseconds is used directly: the first datetime of a process would load pandas.
        is_micros = self._footer.schema.column(column).converted_type == "TIMESTAMP_MICROS"
        try:
            low = assigner.from_statistics(data_type, statistics.min_raw if is_micros else statistics.min)
            high = assigner.from_statistics(data_type, statistics.max_raw if is_micros else statistics.max)
        except (ValueError, OverflowError):
            # pyarrow returns them as Python's datetime, which has neither nanoseconds nor years beyond 9999.
            return None
        if low is None or high is None:
            return None
        if low > high:
            raise self._contradiction(f"row group {group} begins at event time {low} and ends at {high}")
        return NO_TIMESTAMP if statistics.null_count else low, high, low

    def _as_in_spark(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema in Spark's types, where Arrow has others for the same columns."""
        types = schema.types
        # Most files have no others, and their batches are as they were read.
        self._is_as_in_spark = all(kind.id in _SAME_IN_SPARK or getattr(kind, "tz", None) for kind in types)
        if self._is_as_in_spark:
            return schema.remove_metadata()
        described = self._footer.schema
        leaves = map(described.column, range(len(described)))
        # Which groups they are is in no other place; few files have them.
        self._has_variants = any(map(pa.types.is_nested, types)) and _VARIANT in str(described)
        return pa.schema([field.with_type(_spark_type(field.type, leaves, self._has_variants)) for field in schema])

    def _read(self, groups: list[int], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        # Threads read a column each: for one alone they cost more than they give.
        batches = self._file.iter_batches(BATCH_ROWS, row_groups=groups, columns=columns, use_threads=len(columns) > 1)
        if self._is_as_in_spark:
            yield from batches
            return
        for read in batches:
            schema = pa.schema([self.stored.field(name) for name in read.schema.names])
            if self._has_variants:
                from streaming_source.data_files.formats.variants import with_variants

                arrays = [with_variants(array, field.type) for array, field in zip(read.columns, schema, strict=True)]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)
            else:
                yield read if read.schema.equals(schema) else read.cast(schema)

    def _check(self, group: int, column: int) -> None:
        """Check a chunk before its statistics are read: pyarrow crashes if their type is not that of the column."""
        chunk = self._footer.row_group(group).column(column)
        described = self._footer.schema.column(column)
        begin = chunk.data_page_offset
        if chunk.dictionary_page_offset is not None:
            begin = min(begin, chunk.dictionary_page_offset)
        end = begin + chunk.total_compressed_size
        what = f"column {described.path!r} of row group {group}"
        if chunk.physical_type != described.physical_type:
            raise self._contradiction(f"{what} is {chunk.physical_type}, but {described.physical_type} by the schema")
        rows = self._footer.row_group(group).num_rows
        if described.max_repetition_level == 0 and chunk.num_values != rows:
            raise self._contradiction(f"{what} has {chunk.num_values} values for {rows} rows")
        if not 0 <= begin <= end <= self._size:
            raise self._contradiction(f"{what} lies at bytes {begin} to {end}, but the file has {self._size}")

    def _contradiction(self, what: str) -> MalformedDataError:
        return MalformedDataError(
            f"{self.path} is not a readable Parquet file: its footer contradicts itself: {what}; write it again"
        )


_AS_IN_SPARK: Final[dict[pa.DataType, pa.DataType]] = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.string_view(): pa.string(),
    pa.binary_view(): pa.binary(),
}
"""Types that Spark has not: it reads unsigned integers as the next wider type."""

_SAME_IN_SPARK: Final = frozenset(
    kind.id
    for kind in (
        *(pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64()),
        *(pa.string(), pa.date32(), pa.decimal128(1)),
    )
)
"""Types that a column has in Spark if it has them in Arrow. A timestamp with a zone is one as well."""

_TEXT: Final = ("ENUM", "JSON")
_VARIANT: Final = "(Variant("


def _spark_type(kind: pa.DataType, leaves: Iterator[pq.ColumnSchema], has_variants: bool) -> pa.DataType:
    """Return the type in which Spark reads a column; `leaves` are the file's from the first in it on."""
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if not pa.types.is_nested(kind):
        leaf = next(leaves)
        if pa.types.is_timestamp(kind) and leaf.physical_type == "INT96":
            # Spark writes instants so; Arrow reads them without a zone.
            return pa.timestamp(kind.unit, "UTC")
        # Bytes by Arrow, in some of its versions.
        is_text = not pa.types.is_primitive(kind) and leaf.logical_type.type in _TEXT
        return pa.string() if is_text else _AS_IN_SPARK.get(kind, kind)
    if pa.types.is_map(kind):
        key = kind.key_field.with_type(_spark_type(kind.key_type, leaves, has_variants))
        return pa.map_(key, kind.item_field.with_type(_spark_type(kind.item_type, leaves, has_variants)))
    fields = [kind.field(number) for number in range(kind.num_fields)]
    fields = [field.with_type(_spark_type(field.type, leaves, has_variants)) for field in fields]
    if has_variants:
        from streaming_source.data_files.formats.variants import VARIANT, may_be_variant

        if may_be_variant(kind):
            return VARIANT
    if pa.types.is_struct(kind):
        return pa.struct(fields)
    return pa.large_list(fields[0]) if pa.types.is_large_list(kind) else pa.list_(fields[0])


_FILE_MAGIC: Final = b"ARROW1"
_FEATHER_1_MAGIC: Final = b"FEA1"


@dataclass(frozen=True, slots=True)
class ArrowFormat(ColumnarFormat):
    """Arrow IPC: files (Feather version 2) and streams, recognized by their first bytes. Blocks are record batches.

    A stream can be read from its beginning only.
    """

    name: ClassVar[str] = "arrow"
    title: ClassVar[str] = "Arrow"

    def _open(self, file: StoredFile, stream: pa.NativeFile) -> ColumnarFile:
        magic = stream.read(len(_FILE_MAGIC))
        stream.seek(0)
        if magic.startswith(_FEATHER_1_MAGIC):
            raise MalformedDataError(f"{file.path} is a Feather file of version 1; write it as version 2")
        return _ArrowFile(file.path, stream, seeks=magic == _FILE_MAGIC)


class _ArrowFile(ColumnarFile):
    def __init__(self, path: str, stream: pa.NativeFile, *, seeks: bool) -> None:
        self.seeks = seeks
        self._stream = stream
        super().__init__(path, "arrow", (ipc.open_file if seeks else ipc.open_stream)(stream).schema)

    def batches(self, columns: Sequence[str], first: int, stop_row: int) -> Iterator[pa.RecordBatch]:
        # The bytes of all other columns are not read.
        fields = sorted(self.stored.get_field_index(name) for name in columns)
        options = ipc.IpcReadOptions(included_fields=fields, use_threads=False)
        if self.seeks:
            file = ipc.open_file(self._stream, options=options)
            batches = (file.get_batch(number) for number in range(first, file.num_record_batches))
        else:
            self._stream.seek(0)
            batches = iter(ipc.open_stream(self._stream, options=options))
        for batch in batches:
            # Arrow uses the file's bytes without a check: in a damaged file an offset may point outside of it.
            batch.validate(full=True)
            yield batch
