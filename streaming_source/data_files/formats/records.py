"""Formats whose records may be malformed: how malformed records are found and handled."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from alignment.arrow_times import UTC
from streaming_source.api.options import any_text, boolean, choice, option_field, text
from streaming_source.data_files.formats.base import BoolArray, Chunk
from streaming_source.data_files.formats.lines import LineFile, LineFormat
from streaming_source.data_files.formats.text_times import (
    TimePattern,
    are_times,
    inferred,
    may_be_time,
    raw_field,
    time_pattern,
    typed,
)
from streaming_source.exceptions import MalformedDataError, NoDataError, NoSchemaError, OptionError, SchemaError

__all__ = ["RecordFormat"]

_MODES: Final = ("PERMISSIVE", "DROPMALFORMED", "FAILFAST")
_SHOWN: Final = 200
_KEEP_OR_LEAVE_OUT: Final = (
    "Option mode = PERMISSIVE keeps such records, null where they cannot be read, DROPMALFORMED leaves them out"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordFormat(LineFormat):
    """CSV and JSON.

    Notes
    -----
    A malformed record is a row with a number in every mode. A field that cannot be read in its column's type is null,
    and the other fields of the record are kept: so a record has the same event time whichever columns are read. A
    record that cannot be parsed is null in all columns. `time_zone` None is the zone of the session.
    """

    mode: str = option_field(
        "PERMISSIVE",
        "mode",
        choice(*_MODES),
        "csv, json: what happens to a malformed record. `PERMISSIVE` keeps it, null where it cannot be read; "
        "`DROPMALFORMED` leaves it out; `FAILFAST` fails the query.",
    )
    corrupt_column: str = option_field(
        "_corrupt_record",
        "columnNameOfCorruptRecord",
        text,
        "csv, json: the column of the schema that takes the text of malformed records.",
    )
    rescued_column: str | None = option_field(
        None,
        "rescuedDataColumn",
        text,
        "csv, json: add a column of this name, with the fields that no column reads or whose type is another, and "
        "`_file_path`, as JSON text.",
    )
    multi_line: bool = option_field(
        False,
        "multiLine",
        boolean,
        "csv: quoted fields may hold line ends; json: a file is one object, or an array of them.",
    )
    infer_schema: bool = option_field(
        False,
        "inferSchema",
        boolean,
        "csv, json: take columns and types from the first file, where no schema is given.",
    )
    timestamp_format: str | None = option_field(
        None,
        "timestampFormat",
        any_text,
        "csv, json: how columns of timestamps are written, in Java's letters, as in `dd.MM.yyyy HH:mm[:ss]`.",
        "ISO-8601",
    )
    date_format: str | None = option_field(
        None, "dateFormat", any_text, "csv, json: how dates are written, in the same letters.", "ISO-8601"
    )
    time_zone: str | None = None

    def __post_init__(self) -> None:
        LineFormat.__post_init__(self)  # slots make a new class: `super()` would refer to the old one
        if self.mode not in _MODES:
            raise OptionError(f"mode = {self.mode!r}: must be one of {', '.join(_MODES)}")
        _ = self._patterns  # parsed now, so that a wrong pattern is refused before the first record

    @property
    def identity(self) -> str:
        return f"{self.name}{':multiLine' if self.multi_line else ''}{self._zone_in_identity}"

    def in_zone(self, zone: str) -> RecordFormat:
        return self if self.time_zone is not None else replace(self, time_zone=zone)

    @property
    def added_columns(self) -> tuple[pa.Field, ...]:
        return () if self.rescued_column is None else (pa.field(self.rescued_column, pa.string()),)

    # ---- for formats to implement ------------------------------------------------------------------------------------

    @abstractmethod
    def _fields(self, record: bytes, names: tuple[str, ...]) -> dict[str, Any]:
        """Return the values of a record by name; raises a `ValueError` if it cannot be parsed."""

    @abstractmethod
    def _split(self, data: bytes) -> list[bytes]:
        """Whole records one by one, each with its end of line."""

    @abstractmethod
    def _parsed(self, data: bytes, count: int, names: tuple[str, ...], fields: Sequence[pa.Field]) -> pa.RecordBatch:
        """The columns `fields` of records, or any batch of as many rows if there are none.

        Raises
        ------
        pa.ArrowInvalid, ValueError
            If one of the records cannot be parsed so, or there are not `count` of them.
        """

    # ---- LineFormat --------------------------------------------------------------------------------------------------

    def decoded(self, file: LineFile, run: Chunk, schema: pa.Schema) -> tuple[pa.RecordBatch, BoolArray | None]:
        batch, malformed = self._read(file, run, schema)
        if malformed is not None and self._refuses(run, malformed, file.names):
            raise self._failure(file, run, malformed, schema)
        return batch, malformed if self.mode == "DROPMALFORMED" else None

    # ---- for formats -------------------------------------------------------------------------------------------------

    def _needs_schema(self) -> NoSchemaError:
        return NoSchemaError(
            f"fileFormat = {self.name}: its files do not have the types of their columns. Name them with option "
            "dataSchema, as in t timestamp, n bigint, or take them from the first file with inferSchema = true"
        )

    def _nothing_to_infer_from(self, path: str) -> NoDataError:
        return NoDataError(
            f"{path} has no record yet whose columns could be inferred; name them with option dataSchema"
        )

    def _inferred(self, found: pa.Schema, read: Callable[[pa.Schema], pa.Table]) -> pa.Schema:
        """Return the columns in the types to read, in place of those that pyarrow inferred.

        Parameters
        ----------
        read
            Reads columns of the given types from the records from which they were inferred.
        """
        pattern, _ = self._patterns
        if pattern is None:
            return pa.schema([(field.name, inferred(field.type)) for field in found])
        texts = pa.schema([(field.name, pa.string()) for field in found if may_be_time(field.type)])
        types = {field.name: inferred(field.type) for field in found}
        if len(texts):
            table = read(texts).combine_chunks()
            for name in texts.names:
                is_time = are_times(pa.concat_arrays([pa.nulls(0, pa.string()), *table[name].chunks]), pattern)
                types[name] = pa.timestamp("us", "UTC") if is_time else pa.string()
        return pa.schema(list(types.items()))

    def _in_files(self, schema: pa.Schema) -> list[pa.Field]:
        """Return the columns that are in the files, without those that the format adds."""
        index = schema.get_field_index(self.corrupt_column)
        if index >= 0 and schema.field(index).type != pa.string():
            raise SchemaError(
                f"column {self.corrupt_column!r} is {schema.field(index).type}: it takes the text of malformed records "
                "and must be string; name another one with columnNameOfCorruptRecord"
            )
        return [field for field in schema if field.name not in (self.corrupt_column, self.rescued_column)]

    # ---- inside ------------------------------------------------------------------------------------------------------

    @property
    def _patterns(self) -> tuple[TimePattern | None, TimePattern | None]:
        """The pattern of timestamps, and the pattern of dates; None for ISO-8601."""
        of_times, of_dates = self.timestamp_format, self.date_format
        return (
            None if of_times is None else time_pattern(of_times),
            None if of_dates is None else time_pattern(of_dates, "dateFormat"),
        )

    @property
    def _zone_in_identity(self) -> str:
        """Return the zone as a part of `identity`: it decides the event times of zoneless times."""
        return "" if self.time_zone in (None, UTC) else f":{self.time_zone}"

    def _read(self, file: LineFile, run: Chunk, schema: pa.Schema) -> tuple[pa.RecordBatch, BoolArray | None]:
        """Return all records, and which of them are malformed; None for none."""
        fields = self._in_files(schema)
        raw = [raw_field(field) for field in fields]
        columns = {}
        malformed = np.zeros(run.rows, np.bool_)
        batch = self._attempt(run.content, run.rows, file.names, raw)
        if batch is None:
            batch, malformed = self._salvaged(run, file.names, raw)
        for index, field in enumerate(fields):
            pattern = self._patterns[pa.types.is_date(field.type)]
            columns[field.name], unreadable = typed(batch.column(index), field.type, pattern, self.time_zone or UTC)
            if unreadable is not None:
                malformed |= unreadable
        found = malformed if malformed.any() else None
        if self.corrupt_column in schema.names:
            columns[self.corrupt_column] = self._texts(run, found)
        if self.rescued_column in schema.names:
            columns[self.rescued_column] = self._rescued(file, run, columns)
        if not columns:
            return batch.select([]), found
        return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema), found

    def _attempt(
        self, data: bytes, count: int, names: tuple[str, ...], fields: Sequence[pa.Field]
    ) -> pa.RecordBatch | None:
        try:
            return self._parsed(data, count, names, fields)
        except (pa.ArrowInvalid, ValueError):
            return None

    def _salvaged(
        self, run: Chunk, names: tuple[str, ...], fields: Sequence[pa.Field]
    ) -> tuple[pa.RecordBatch, BoolArray]:
        """Return what can be read of records some of which are malformed, and which of them are malformed."""
        records = self._split(run.content)

        def parse(chosen: Sequence[bytes], columns: Sequence[pa.Field]) -> pa.RecordBatch | None:
            return self._attempt(b"".join(chosen), len(chosen), names, columns)

        whole = np.ones(len(records), np.bool_)
        _, broken = _halved(records, lambda chosen: parse(chosen, ()))
        whole[broken] = False
        rest = [record for record, is_whole in zip(records, whole.tolist(), strict=True) if is_whole]
        rows = pa.array(np.cumsum(whole) - 1, pa.int64(), mask=~whole)
        malformed = ~whole
        columns = []
        for field in fields:
            parts, unreadable = _halved(rest, lambda chosen, column=field: parse(chosen, [column]))  # type: ignore[misc]
            read = [pa.nulls(1, field.type) if part is None else part.column(0) for part in parts]
            columns.append(pa.concat_arrays([pa.nulls(0, field.type), *read]).take(rows))
            malformed[np.flatnonzero(whole)[unreadable]] = True
        if not columns:
            return pa.RecordBatch.from_arrays([pa.nulls(len(records))], ["nothing"]), malformed
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields)), malformed

    def _rescued(self, file: LineFile, run: Chunk, columns: Mapping[str, pa.Array]) -> pa.Array:
        texts: list[str | None] = []
        for number, record in enumerate(self._split(run.content)):
            try:
                fields = self._fields(record, file.names)
            except ValueError:
                fields = {}
            lost = {
                name: value
                for name, value in fields.items()
                if value is not None and (name not in columns or not columns[name][number].is_valid)
            }
            texts.append(json.dumps({**lost, "_file_path": file.path}, ensure_ascii=False) if lost else None)
        return pa.array(texts, pa.string())

    def _texts(self, run: Chunk, malformed: BoolArray | None) -> pa.Array:
        if malformed is None:
            return pa.nulls(run.rows, pa.string())
        records = self._split(run.content)
        texts: list[str | None] = [None] * run.rows
        for number in np.flatnonzero(malformed).tolist():
            texts[number] = _text(records[number])
        return pa.array(texts, pa.string())

    def _refuses(self, run: Chunk, malformed: BoolArray, names: tuple[str, ...]) -> bool:
        """Return whether these malformed records fail the query.

        A header that no option declares always fails it: it must not become a record of nulls.
        """
        if self.mode == "PERMISSIVE" and run.first == 0 and malformed[0]:
            return self._is_of_names(_text(self._split(run.content)[0]), names)
        return self.mode == "FAILFAST"

    def _failure(self, file: LineFile, run: Chunk, malformed: BoolArray, schema: pa.Schema) -> MalformedDataError:
        number = int(np.argmax(malformed))
        record = self._split(run.content)[number]
        formats = {"timestampFormat": self.timestamp_format, "dateFormat": self.date_format}
        options = " and ".join(f"{name} = {value}" for name, value in formats.items() if value is not None)
        reason = f"a time in it is not {f'of the form {options}' if options else 'ISO-8601'}, or out of range"
        try:
            self._parsed(record, 1, file.names, [raw_field(field) for field in self._in_files(schema)])
        except (pa.ArrowInvalid, ValueError) as error:
            reason = str(error)
        text = _text(record)
        shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
        is_of_names = run.first + number == 0 and self._is_of_names(text, file.names)
        fix = "It is a line of names; set option header = true" if is_of_names else _KEEP_OR_LEAVE_OUT
        return MalformedDataError(f"{file.path}, record {run.first + number} is malformed: {reason}: {shown!r}. {fix}")

    def _check_first(self, source: LineFile, chunk: Chunk, columns: pa.Schema) -> None:
        # It is none where the first line is empty or a comment.
        for record in self._split(chunk.content[: source.first_end(chunk.content)]):
            if self._is_of_names(_text(record), source.names):
                self.decoded(source, chunk._replace(rows=1, content=record), columns)

    def _is_of_names(self, text: str, names: Sequence[str]) -> bool:
        """Return whether the first line of a file is a header that no option declares."""
        return False


def _text(record: bytes) -> str:
    return record.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8", "replace")


def _halved(
    records: Sequence[bytes], parse: Callable[[Sequence[bytes]], pa.RecordBatch | None]
) -> tuple[list[pa.RecordBatch | None], list[int]]:
    """Parse records together if all of them can be parsed, else each half by itself.

    Returns the parsed parts, with None for a record that cannot be parsed, and the numbers of such records. Takes
    O(m log n) parses if `m` of `n` records cannot be parsed.
    """
    parts: list[pa.RecordBatch | None] = []
    unreadable: list[int] = []
    rest = [(0, len(records))] if records else []
    while rest:
        begin, end = rest.pop()
        part = parse(records[begin:end])
        if part is None and end - begin > 1:
            middle = (begin + end) // 2
            rest += [(middle, end), (begin, middle)]
            continue
        if part is None:
            unreadable.append(begin)
        parts.append(part)
    return parts, unreadable
