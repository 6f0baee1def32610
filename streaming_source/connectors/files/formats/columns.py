"""Columns of files: those that the place of one gives, and how those of one file become those of a query."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote

import pyarrow as pa
from pyarrow import fs

from alignment.arrow_times import to_microseconds
from streaming_source.exceptions import MalformedDataError, SchemaError

__all__ = [
    "METADATA",
    "PlaceColumns",
    "check_columns",
    "check_distinct",
    "conformed",
    "merged",
    "own_columns",
    "partition_schema",
    "values_in",
    "with_given",
]

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
    """The columns that directories have in their names, in the user's type, or the narrowest that holds all values."""
    values: dict[str, set[str]] | None = None
    for directory in directories:
        found = values_in(directory)
        if values is None:
            values = {name: set() for name in found}
        elif [*found] != [*values]:
            raise SchemaError(
                f"directories have columns {', '.join(values) or '(none)'} and, in {directory!r}, "
                f"{', '.join(found) or '(none)'} in their names: let all files lie in directories of the same columns, "
                "or set recursiveFileLookup = true to read no columns from names"
            )
        for name, value in found.items():
            values[name].update(() if value is None else (value,))
    return pa.schema([(name, types.get(name) or _narrowest([*texts])) for name, texts in (values or {}).items()])


@dataclass(frozen=True, slots=True)
class PlaceColumns:
    """The columns that files have by their places.

    They are in names of directories below the `root`, `day=2024-01-31/region=eu`, unless that is None; and there is
    `METADATA`, where the `scheme` of the file system's URIs is given.
    """

    root: str | None = None
    scheme: str | None = None

    def names(self, path: str) -> Collection[str]:
        """Those of a file."""
        return self._texts(path).keys()

    def values(self, filesystem: fs.FileSystem, path: str, schema: pa.Schema) -> dict[str, pa.Scalar]:
        """Those of a file that are among these columns, with their values."""
        return {
            name: self._metadata(filesystem, path)
            if self.scheme is not None and name == METADATA.name
            else _scalar(path, name, text, schema.field(name).type)
            for name, text in self._texts(path).items()
            if name in schema.names
        }

    def _texts(self, path: str) -> dict[str, str | None]:
        """All of a file, and what its directories say of them."""
        in_root = self.root is not None and path.startswith(self.root)
        found = values_in(posixpath.dirname(path[len(self.root or "") :].strip("/"))) if in_root else {}
        return found if self.scheme is None else {**found, METADATA.name: None}

    def _metadata(self, filesystem: fs.FileSystem, path: str) -> pa.Scalar:
        info = filesystem.get_file_info(path)
        # Spark escapes both as Java's URIs do.
        escaped = _ASCII.sub(lambda found: quote(found[0], safe="/,;:$&+=@!~*'()"), path)
        uri = f"file:{escaped}" if filesystem.type_name == "local" else f"{self.scheme}://{escaped}"
        modified_us = None if info.mtime_ns is None else info.mtime_ns // 1_000_000 * 1000
        values = (uri, posixpath.basename(path), info.size, modified_us)
        return pa.scalar(dict(zip(METADATA.type.names, values, strict=True)), METADATA.type)


