"""Columns whose values follow from where a file is: those in names of directories, and Spark's `_metadata`."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from decimal import Decimal
from functools import lru_cache
from typing import Final
from urllib.parse import quote, unquote

import pyarrow as pa
from pyarrow import fs

from alignment.time_texts import UTC, parse_dates, parse_times
from alignment.watermarks import BoolArray, Int64Array
from streaming_source.connectors.files.listing import ListedFile
from streaming_source.exceptions import SchemaError

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
"""As in Spark, without the fields on the part of the file that a task reads."""

_ASCII: Final = re.compile(r"[ -~]+")

_NULL: Final = "__HIVE_DEFAULT_PARTITION__"


def values_in(directory: str) -> dict[str, str | None]:
    """Return the columns and values (text; None for a null) in the names of the directories of a path."""
    pairs = (part.split("=", 1) for part in directory.split("/") if "=" in part.lstrip("="))
    return {_unescaped(name): None if value == _NULL else _unescaped(value) for name, value in pairs}


def _unescaped(text: str) -> str:
    # As in Spark, an escape is a character, and not a byte of UTF-8.
    return unquote(text, encoding="latin-1")


def partition_schema(
    directories: Iterable[str],
    known: Iterable[pa.Field] = (),
    *,
    case_sensitive: bool = False,
    zone: str | None = None,
    infers: bool = True,
) -> pa.Schema:
    """Return the columns in the names of directories: those that are `known`, or of the narrowest type.

    Names may differ from directory to directory in case, unless they are `case_sensitive`. Times are moments where a
    `zone` is given. Without `infers` all are text.
    """
    key, same = _key(case_sensitive), _SameNames(case_sensitive)
    values: dict[str, set[str]] | None = None
    for directory in directories:
        found = values_in(directory)
        same.check(directory, found)
        if values is None:
            values = {name: set() for name in found}
        for texts, value in zip(values.values(), found.values(), strict=True):
            texts.update(() if value is None else (value,))
    fields = {key(field.name): field for field in known}
    return pa.schema(
        fields.get(key(name)) or pa.field(name, _narrowest([*texts], zone) if infers else pa.string())
        for name, texts in (values or {}).items()
    )


def _key(case_sensitive: bool) -> Callable[[str], str]:
    return str if case_sensitive else str.lower


class _SameNames:
    """Checks that all directories have the columns of the first one in their names."""

    def __init__(self, case_sensitive: bool) -> None:
        self._key = _key(case_sensitive)
        self._first: list[str] | None = None

    def check(self, directory: str, found: Collection[str]) -> None:
        """Raise a `SchemaError` if the names of a directory have other columns."""
        if self._first is None:
            self._first = [*found]
        elif [*map(self._key, found)] != [*map(self._key, self._first)]:
            raise SchemaError(
                f"directories have columns {', '.join(self._first) or '(none)'} and, in {directory!r}, "
                f"{', '.join(found) or '(none)'} in their names: let all files lie in directories of the same columns, "
                "or set recursiveFileLookup = true to read no columns from names"
            )


class GivenColumns:
    """The columns of a query whose values follow from where a file is, and are not read from it.

    With `in_names` these are the columns in the names of directories below the source's root, as in
    `day=2024-01-31/region=eu`; `with_metadata` it is `METADATA` too.
    """

    def __init__(
        self,
        filesystem: fs.FileSystem,
        uri: str,
        schema: pa.Schema,
        *,
        in_names: bool,
        with_metadata: bool,
        case_sensitive: bool = False,
        zone: str | None = None,
    ) -> None:
        self._key, self._zone = _key(case_sensitive), zone
        self._fields = {self._key(field.name): field for field in schema}
        self._has_metadata = with_metadata and METADATA.name in schema.names
        self._in_names = in_names
        self._same = _SameNames(case_sensitive)
        self._prefix = "file:" if filesystem.type_name == "local" else f"{uri.partition('://')[0]}://"
        # Files of one directory come one after another.
        self._of_directory = lru_cache(maxsize=256)(self._parsed)

    def of(self, file: ListedFile, path: str) -> dict[str, pa.Scalar]:
        """Return the values for a file.

        Raises a `SchemaError` if one is not of its column's type, or its directory has other columns than the first.
        """
        # All files of a directory share one mapping, so that it is pickled once a task.
        given = self._of_directory(file.directory) if self._in_names else {}
        return {**given, METADATA.name: self._metadata(file, path)} if self._has_metadata else given

    def _parsed(self, directory: str) -> dict[str, pa.Scalar]:
        found = values_in(directory)
        self._same.check(directory, found)
        fields = {self._fields.get(self._key(name)): text for name, text in found.items()}
        return {
            field.name: _scalar(directory, field, text, self._zone)
            for field, text in fields.items()
            if field is not None
        }

    def _metadata(self, file: ListedFile, path: str) -> pa.Scalar:
        # Spark escapes paths as Java's URIs do.
        escaped = _ASCII.sub(lambda found: quote(found[0], safe="/,;:$&+=@!~*'()"), path)
        modified_us = file.modified_ms * 1000 if file.modified_ms else None
        values = (f"{self._prefix}{escaped}", file.name, file.size, modified_us)
        return pa.scalar(dict(zip(METADATA.type.names, values, strict=True)), METADATA.type)


def _scalar(directory: str, field: pa.Field, text: str | None, zone: str | None) -> pa.Scalar:
    if text is None:
        return pa.scalar(None, field.type)
    try:
        if pa.types.is_date(field.type):
            return _first(parse_dates(pa.array([text])), pa.int32(), field.type)
        if pa.types.is_timestamp(field.type):
            local = None if field.type.tz is None else zone or UTC
            if zone is None and local and parse_times(pa.array([text]), None)[1][0]:
                raise pa.ArrowInvalid("it has no zone; set option timeZone")
            return _first(parse_times(pa.array([text]), local), pa.timestamp("us", local), field.type)
        if pa.types.is_floating(field.type) or pa.types.is_integer(field.type):
            text = text.removeprefix("+").rstrip("dDfF")
        return pa.scalar(text, pa.string()).cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SchemaError(
            f"{directory}: the directory {field.name}={text} cannot be read as {field.type}: {error}. Give the type of "
            f"{field.name!r} in dataSchema"
        ) from None


def _first(parsed: tuple[Int64Array, BoolArray], steps: pa.DataType, data_type: pa.DataType) -> pa.Scalar:
    (value,), (is_valid,) = parsed
    if not is_valid:
        raise pa.ArrowInvalid("it is none")
    return pa.scalar(int(value), pa.int64()).cast(steps).cast(data_type)


def _narrowest(texts: list[str], zone: str | None) -> pa.DataType:
    """Return the type that Spark infers: int, bigint, decimal, double, date, timestamp, or string."""
    kinds = {next((kind for kind, written in _WRITTEN.items() if written.fullmatch(text)), "text") for text in texts}
    if kinds and kinds <= {"whole", "double"}:
        numbers = [Decimal(text) if _WRITTEN["whole"].fullmatch(text) else None for text in texts]
        whole = [abs(number) for number in numbers if number is not None]
        # What Spark takes for a decimal: it has no type in common with a double.
        has_decimal = any(number >= 2**63 or number.as_tuple().exponent for number in whole)
        if len(whole) < len(texts):
            return pa.string() if has_decimal else pa.float64()
        if not has_decimal:
            return pa.int32() if max(whole) < 2**31 else pa.int64()
        digits = max(number.adjusted() + 1 for number in whole)
        digits = max(digits, 20 if any(2**31 <= number < 2**63 for number in whole) else 10)
        return pa.decimal128(digits, 0) if digits <= _MOST_DIGITS else pa.string()
    if kinds and kinds <= {"date", "timestamp"}:
        kind = pa.timestamp("us", zone and UTC) if "timestamp" in kinds else pa.date32()
        return kind if parse_times(pa.array(texts))[1].all() else pa.string()
    return pa.string()


_MOST_DIGITS: Final = 38
_WRITTEN: Final = {
    "whole": re.compile(r"[+-]?\d+(?:[eE]\+?\d{1,3})?"),
    "double": re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?[dDfF]?|NaN|[+-]?Infinity"),
    "date": re.compile(r"\d{4}-\d\d-\d\d"),
    "timestamp": re.compile(r"-?\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d)?"),
}
"""The texts of values of a type. Casts would accept others: `0x1f`, `nan`, an hour alone."""
