"""Manifests of an Iceberg table as columns of files: where they are, their bounds, and which of their rows are deleted.

`pyiceberg` makes objects of all that a manifest has of a file: sizes, counts and bounds of each column. A table has a
million files, so here the rest is passed over while it is decoded.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from operator import itemgetter
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs
from pyiceberg.avro.decoder import BinaryDecoder
from pyiceberg.avro.file import AvroFile
from pyiceberg.avro.reader import MapReader, NoneReader, OptionReader, Reader, StructReader
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFileContent, FileFormat, ManifestEntry, ManifestFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import StructProtocol
from pyiceberg.types import StructType

from alignment.watermarks import BoolArray
from streaming_source.connectors.iceberg.columns import IcebergColumns
from streaming_source.connectors.tables.files import (
    NO_TIMES,
    Deletes,
    Partition,
    TimeBounds,
    end_of_milliseconds,
    listed,
)
from streaming_source.data_files.file import DeletedRows
from streaming_source.exceptions import DataLossError, UnsupportedOperationError

_PATH_ID: Final = 2147483546
"""The id of the column `file_path` of delete files."""

_FIX: Final = (
    "Rewrite the table's data files (CALL system.rewrite_data_files), and start with a snapshot after that, or read it "
    "with spark.readStream.format('iceberg') and withWatermark"
)


def partition_key(spec_id: int, partition: Any) -> str:
    """A short name of a partition; files of different ones have the same one in a few of 2^32 cases, which is safe."""
    return f"{spec_id}:{zlib.crc32(repr(partition).encode()):x}"


@dataclass(frozen=True, slots=True)
class _DeleteFile:
    """Rows of some data files, all from `low` to `high` by their locations; those added after it are not in it."""

    location: str
    sequence: int
    low: bytes
    high: bytes | None

    def is_about(self, location: bytes, sequence: int) -> bool:
        return self.sequence >= sequence and self.low <= location and (self.high is None or location <= self.high)


class DeleteFiles:
    """The delete files of a snapshot by partition; made of the entries of its manifests of deletes.

    An `UnsupportedOperationError` names what is not understood: equality deletes, deletion vectors.
    """

    def __init__(self, title: str, snapshot_id: int, entries: Iterable[ManifestEntry]) -> None:
        self._title, self._snapshot_id = title, snapshot_id
        self._files: dict[str, list[_DeleteFile]] = defaultdict(list)
        for entry in entries:
            file = entry.data_file
            if file.content == DataFileContent.EQUALITY_DELETES:
                raise self._refused(file.file_path, "equality deletes (as Flink's upserts write them)")
            if file.file_format.value == "PUFFIN":
                raise self._refused(file.file_path, "deletion vectors (of format version 3)")
            if file.file_format != FileFormat.PARQUET:
                raise self._refused(file.file_path, f"position deletes in {file.file_format.value}")
            low, high = (file.lower_bounds or {}).get(_PATH_ID), (file.upper_bounds or {}).get(_PATH_ID)
            one = _DeleteFile(file.file_path, entry.sequence_number or 0, low or b"", high)
            self._files[partition_key(file.spec_id, file.partition)].append(one)

    def __bool__(self) -> bool:
        return bool(self._files)

    def about(self, location: str, key: str, sequence: int) -> list[str]:
        """Return the locations of the delete files that may have rows of a data file."""
        path = location.encode()
        return [one.location for one in self._files.get(key, ()) if one.is_about(path, sequence)]

    def read(self, files: fs.FileSystem, location: str, key: str, sequence: int) -> DeletedRows | None:
        """Read which rows of a data file are deleted; None if there are none."""
        rows = [np.empty(0, np.int64)]
        for one in self.about(location, key, sequence):
            try:
                found = pq.read_table(one, filesystem=files, columns=["pos"], filters=[("file_path", "=", location)])
            except FileNotFoundError:
                raise DataLossError(
                    f"{self._title}: the delete file {one} of snapshot {self._snapshot_id} was deleted: the snapshot "
                    "has expired. Start with a new checkpointLocation, which reads the table as it is now"
                ) from None
            rows.append(found["pos"].to_numpy())
        numbers = np.concatenate(rows)
        return DeletedRows.of_rows(numbers) if numbers.size else None

    def _refused(self, location: str, what: str) -> UnsupportedOperationError:
        return UnsupportedOperationError(
            f"{self._title}, snapshot {self._snapshot_id}, has {what}, which are not read: {location}. {_FIX}"
        )


ADDED: Final = 1
"""`Entry.status` of a file that the snapshot of the entry added."""

DELETED: Final = 2
"""`Entry.status` of a file that the snapshot of the entry removed."""

_DATA_FILE_ID: Final = 2
_ENTRY_IDS: Final = (0, 1, 3, _DATA_FILE_ID)
_FILE_IDS: Final = (100, 101, 102, 103, 104, 110, 125, 128, 131)


class _Row(list[Any], StructProtocol):
    """Values by their index, as `pyiceberg` fills them in."""

    __slots__ = ()

    def __init__(self, *values: Any) -> None:
        super().__init__(values)


class EntryFile(_Row):
    """A data file, under the names of the specification; `file_format` is text."""

    __slots__ = ()

    file_path: str = property(itemgetter(0))  # type: ignore[assignment]
    file_format: str = property(itemgetter(1))  # type: ignore[assignment]
    partition: Any = property(itemgetter(2))
    record_count: int = property(itemgetter(3))  # type: ignore[assignment]
    file_size_in_bytes: int = property(itemgetter(4))  # type: ignore[assignment]
    null_value_counts: Any = property(itemgetter(5))
    lower_bounds: Any = property(itemgetter(6))
    upper_bounds: Any = property(itemgetter(7))
    key_metadata: bytes | None = property(itemgetter(8))  # type: ignore[assignment]


class Entry(_Row):
    """An entry of a manifest; snapshot and sequence number are those of the manifest where it has none."""

    __slots__ = ()

    status: int = property(itemgetter(0))  # type: ignore[assignment]
    snapshot_id: int | None = property(itemgetter(1))  # type: ignore[assignment]
    sequence_number: int | None = property(itemgetter(2))  # type: ignore[assignment]
    data_file: EntryFile = property(itemgetter(3))  # type: ignore[assignment]


class _Passed(Reader):
    """Passes over a map: numbers are read faster than they are skipped."""

    def __init__(self, inner: Reader) -> None:
        self._inner = inner

    def read(self, decoder: BinaryDecoder) -> Any:
        return self._inner.read(decoder)

    def skip(self, decoder: BinaryDecoder) -> None:
        self._inner.read(decoder)


def _rows(struct: StructType, reader: StructReader, ids: tuple[int, ...], row: Callable[..., _Row]) -> StructReader:
    """Read those fields of a struct that have these ids, in their order; one that is not in the file is None."""
    indexes = {number: index for index, number in enumerate(ids)}
    fields: list[tuple[int | None, Reader]] = []
    for field, (_, of_field) in zip(struct.fields, reader.field_readers, strict=True):
        index = indexes.pop(field.field_id, None)
        if field.field_id == _DATA_FILE_ID:
            assert isinstance(field.field_type, StructType)
            assert isinstance(of_field, StructReader)
            of_field = _rows(field.field_type, of_field, _FILE_IDS, EntryFile)
        inner = of_field.option if isinstance(of_field, OptionReader) else of_field
        passes = index is None and isinstance(inner, MapReader)
        fields.append((index, _Passed(of_field) if passes else of_field))
    missing = [(index, NoneReader()) for index in indexes.values()]  # type: ignore[no-untyped-call]
    return StructReader((*fields, *missing), row, struct)


def entries_of(manifest: ManifestFile, io: FileIO) -> Iterator[Entry]:
    """Read the entries of a manifest one by one, `DELETED` ones as well; a `FileNotFoundError` if it was deleted."""
    sequence_number = manifest.sequence_number
    with AvroFile[Entry](io.new_input(manifest.manifest_path)) as found:
        assert isinstance(found.reader, StructReader)
        found.reader = _rows(found.schema.as_struct(), found.reader, _ENTRY_IDS, Entry)
        for entry in found:
            if entry[1] is None:
                entry[1] = manifest.added_snapshot_id
            # https://iceberg.apache.org/spec/#sequence-number-inheritance
            if entry[2] is None and (sequence_number == 0 or entry[0] == ADDED):
                entry[2] = sequence_number
            yield entry


@dataclass(frozen=True, slots=True)
class FilesOfManifests:
    """Makes `LISTED` of entries of manifests.

    `time_id` is the id of the event-time column, `bounds` makes event times of its bounds: both are None where these
    tell nothing of them.
    """

    title: str
    columns: IcebergColumns
    specs: Mapping[int, PartitionSpec]
    time_id: int | None
    bounds: TimeBounds | None

    def of(self, entries: Iterable[Entry], spec_id: int, version: int, deletes: DeleteFiles | None = None) -> pa.Table:
        """Return the files of the entries of a manifest, each of this version. O(entries).

        `spec_id` is the manifest's: how its files are partitioned.
        """
        paths, sizes = list[str](), list[int]()
        partitions, deleted = list[dict[str, str | None]](), list[Deletes | None]()
        low, high = list[bytes | None](), list[bytes | None]()
        rows, empty, complete = list[int](), list[bool](), list[bool]()
        time_id = self.time_id
        identities = self._identities(spec_id)
        for entry in entries:
            file = entry.data_file
            self._check(file, version)
            paths.append(file.file_path)
            sizes.append(file.file_size_in_bytes)
            rows.append(file.record_count)
            if identities:
                partitions.append(_texts_of(file.partition, identities))
            if deletes:
                key, sequence = partition_key(spec_id, file.partition), entry.sequence_number or 0
                has_deleted = bool(deletes.about(file.file_path, key, sequence))
                deleted.append(Deletes(sequence, key) if has_deleted else None)
            if time_id is not None:
                low.append((file.lower_bounds or {}).get(time_id))
                high.append((file.upper_bounds or {}).get(time_id))
                nulls = (file.null_value_counts or {}).get(time_id)
                is_empty = low[-1] is None and nulls == file.record_count
                empty.append(file.record_count == 0 or is_empty)
                complete.append(nulls == 0)
        count = len(paths)
        if self.bounds is None or time_id is None or pa.types.is_decimal(self.bounds.data_type):
            low_us = high_us = pa.nulls(count, pa.int64())
        else:
            low_us, high_us = self._times(low, empty, NO_TIMES[0]), self._times(high, empty, NO_TIMES[1], is_upper=True)
            known = low_us.is_valid().to_numpy(zero_copy_only=False) & high_us.is_valid().to_numpy(zero_copy_only=False)
            low_us, high_us = (pa.array(one.fill_null(0).to_numpy(), mask=~known) for one in (low_us, high_us))
        return listed(
            pa.array(paths, pa.string()),
            version,
            pa.array(sizes, pa.int64()),
            (low_us, high_us, pa.array(complete or [False] * count, pa.bool_())),
            pa.array(rows, pa.int64()),
            partitions if identities else None,
            deleted if deletes else None,
        )

    def _check(self, file: EntryFile, version: int) -> None:
        what = None
        if file.file_format.upper() != FileFormat.PARQUET.value:
            what = f"in {file.file_format.upper()}: only Parquet is read"
        elif file.key_metadata:
            what = "that is encrypted, which is not read"
        if what is not None:
            raise UnsupportedOperationError(
                f"{self.title}, snapshot {version}, has a file {what}: {file.file_path}. Rewrite the table's data "
                "files (CALL system.rewrite_data_files), or read it with spark.readStream.format('iceberg') and "
                "withWatermark"
            )

    def _identities(self, spec_id: int) -> list[tuple[int, int]]:
        """Index in the partition, and id of the column that has its value."""
        spec = self.specs[spec_id]
        return [
            (index, field.source_id)
            for index, field in enumerate(spec.fields)
            if isinstance(field.transform, IdentityTransform)
        ]

    def _times(
        self, values: list[bytes | None], empty: list[bool], nothing: int, *, is_upper: bool = False
    ) -> pa.Array:
        assert self.bounds is not None
        numbers, known = _numbers(values, self.bounds.data_type)
        times, valid = self.bounds.convert(numbers)
        if is_upper and pa.types.is_timestamp(self.bounds.data_type):
            # The metadata of a Delta table in Iceberg's format (UniForm) have the bounds of Delta's log.
            times = end_of_milliseconds(times)
        is_empty = np.array(empty, np.bool_)
        return pa.array(np.where(is_empty, nothing, times), pa.int64(), mask=~((valid & known) | is_empty))


def _numbers(values: list[bytes | None], kind: pa.DataType) -> tuple[pa.Array, BoolArray]:
    """Bounds as the specification writes them, and which can be read.

    A bound has the width of the type that the column had then: `int` may have become `long`.
    """
    widths = (8,) if pa.types.is_timestamp(kind) else (4,) if pa.types.is_date(kind) else (4, 8)
    known = np.array([value is not None and len(value) in widths for value in values], np.bool_)
    readable = [value for value in values if value is not None and len(value) in widths]
    found = np.zeros(len(values), np.int64)
    if {len(value) for value in readable} == {8}:
        found[known] = np.frombuffer(b"".join(readable), "<i8")
    else:
        found[known] = [int.from_bytes(value, "little", signed=True) for value in readable]
    array = pa.array(found, mask=~known)
    return (array.cast(pa.int32()).cast(kind) if pa.types.is_date(kind) else array.cast(kind)), known


# ---- partition values ------------------------------------------------------------------------------------------------


def _texts_of(partition: Any, indexes: list[tuple[int, int]]) -> dict[str, str | None]:
    """Values of columns that are the same in all rows of a file, by the ids of the columns."""
    values = {str(source_id): _text(partition[index]) for index, source_id in indexes}
    return {source_id: text for source_id, text in values.items() if text is not None}


def _text(value: Any) -> str | None:
    """Times are numbers of days or microseconds in manifests, and bytes are written in hexadecimal digits."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime | date):
        return value.isoformat()
    return str(value) if isinstance(value, int | float | str | Decimal) else None


def given_of(partition: Partition, columns: IcebergColumns, schema: pa.Schema) -> dict[str, pa.Scalar]:
    """Return the columns of a query whose values partitions have; see `DataFile.given`."""
    known, found = columns.top_level(), {}
    for source_id, text in partition:
        field = known.get(int(source_id))
        if field is None or text is None or (index := schema.get_field_index(field[0])) < 0:
            continue
        name, kind = field[0], schema.field(index).type
        if pa.types.is_temporal(kind) and text.removeprefix("-").isdigit():
            whole = pa.int32() if pa.types.is_date(kind) else pa.int64()
            found[name] = pa.scalar(int(text), whole).cast(kind)
        elif pa.types.is_binary(kind):
            found[name] = pa.scalar(bytes.fromhex(text), kind)
        else:
            found[name] = pa.scalar(text, pa.string()).cast(kind)
    return found
