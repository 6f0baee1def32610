"""Columns that a file has by where it lies: those in `day=2024-01-31/region=eu`, and `_metadata`."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from functools import partial
from typing import ClassVar, Final
from urllib.parse import quote, unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from alignment.timestamps import EventTimes, TimestampAssigner
from streaming_source.api import RecordBlock
from streaming_source.connectors.files.formats import FileBlocks, FileFormat, FileRows, StoredFile
from streaming_source.connectors.files.formats.base import times_alone
from streaming_source.exceptions import SchemaError

__all__ = ["METADATA", "PartitionedFormat", "partition_schema", "values_in"]

METADATA: Final = pa.field(
    "_metadata",
    pa.struct(
        [
            ("file_path", pa.string()),
            ("file_name", pa.string()),
            ("file_size", pa.int64()),
            ("file_modification_time", pa.timestamp("us", "UTC")),
        ]
    ),
)
"""As in Spark, but for the part of the file that a task reads."""

_ASCII: Final = re.compile(r"[ -~]+")

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
    """A format whose records have, beside their own, the columns that the places of their files give.

    Attributes
    ----------
    of_files
        The format of the files.
    root
        Only names of directories below this count.
    by_names
        Whether these give columns.
    scheme
        Of the file system's URIs, where files have a column `METADATA`; None where they have not.
    """

    name: ClassVar[str] = "partitioned"

    of_files: FileFormat
    root: str
    by_names: bool = True
    scheme: str | None = None

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
        named = self._named(rows.file, schema)
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
        texts = self._texts(file, schema)
        if not texts:
            return schema, assigner
        own, for_times = self._own(file, schema, texts), times_alone(schema, assigner)
        named = self._named(file, for_times)
        return own, _WithNamed(assigner, for_times, own, named) if named else assigner

    def _texts(self, file: StoredFile, schema: pa.Schema) -> dict[str, str | None]:
        """Those of the wanted columns that the file's place gives, and what its directories say of them."""
        path = file.path
        directory = posixpath.dirname(path[len(self.root) :].strip("/")) if path.startswith(self.root) else ""
        found = values_in(directory) if self.by_names else {}
        if self.scheme is not None:
            found[METADATA.name] = None
        return {name: found[name] for name in schema.names if name in found}

    def _named(self, file: StoredFile, schema: pa.Schema) -> dict[str, pa.Scalar]:
        """These columns with their values."""
        return {
            name: self._metadata(file)
            if self.scheme is not None and name == METADATA.name
            else _scalar(file.path, name, text, schema.field(name).type)
            for name, text in self._texts(file, schema).items()
        }

    def _metadata(self, file: StoredFile) -> pa.Scalar:
        info = file.filesystem.get_file_info(file.path)
        # Spark escapes both as Java's URIs do.
        path = _ASCII.sub(lambda found: quote(found[0], safe="/,;:$&+=@!~*'()"), file.path)
        uri = f"file:{path}" if file.filesystem.type_name == "local" else f"{self.scheme}://{path}"
        modified_us = None if info.mtime_ns is None else info.mtime_ns // 1_000_000 * 1000
        values = (uri, posixpath.basename(path), info.size, modified_us)
        return pa.scalar(dict(zip(METADATA.type.names, values, strict=True)), METADATA.type)

    def _own(self, file: StoredFile, schema: pa.Schema, named: Collection[str]) -> pa.Schema:
        """The columns to read from the file itself: one at least, from which the rows are counted."""
        own = [field for field in schema if field.name not in named]
        if not own:
            own = [field for field in self.of_files.schema_of(file) if field.name not in named][:1]
        return pa.schema(own)


class _WithNamed(TimestampAssigner):
    """An assigner of the columns `schema` over batches that lack those that are `named`."""

    def __init__(
        self, inner: TimestampAssigner, schema: pa.Schema, own: pa.Schema, named: Mapping[str, pa.Scalar]
    ) -> None:
        self._inner = inner
        self._schema = schema
        self._own = own
        self._named = named

    def extract(self, batch: pa.RecordBatch, source_timestamps: npt.NDArray[np.int64] | None) -> EventTimes:
        return self._inner.extract(_with_named(batch, self._schema, self._named), source_timestamps)

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(name for name in self._schema.names if name not in self._named) or (self._own.names[0],)


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
