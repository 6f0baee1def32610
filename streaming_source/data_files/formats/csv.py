"""CSV."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa
from pyarrow import csv

from alignment import arrow_compute as pc
from alignment.arrow_compute import to_numpy
from alignment.watermarks import BoolArray
from streaming_source.api.options import any_text, flag_field, option_field
from streaming_source.data_files.evolution import check_distinct, found_as, own_columns
from streaming_source.data_files.faults import malformed_as
from streaming_source.data_files.file import StoredFile
from streaming_source.data_files.formats.csv_values import CsvQuoting, read_records, unlike_lines, unlike_records
from streaming_source.data_files.formats.lines import INFERRED_BLOCKS, LineFile, line_text
from streaming_source.data_files.formats.records import RecordFormat
from streaming_source.data_files.formats.text_times import is_time
from streaming_source.exceptions import OptionError, SchemaError

_BLANKS: Final = bytes(range(33))

_WINDOW: Final = 128 * 1024
"""Bytes in which lines are counted at once: what is compared stays in the processor's cache."""


def character(name: str, value: str) -> str:
    r"""Return the character of an option, in which `\t` is a tab; `CsvFormat` checks it."""
    return "\t" if value == r"\t" else value


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvFormat(RecordFormat):
    r"""CSV as Spark reads it.

    Notes
    -----
    Blank lines are no records. Within quotes a quote follows the escape; an escape that is the quote doubles it, as in
    RFC 4180. With a header, columns are found by the names in it. Without one, the columns of a file are `names`, or
    those of the schema, in their order; `names` that are given count with a header, too.
    """

    header: bool = flag_field("header", "csv: the first record of each file names its columns.")
    sep: str = option_field(",", "sep", character, "csv: the character between fields.", "`,`")
    quote: str = option_field('"', "quote", character, "csv: the character around fields; empty for none.", '`"`')
    escape: str = option_field(
        "\\",
        "escape",
        character,
        "csv: the character before a quote within quotes; the quote itself where that is doubled, as in RFC 4180.",
        r"`\`",
    )
    null_value: str = option_field(
        "", "nullValue", any_text, "csv: text that means null, as an empty field without quotes does.", "none"
    )
    comment: str = option_field(
        "", "comment", character, "csv: lines that begin with this character are skipped.", "none"
    )
    names: tuple[str, ...] | None = None

    name: ClassVar[str] = "csv"

    def __post_init__(self) -> None:
        RecordFormat.__post_init__(self)  # slots make a new class: `super()` would refer to the old one
        for option, may_be_empty in (("sep", False), ("quote", True), ("escape", True), ("comment", True)):
            value = getattr(self, option)
            fits = (not value and may_be_empty) or (len(value) == 1 and value.isascii() and value not in "\r\n")
            if not fits:
                raise OptionError(f"{option} = {value!r}: must be a single ASCII character that ends no line")
        escape = "" if self.escape == self.quote else self.escape
        given = [value for value in (self.sep, self.quote, escape, self.comment) if value]
        if len({*given}) < len(given):
            raise OptionError(f"sep, quote, escape and comment = {given}: must differ from each other")

    @property
    def identity(self) -> str:
        # Quotes and escapes decide where a record ends only if it may span lines.
        escape = "" if self.escape == self.quote else self.escape
        whole = f":multiLine{[self.sep, self.quote, escape]}" if self.multi_line else ""
        comment = f":comment {self.comment}" if self.comment else ""
        return f"{self.name}{whole}{':header' if self.header else ''}{comment}{self._zone_in_identity}"

    def with_columns(self, schema: pa.Schema) -> CsvFormat:
        if self.header or self.names is not None:
            return self
        return replace(self, names=tuple(field.name for field in self._in_files(schema)))

    def schema_of(self, file: StoredFile) -> pa.Schema:
        if not self.infer_schema:
            raise self._needs_schema()
        with self._opened(file, pa.schema([])) as lines:
            names = lines.names
            data = next(lines.runs(INFERRED_BLOCKS), b"")
        if not names:
            raise self._nothing_to_infer_from(file.path)
        with malformed_as(f"{file.path}: its columns cannot be inferred, name them with option dataSchema"):
            if self._has_comments(data):
                data = b"".join(self._split(data))
            if not self.count(data):
                return pa.schema([(name, pa.string()) for name in names])

            found = self._inferred_of(data, names)
            # If the first line has the names of the columns, all columns are inferred as text.
            is_text = not self.header and all(pa.types.is_string(kind) for kind in found.types)
            if is_text and self._inferred_of(data, names, skip_first=True) != found:
                raise SchemaError(
                    f"{file.path}: its first line alone is text in every column, as a line of names is; set option "
                    "header = true, or name the columns with option dataSchema"
                )
            return found

    def _inferred_of(self, data: bytes, names: tuple[str, ...], *, skip_first: bool = False) -> pa.Schema:
        def read(columns: pa.Schema | None) -> pa.Table:
            convert = csv.ConvertOptions(**self._nulls())
            if columns is not None:
                convert.column_types, convert.include_columns = columns, columns.names
            return self._table(data, names, convert, skip_malformed=True, skip_first=skip_first)

        return self._inferred(read(None).schema, read)

    # ---- LineFormat --------------------------------------------------------------------------------------------------

    def begin(self, file: LineFile, schema: pa.Schema) -> tuple[str, ...]:
        wanted = [field.name for field in self._in_files(schema)]
        if self.header:
            names, _ = self._names_in_first(file)
            if self.names is not None:
                others = (f"_c{number}" for number in range(len(self.names), len(names)))
                names = (*self.names[: len(names)], *others)
            # A file without a header is empty: any names will do.
            known = {stored: name for name, stored in found_as(file.path, names, wanted, file.case_sensitive).items()}
            names = file.columns = tuple(known.get(name, name) for name in names) or tuple(wanted)
        elif self.names is not None:
            names = self.names
        elif self.infer_schema:
            first, read = self._names_in_first(file)
            names = tuple(f"_c{number}" for number in range(len(first)))
            file.put_back(read)
        else:
            names = tuple(wanted)
        check_distinct(file.path, [pa.field(name, pa.null()) for name in names], case_sensitive=True)
        if wanted and names and not own_columns(names, wanted):
            raise SchemaError(
                f"{file.path} has no column {wanted[0]!r} nor any other that is read; it has {', '.join(names)}. "
                "Look at options header and sep"
            )
        return names

    def _is_of_names(self, text: str, names: Sequence[str]) -> bool:
        fields = {field.strip(self.quote or None).lower() for field in text.split(self.sep)}
        return not self.header and not fields.isdisjoint(name.lower() for name in names)

    def count(self, data: bytes) -> int:
        if self.multi_line or not data or self._has_comments(data):
            return len(self._split(data))
        characters = np.frombuffer(data, np.uint8)
        count, follows_end = int(not data.endswith(b"\n")), True
        for begin in range(0, len(data), _WINDOW):
            window = characters[begin : begin + _WINDOW]
            ends = window == ord("\n")
            # The first character of a blank line is its line end, or a blank.
            begins = window <= ord(" ")
            if (begins[0] and follows_end) or (begins[1:] & ends[:-1]).any():
                return len(self._split(data))
            count += int(np.count_nonzero(ends))
            follows_end = bool(ends[-1])
        return count

    def end_of_records(self, data: bytes) -> int:
        if not self.multi_line:
            return data.rfind(b"\n") + 1
        return self._ends(data)[-1]

    def _split(self, data: bytes) -> list[bytes]:
        if not self.multi_line:
            records = [line + b"\n" for line in data.removesuffix(b"\n").split(b"\n")]
        else:
            records = [data[begin:end] for begin, end in pairwise([*self._ends(data), len(data)])]
        return [record for record in records if self._is_record(record)]

    def _is_record(self, line: bytes) -> bool:
        blanks = b"\r\n" if self.multi_line else _BLANKS
        return bool(line.strip(blanks)) and not (self.comment and line.startswith(self.comment.encode()))

    def _has_comments(self, data: bytes) -> bool:
        return bool(self.comment) and self.comment.encode() in data

    def _fields(self, record: bytes, names: tuple[str, ...]) -> dict[str, str | None]:
        texts = self._quoting.fields(line_text(record))
        return dict(zip(names, texts, strict=False))

    def _exact(
        self, records: Sequence[bytes], names: tuple[str, ...], fields: Sequence[pa.Field]
    ) -> tuple[list[pa.Array], list[str | None]]:
        return read_records(records, names, fields, self._quoting, self.null_value, self._written)

    def _parsed(
        self, data: bytes, count: int, names: tuple[str, ...], fields: Sequence[pa.Field]
    ) -> tuple[list[pa.Array], BoolArray | None]:
        if not data.isascii():
            data = data.decode("utf-8", "replace").encode()
        if self._has_comments(data):
            data = b"".join(self._split(data))
        types = {field.name: pa.string() if is_time(field.type) else field.type for field in fields}
        # Without fields one column is parsed to check the records: as bytes, which accept any field.
        convert = csv.ConvertOptions(column_types=types or {names[0]: pa.binary()}, **self._nulls())
        convert.include_columns = list(types) or [names[0]]
        convert.include_missing_columns = True
        may_span = bool(self.quote) and self.quote.encode() in data
        if may_span:
            # pyarrow ends an open quote at the end of the data. With one more record at the end, an open quote changes
            # the number of records.
            last = f"{self.sep * (len(names) - 1)}\n".encode()
            data += last if data.endswith(b"\n") else b"\n" + last
            if len(names) == 1:
                # That record is an empty line, so other empty lines are removed.
                data = b"".join(self._split(data)) + b"\n"
        rows = count + may_span
        table = self._table(data, names, convert, empty_lines=may_span and len(names) == 1)
        if table.num_rows != rows:
            raise ValueError(
                f"{rows} records are read as {table.num_rows}: a quote or line does not end where it should"
            )
        batch = table.combine_chunks().to_batches()[0].slice(0, count)
        columns, malformed = [], np.zeros(count, np.bool_)
        for index, field in enumerate(fields):
            column = batch.column(index)
            if is_time(field.type):
                raw, column = column, self._written.read(column, field.type)
                if column.null_count > raw.null_count:
                    malformed |= to_numpy(pc.and_(raw.is_valid(), column.is_null()))
            elif pa.types.is_floating(field.type) and not pc.all(pc.is_finite(column)).as_py():
                raise ValueError("a number that is none, or infinite, may be written otherwise than in Spark")
            columns.append(column)
        return columns, malformed

    def _unlike_spark(self, data: bytes, count: int, fields: Sequence[pa.Field]) -> BoolArray | None:
        rules = {
            "has_numbers": any(pa.types.is_integer(field.type) or pa.types.is_decimal(field.type) for field in fields),
            # Empty text is null, unless another text means null.
            "has_empty_texts": bool(self.null_value),
        }
        if not self.multi_line and not self._has_comments(data):
            lines = unlike_lines(data, self._quoting, **rules)
            if lines is None or len(lines) == count:
                return lines
        return unlike_records(self._split(data), self._quoting, **rules)

    @property
    def _quoting(self) -> CsvQuoting:
        return CsvQuoting(self.sep, self.quote, self.escape)

    def _names_in_first(self, file: LineFile) -> tuple[tuple[str, ...], bytes]:
        """Return the fields of the next record as names, and the bytes that were read.

        No names at the end of the file.
        """
        read = b""
        while record := file.take_record():
            read += record
            if self._is_record(record):
                found = self._quoting.fields(line_text(record))
                return tuple(name or f"_c{number}" for number, name in enumerate(found)), read
        return (), read

    def _table(
        self,
        data: bytes,
        names: tuple[str, ...],
        convert: csv.ConvertOptions,
        *,
        skip_malformed: bool = False,
        skip_first: bool = False,
        empty_lines: bool = False,
    ) -> pa.Table:
        # One block: a record that spans lines must not be cut.
        read = csv.ReadOptions(use_threads=False, block_size=len(data) + 1, column_names=list(names))
        read.skip_rows_after_names = int(skip_first)
        parse = self._parse_options()
        parse.ignore_empty_lines = not empty_lines
        if skip_malformed:
            parse.invalid_row_handler = lambda _: "skip"
        return csv.read_csv(pa.BufferReader(data), read, parse, convert)

    def _parse_options(self) -> csv.ParseOptions:
        return csv.ParseOptions(
            delimiter=self.sep,
            quote_char=self.quote or False,
            double_quote=bool(self.quote),
            escape_char=False,
            newlines_in_values=True,
        )

    def _nulls(self) -> dict[str, object]:
        nulls = ["", self.null_value] if self.null_value else [""]
        return {
            "null_values": nulls,
            "strings_can_be_null": True,
            "quoted_strings_can_be_null": True,
            "true_values": ["true", "True", "TRUE"],
            "false_values": ["false", "False", "FALSE"],
        }

    def _ends(self, data: bytes) -> list[int]:
        """Return 0, followed by the end of each whole record."""
        match = _record_pattern(self.sep, self.quote, self.escape, self.comment).match
        ends = [0]
        while record := match(data, ends[-1]):
            ends.append(record.end())
        return ends


@cache
def _record_pattern(sep: str, quote: str, escape: str, comment: str) -> re.Pattern[bytes]:
    """Return a pattern of one record with its end of line, or of a comment. It matches each byte once.

    A quoted field may contain ends of lines.
    """
    s, q, e = re.escape(sep), re.escape(quote), re.escape(escape)
    field = f"[^{s}\n]*+"
    if quote:
        # The bytes may end between an escape and what it escapes.
        escaped = f"|{q}{q}" if escape == quote else f"|{e}(?:.|\\Z)" if escape else ""
        closing = q if escape == quote else f"{q}++"
        field = f"(?:{q}(?:[^{q}{e}]++{escaped})*+(?:{closing}|\\Z))?+{field}"
    line = f"(?:{re.escape(comment)}[^\n]*+|{field}(?:{s}{field})*+)" if comment else f"{field}(?:{s}{field})*+"
    return re.compile(f"{line}\n".encode(), re.DOTALL)
