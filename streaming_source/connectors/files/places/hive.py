"""Columns in the names of directories, `day=2024-01-31/region=eu`: their values and types."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from functools import partial
from typing import ClassVar, Final
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from alignment.columns import top_level_column
from alignment.timestamps import EventTimes, TimestampAssigner
from streaming_source.api import RecordBlock
from streaming_source.connectors.files.formats import FileBlocks, FileFormat, FileRows, StoredFile
from streaming_source.exceptions import SchemaError

__all__ = ["PartitionedFormat", "partition_schema", "values_in"]

_NULL: Final = "__HIVE_DEFAULT_PARTITION__"


def values_in(directory: str) -> dict[str, str | None]:
    """Columns and their values, as text, in the names of a path of directories; None for a null."""
    pairs = (part.split("=", 1) for part in directory.split("/") if "=" in part.lstrip("="))
    return {unquote(name): None if value == _NULL else unquote(value) for name, value in pairs}


def partition_schema(directories: Iterable[str], types: Mapping[str, pa.DataType]) -> pa.Schema:
    """The columns that directories have in their names, in the narrowest type that holds all their values.

    Parameters
    ----------
    directories
        Of files, below the root.
    types
        Of columns that the user gave.

    Raises
    ------
    SchemaError
        If some have other columns than others.
    """
    names: tuple[str, ...] | None = None
    values: dict[str, set[str]] = {}
    for directory in directories:
        found = values_in(directory)
        if names is not None and tuple(found) != names:
            raise SchemaError(
                f"directories have columns {', '.join(names) or '(none)'} and, in {directory!r}, "
                f"{', '.join(found) or '(none)'} in their names: let all files lie in directories of the same columns, "
                "or set recursiveFileLookup = true to read no columns from names"
            )
        names = tuple(found)
        for name, value in found.items():
            values.setdefault(name, set()).update(() if value is None else (value,))
    return pa.schema([(name, types.get(name) or _narrowest(values[name])) for name in names or ()])


@dataclass(frozen=True)
class PartitionedFormat(FileFormat):
    """A format whose records have, beside their own, the columns that the names of their directories give.

    Attributes
    ----------
    of_files
        The format of the files.
    root
        Only names below this count.
    """

    name: ClassVar[str] = "partitioned"

    of_files: FileFormat
    root: str

    def schema_of(self, file: StoredFile) -> pa.Schema:
        """See `FileFormat`. Columns of the file alone."""
        return self.of_files.schema_of(file)

    def describe(self, file: StoredFile, schema: pa.Schema, assigner: TimestampAssigner, indexing: str) -> FileBlocks:
        """See `FileFormat`."""
        return self.of_files.describe(file, *self._of_file(file, schema, assigner), indexing)

    def event_times(self, rows: FileRows, schema: pa.Schema, assigner: TimestampAssigner) -> npt.NDArray[np.int64]:
        """See `FileFormat`."""
        return self.of_files.event_times(rows, *self._of_file(rows.file, schema, assigner))

    def read_rows(self, rows: FileRows, schema: pa.Schema) -> Iterator[RecordBlock]:
        """See `FileFormat`."""
        named = self._named(rows.file.path, schema)
        if not named:
            yield from self.of_files.read_rows(rows, schema)
            return
        own = self._own(rows.file, schema, named)
        for block in self.of_files.read_rows(rows, own):
            yield RecordBlock(_with_named(block.batch, schema, named), block.positions)

    def _of_file(
        self, file: StoredFile, schema: pa.Schema, assigner: TimestampAssigner
    ) -> tuple[pa.Schema, TimestampAssigner]:
        """The columns to read from the file itself, and an assigner over these."""
        named = self._named(file.path, schema)
        if not named:
            return schema, assigner
        own = self._own(file, schema, named)
        with_named = _WithNamed(assigner, schema, own, named)
        return own, with_named if named.keys() & {*with_named.schema.names} else assigner

    def _named(self, path: str, schema: pa.Schema) -> dict[str, pa.Scalar]:
        """Those of the wanted columns that are in the names of a file's directories."""
        directory = posixpath.dirname(path[len(self.root) :].strip("/")) if path.startswith(self.root) else ""
        found = values_in(directory)
        return {
            name: _scalar(path, name, found[name], schema.field(name).type) for name in schema.names if name in found
        }

    def _own(self, file: StoredFile, schema: pa.Schema, named: Mapping[str, pa.Scalar]) -> pa.Schema:
        """The columns to read from the file itself: one at least, from which the rows are counted."""
        own = [field for field in schema if field.name not in named]
        if not own:
            own = [field for field in self.of_files.schema_of(file) if field.name not in named][:1]
        return pa.schema(own)


class _WithNamed(TimestampAssigner):
    """An assigner over batches that lack the columns in the names of their file's directories."""

    def __init__(
        self, inner: TimestampAssigner, schema: pa.Schema, own: pa.Schema, named: Mapping[str, pa.Scalar]
    ) -> None:
        self._inner = inner
        self._own = own
        self._named = named
        wanted = inner.columns
        tops = schema.names if wanted is None else [top_level_column(column, schema.names) for column in wanted]
        # All that the assigner may read.
        self.schema = pa.schema([field for field in schema if field.name in tops])

    def extract(self, batch: pa.RecordBatch, source_timestamps: npt.NDArray[np.int64] | None) -> EventTimes:
        return self._inner.extract(_with_named(batch, self.schema, self._named), source_timestamps)

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(name for name in self.schema.names if name not in self._named) or (self._own.names[0],)


def _with_named(batch: pa.RecordBatch, schema: pa.Schema, named: Mapping[str, pa.Scalar]) -> pa.RecordBatch:
    columns = [
        pa.repeat(named[name], batch.num_rows) if name in named else batch.column(batch.schema.get_field_index(name))
        for name in schema.names
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _scalar(path: str, name: str, value: str | None, data_type: pa.DataType) -> pa.Scalar:
    try:
        return pa.scalar(value, pa.string()).cast(data_type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SchemaError(
            f"{path}: the directory {name}={value} cannot be read as {data_type}: {error}. Give the type of {name!r} "
            "in dataSchema"
        ) from None


def _narrowest(values: Iterable[str]) -> pa.DataType:
    """As Spark infers them: int, bigint, double, date, timestamp, or text."""
    texts = list(values)
    for data_type, parse in _KINDS:
        try:
            for text in texts:
                parse(text)
        except ValueError:
            continue
        if texts:
            return data_type
    return pa.string()


def _whole(text: str, bits: int) -> int:
    number = int(text)
    if text != text.strip() or "_" in text or not -(2 ** (bits - 1)) <= number < 2 ** (bits - 1):
        raise ValueError(text)
    return number


def _date(text: str) -> date:
    if len(text) != len("2024-01-31"):
        raise ValueError(text)
    return date.fromisoformat(text)


def _timestamp(text: str) -> datetime:
    if len(text) < len("2024-01-31 00:00"):
        raise ValueError(text)
    return datetime.fromisoformat(text)


def _real(text: str) -> float:
    if not text[-1:].isdigit() or "_" in text:
        raise ValueError(text)
    return float(text)


_KINDS: Final[Sequence[tuple[pa.DataType, Callable[[str], object]]]] = (
    (pa.int32(), partial(_whole, bits=32)),
    (pa.int64(), partial(_whole, bits=64)),
    (pa.float64(), _real),
    (pa.date32(), _date),
    (pa.timestamp("us"), _timestamp),
)
