"""The entries of manifests, with what listing files needs of them and no more.

`pyiceberg` makes objects of all that a manifest has of a file: sizes, counts and bounds of each column. A table has a
million files, so here the rest is passed over while it is decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Any, Final

from pyiceberg.avro.decoder import BinaryDecoder
from pyiceberg.avro.file import AvroFile
from pyiceberg.avro.reader import MapReader, NoneReader, OptionReader, Reader, StructReader
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.typedef import StructProtocol
from pyiceberg.types import StructType

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
        passes = index is None and isinstance(_inner(of_field), MapReader)
        fields.append((index, _Passed(of_field) if passes else of_field))
    missing = [(index, NoneReader()) for index in indexes.values()]  # type: ignore[no-untyped-call]
    return StructReader((*fields, *missing), row, struct)


def _inner(reader: Reader) -> Reader:
    return reader.option if isinstance(reader, OptionReader) else reader


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