def with_given(batch: pa.RecordBatch, schema: pa.Schema, given: Mapping[str, pa.Scalar]) -> pa.RecordBatch:
    """A batch of a file's own columns in the columns `schema`, of which some are given."""
    if not given:
        return batch
    columns = [
        pa.repeat(given[name], batch.num_rows) if name in given else batch.column(batch.schema.get_field_index(name))
        for name in schema.names
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def check_distinct(path: str, names: Sequence[str]) -> None:
    """Refuse columns of one name."""
    if len({*names}) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise SchemaError(f"{path} has more than one column of the name {', '.join(map(repr, twice))}; rename them")


def check_columns(path: str, found: pa.Schema, wanted: pa.Schema) -> None:
    """Compare the columns of a file that knows its types with those that the query reads."""
    own = own_columns(found.names, wanted.names)
    if wanted.names and not own:
        raise SchemaError(
            f"{path} has no column {wanted.names[0]!r} nor any other that is read; it has {', '.join(found.names)}. "
            "Read it as a source of its own, or leave it out with pathGlobFilter"
        )
    check_distinct(path, [name for name in found.names if name in own])
    for name in own:
        has, reads = found.field(name).type, wanted.field(name).type
        if not _widens(has, reads):
            raise SchemaError(
                f"{path} has column {name!r} as {has}; the query reads it as {reads}, which does not hold all of that. "
                "Write it in one type, or give the wider one in dataSchema"
            )


def own_columns(found: Sequence[str], wanted: Sequence[str]) -> list[str]:
    """Those of the wanted columns that a file has."""
    return [name for name in wanted if name in found]


def conformed(path: str, batch: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    """A batch of a file in the columns of a query; those that it lacks are null."""
    if batch.schema.equals(wanted):
        return batch
    columns = []
    for field in wanted:
        place = batch.schema.get_field_index(field.name)
        try:
            columns.append(
                pa.nulls(batch.num_rows, field.type) if place < 0 else _as_type(batch.column(place), field.type)
            )
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise MalformedDataError(f"{path}: column {field.name!r} does not fit {field.type}: {error}") from None
    if not columns:
        return batch.select([])
    return pa.RecordBatch.from_arrays(columns, schema=wanted)


def merged(path: str, known: pa.Schema, found: pa.Schema) -> pa.Schema:
    """All columns of some files and of one more, each in the wider of its two types."""
    fields = {field.name: field for field in known}
    for field in found:
        before = fields.get(field.name, field)
        if _widens(before.type, field.type):
            fields[field.name] = field
        elif not _widens(field.type, before.type):
            raise SchemaError(
                f"{path} has column {field.name!r} as {field.type}, others as {before.type}: neither holds the other. "
                "Write it in one type"
            )
    return pa.schema(list(fields.values()))


def _as_type(column: pa.Array, data_type: pa.DataType) -> pa.Array:
    if column.type == data_type:
        return column
    if pa.types.is_timestamp(column.type) and pa.types.is_timestamp(data_type) and column.type.unit == "ns":
        # Cut to microseconds, as any finer time.
        micros, valid = to_microseconds(column, None)
        return pa.array(micros, pa.int64(), mask=~valid).cast(data_type)
    return column.cast(data_type)


def _widens(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a type holds all values of another: as Spark's readers widen, and what is only written otherwise."""
    types = pa.types
    if types.is_dictionary(found) or types.is_dictionary(wanted):
        return _widens(*(kind.value_type if types.is_dictionary(kind) else kind for kind in (found, wanted)))
    if found == wanted or types.is_null(found) or (_is_text(found) and _is_text(wanted)):
        return True
    if types.is_struct(found) and types.is_struct(wanted):
        return all(
            _widens(found.field(own).type, wanted.field(own).type)
            for own in {f.name for f in found} & {f.name for f in wanted}
        )
    if types.is_list(found) and types.is_list(wanted):
        return _widens(found.value_type, wanted.value_type)
    if types.is_timestamp(found) and types.is_timestamp(wanted):
        units = ["s", "ms", "us", "ns"]
        finer = units.index(found.unit) <= units.index(wanted.unit) or wanted.unit == "us"
        return bool(finer and (found.tz is None) == (wanted.tz is None))
    if types.is_integer(found) and types.is_integer(wanted):
        wider = found.bit_width < wanted.bit_width
        return bool(wider and (types.is_unsigned_integer(found) or types.is_signed_integer(wanted)))
    if types.is_floating(wanted):
        exact = 53 if wanted.bit_width == 64 else 24 if wanted.bit_width == 32 else 11
        is_small = types.is_integer(found) and found.bit_width <= exact
        return bool(is_small or (types.is_floating(found) and found.bit_width < wanted.bit_width))
    if types.is_decimal(found) and types.is_decimal(wanted):
        whole, more = found.precision - found.scale, wanted.precision - wanted.scale
        return bool(found.scale <= wanted.scale and whole <= more)
    return False


def _is_text(data_type: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_string(data_type) or types.is_large_string(data_type) or types.is_string_view(data_type))


def _scalar(path: str, name: str, value: str | None, data_type: pa.DataType) -> pa.Scalar:
    try:
        return pa.scalar(value, pa.string()).cast(data_type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SchemaError(
            f"{path}: the directory {name}={value} cannot be read as {data_type}: {error}. Give the type of {name!r} "
            "in dataSchema"
        ) from None


def _narrowest(texts: list[str]) -> pa.DataType:
    """As Spark infers them: int, bigint, double, date, timestamp, or text."""
    for written, data_type in _WRITTEN:
        try:
            if texts and all(written.fullmatch(text) for text in texts):
                pa.array(texts).cast(data_type)
                return data_type
        except pa.ArrowInvalid:
            continue
    return pa.string()


_WHOLE: Final = re.compile(r"-?\d+")
_WRITTEN: Final = (
    (_WHOLE, pa.int32()),
    (_WHOLE, pa.int64()),
    (re.compile(r"-?\d*\.?\d+(?:[eE][+-]?\d+)?"), pa.float64()),
    (re.compile(r"\d{4}-\d\d-\d\d"), pa.date32()),
    (re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d.*"), pa.timestamp("us")),
)
"""How values of a type are written. A cast takes more for one: `0x1f`, `nan`, an hour alone."""
