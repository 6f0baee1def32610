"""Formats whose records may be malformed: how malformed records are found and handled."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from alignment.arrow_compute import from_numpy
from alignment.shown import log_of
from alignment.time_texts import UTC
from alignment.watermarks import BoolArray
from streaming_source.api.options import any_text, choice, flag_field, option_field, text
from streaming_source.data_files.file import FileRows
from streaming_source.data_files.formats.base import Chunk
from streaming_source.data_files.formats.lines import LineFile, LineFormat, line_text
from streaming_source.data_files.formats.text_times import (
    TimePattern,
    WrittenTimes,
    are_times,
    inferred,
    is_time,
    may_be_time,
    time_pattern,
)
from streaming_source.exceptions import MalformedDataError, NoDataError, NoSchemaError, OptionError, SchemaError

_log = log_of(__name__)

_MODES: Final = ("PERMISSIVE", "DROPMALFORMED", "FAILFAST")
_SHOWN: Final = 200
_FEW: Final = 16
"""Records that are read one by one once they cannot be read together."""
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
    multi_line: bool = flag_field(
        "multiLine", "csv: quoted fields may hold line ends; json: a file is one object, or an array of them."
    )
    infer_schema: bool = flag_field(
        "inferSchema", "csv, json: take columns and types from the first file, where no schema is given."
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
    def _parsed(
        self, data: bytes, count: int, names: tuple[str, ...], fields: Sequence[pa.Field]
    ) -> tuple[list[pa.Array], BoolArray | None]:
        """Return the columns `fields` of records, and which of these are malformed.

        Where that is not what Spark's reader makes of one of the records an error is raised, and the record is read by
        `_exact`; `_unlike_spark` has the records of which the parser could not tell.

        Raises
        ------
        pa.ArrowInvalid, ValueError
            If one of the records cannot be parsed so, or there are not `count` of them.
        """

    @abstractmethod
    def _exact(
        self, records: Sequence[bytes], names: tuple[str, ...], fields: Sequence[pa.Field]
    ) -> tuple[list[pa.Array], list[str | None]]:
        """Return the columns of records one by one, and why a record is malformed, None for one that is not."""

    def _unlike_spark(self, data: bytes, count: int, fields: Sequence[pa.Field]) -> BoolArray | None:
        """Return the records that `_parsed` would read otherwise than Spark, without an error; None for none."""
        return None

    def _with_line_ends(self, data: bytes) -> bytes:
        return data if self.multi_line else LineFormat._with_line_ends(self, data)

    # ---- LineFormat --------------------------------------------------------------------------------------------------

    def decoded(self, file: LineFile, run: Chunk, schema: pa.Schema) -> tuple[pa.RecordBatch, BoolArray | None]:
        batch, malformed = self._read(file, run, schema)
        if malformed is not None and self._refuses(run, malformed, file.names):
            raise self._failure(file, run, malformed, schema)
        if malformed is not None and self.mode == "PERMISSIVE" and self.corrupt_column not in schema.names:
            self._tell(file, run, malformed, schema)
        return batch, malformed if self.mode == "DROPMALFORMED" else None

    def unread(self, row: FileRows, types: Mapping[str, pa.DataType]) -> tuple[str, str]:
        asked = pa.schema([(name, pa.string()) for name in [*types, self.corrupt_column]])
        written = next(replace(self, mode="PERMISSIVE").read_rows(row, asked)).batch.to_pylist()[0]
        record = written.pop(self.corrupt_column)
        texts = {name: text for name, text in written.items() if text is not None}
        if not texts:
            return "" if record is None else f", which is {_shown(record)}", ""
        what = f", where {', '.join(f'{name} is {_shown(text)}' for name, text in texts.items())}"
        kind = types[next(iter(texts))]
        if not is_time(kind):
            return what, ""
        option = "dateFormat, as in dd.MM.yyyy" if pa.types.is_date(kind) else "timestampFormat, as in dd.MM.yyyy HH:mm"
        return what, f", and option {option}, reads them as they are written"

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

    @property
    def _patterns(self) -> tuple[TimePattern | None, TimePattern | None]:
        """The pattern of timestamps, and the pattern of dates; None for ISO-8601."""
        of_times, of_dates = self.timestamp_format, self.date_format
        return (
            None if of_times is None else time_pattern(of_times),
            None if of_dates is None else time_pattern(of_dates, "dateFormat"),
        )

    @property
    def _written(self) -> WrittenTimes:
        return WrittenTimes(*self._patterns, self.time_zone or UTC)

    @property
    def _zone_in_identity(self) -> str:
        """Return the zone as a part of `identity`: it decides the event times of zoneless times."""
        return "" if self.time_zone in (None, UTC) else f":{self.time_zone}"

    def _read(self, file: LineFile, run: Chunk, schema: pa.Schema) -> tuple[pa.RecordBatch, BoolArray | None]:
        """Return all records, and which of them are malformed; None for none."""
        fields = self._in_files(schema)
        arrays, malformed = self._columns(run.content, run.rows, file.names, fields)
        columns = dict(zip((field.name for field in fields), arrays, strict=True))
        found = malformed if malformed is not None and malformed.any() else None
        if self.corrupt_column in schema.names:
            columns[self.corrupt_column] = self._texts(run, found)
        if self.rescued_column in schema.names:
            columns[self.rescued_column] = self._rescued(file, run, columns)
        if not columns:
            return pa.RecordBatch.from_arrays([pa.nulls(run.rows)], ["nothing"]).select([]), found
        return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema), found

    def _columns(
        self,
        data: bytes,
        count: int,
        names: tuple[str, ...],
        fields: Sequence[pa.Field],
        records: Sequence[bytes] | None = None,
    ) -> tuple[list[pa.Array], BoolArray | None]:
        """Return the columns of records, together if that may be, and which are malformed; None for none.

        `records` are the single ones, where they are not those in `data` by the rules of the format.
        """
        unlike = self._unlike_spark(data, count, fields)
        read = self._attempt(data, count, names, fields) if unlike is None else None
        if read is not None:
            return read
        return self._salvaged(self._split(data) if records is None else records, names, fields, unlike)

    def _attempt(
        self, data: bytes, count: int, names: tuple[str, ...], fields: Sequence[pa.Field]
    ) -> tuple[list[pa.Array], BoolArray | None] | None:
        try:
            return self._parsed(data, count, names, fields)
        except (pa.ArrowInvalid, ValueError):
            return None

    def _salvaged(
        self, records: Sequence[bytes], names: tuple[str, ...], fields: Sequence[pa.Field], unlike: BoolArray | None
    ) -> tuple[list[pa.Array], BoolArray]:
        """Return the columns of records some of which cannot be parsed together, and which of them are malformed.

        Records are halved until those that can be parsed are; the others, and those that are `unlike`, are read one by
        one. If `m` of `n` records cannot be parsed, that takes O(m log n) parses.
        """
        numbers = np.arange(len(records))
        exact = [] if unlike is None else [numbers[unlike]]
        like = numbers if unlike is None else numbers[~unlike]
        rest = [like] if len(like) else []
        parts: list[tuple[npt.NDArray[np.int64], list[pa.Array], BoolArray | None]] = []
        while rest:
            part = rest.pop()
            data = b"".join(records[number] for number in part.tolist())
            is_like = self._unlike_spark(data, len(part), fields) is None
            read = self._attempt(data, len(part), names, fields) if is_like else None
            if read is not None:
                parts.append((part, *read))
            elif len(part) <= _FEW:
                exact.append(part)
            else:
                rest += [part[len(part) // 2 :], part[: len(part) // 2]]
        one_by_one = np.concatenate([np.empty(0, np.int64), *exact])
        if len(one_by_one):
            arrays, reasons = self._exact([records[number] for number in one_by_one.tolist()], names, fields)
            parts.append((one_by_one, arrays, np.array([reason is not None for reason in reasons])))
        malformed = np.zeros(len(records), np.bool_)
        for part, _, bad in parts:
            if bad is not None:
                malformed[part] = bad
        order = from_numpy(np.argsort(np.concatenate([part for part, _, _ in parts])))
        return [
            pa.concat_arrays([arrays[i] for _, arrays, _ in parts]).take(order) for i in range(len(fields))
        ], malformed

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
            texts[number] = line_text(records[number])
        return pa.array(texts, pa.string())

    def _refuses(self, run: Chunk, malformed: BoolArray, names: tuple[str, ...]) -> bool:
        """Return whether these malformed records fail the query.

        A header that no option declares always fails it: it must not become a record of nulls.
        """
        if self.mode == "PERMISSIVE" and run.first == 0 and malformed[0]:
            return self._is_of_names(line_text(self._split(run.content)[0]), names)
        return self.mode == "FAILFAST"

    def _first(self, file: LineFile, run: Chunk, malformed: BoolArray, schema: pa.Schema) -> tuple[int, str, str]:
        """Return the number of the first malformed record, why it is, and its text."""
        number = int(np.argmax(malformed))
        record = self._split(run.content)[number]
        _, reasons = self._exact([record], file.names, self._in_files(schema))
        return number, reasons[0] or "it is none of this format", line_text(record)

    def _tell(self, file: LineFile, run: Chunk, malformed: BoolArray, schema: pa.Schema) -> None:
        """Log the first malformed record of an open file that is kept, null where it cannot be read."""
        if not file.has_told:
            file.has_told = True
            number, reason, _ = self._first(file, run, malformed, schema)
            _log.warning(
                "%s: record %d is malformed: %s. It is kept, null where it cannot be read, and so are others; a column "
                "%s takes their texts (mode = PERMISSIVE)",
                *(file.path, run.first + number, reason, self.corrupt_column),
            )

    def _failure(self, file: LineFile, run: Chunk, malformed: BoolArray, schema: pa.Schema) -> MalformedDataError:
        number, reason, text = self._first(file, run, malformed, schema)
        is_of_names = run.first + number == 0 and self._is_of_names(text, file.names)
        fix = "It is a line of names; set option header = true" if is_of_names else _KEEP_OR_LEAVE_OUT
        return MalformedDataError(
            f"{file.path}, record {run.first + number} is malformed: {reason}: {_shown(text)}. {fix}"
        )

    def _check_first(self, source: LineFile, chunk: Chunk, columns: pa.Schema) -> None:
        # It is none where the first line is empty or a comment.
        for record in self._split(chunk.content[: source.first_end(chunk.content)]):
            if self._is_of_names(line_text(record), source.names):
                self.decoded(source, chunk._replace(rows=1, content=record), columns)

    def _is_of_names(self, text: str, names: Sequence[str]) -> bool:
        """Return whether the first line of a file is a header that no option declares."""
        return False


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")
