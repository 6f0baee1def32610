"""CSV records one by one, as Spark's reader reads them: where quotes are, and what a text becomes in each type.

Records that pyarrow's parser reads otherwise than Spark's, and does not refuse, are found before they are parsed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from alignment.watermarks import BoolArray
from streaming_source.data_files.formats.exact_values import (
    KnownTimes,
    UnfitError,
    decimal_of,
    float_of,
    spark_type,
    whole_of,
)
from streaming_source.data_files.formats.lines import line_ends, line_text
from streaming_source.data_files.formats.text_times import WrittenTimes, is_time

_FLOAT: Final = re.compile(
    r"[+-]?(?:(?P<word>NaN|Infinity)|(?P<decimal>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)[fFdD]?"
    r"|(?P<hex>0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?\d+)[fFdD]?)",
    re.ASCII,
)
_INFINITE: Final = {"NaN": "nan", "Inf": "inf", "-Inf": "-inf"}
_NOTHING: Final = "\0"
_NEWLINE: Final = ord("\n")
_BLANKS: Final = "".join(map(chr, range(33)))


@dataclass(frozen=True, slots=True)
class CsvQuoting:
    """The characters of CSV; empty for none."""

    sep: str
    quote: str
    escape: str

    def fields(self, record: str) -> list[str | None]:
        """Return the texts of a record without its line end; None for an empty one without quotes.

        A field that begins with a quote ends with the quote before the next separator. Text between the two is kept
        with its quotes, as it is written, up to the next separator.
        """
        sep, found, at = self.sep, list[str | None](), 0
        while at < len(record):
            if record[at] == sep:
                found.append(None)
            elif self.quote and record[at] == self.quote:
                value, at = self._quoted(record, at + 1)
                found.append(value)
            else:
                end = self._end(record, at)
                found.append(record[at:end])
                at = end
            at += 1
            if at == len(record) and record[at - 1] == sep:
                found.append(None)
        return found

    def _end(self, record: str, at: int) -> int:
        end = record.find(self.sep, at)
        return len(record) if end < 0 else end

    def _quoted(self, record: str, at: int) -> tuple[str, int]:
        """Return a field whose quote was opened before a place, and where it ends."""
        if at == len(record):
            return self.quote, at
        quote, escape = self.quote, self._escape
        found: list[str] = []
        before = _NOTHING
        while at < len(record):
            char = record[at]
            if before == quote and (char <= " " or char == self.sep):
                return self._closed(record, at, "".join(found))
            if char in (quote, escape):
                before, at = self._marked(record, at, before, found)
            elif before == quote:
                end = self._end(record, at)
                return f"{quote}{''.join(found)}{quote}{record[at:end]}", end
            else:
                if before == escape and self.escape:
                    found.append(escape)
                end = min((end for mark in (quote, escape) if (end := record.find(mark, at)) >= 0), default=len(record))
                found.append(record[at:end])
                before, at = record[end : end + 1], end + 1
        return "".join(found), len(record)

    def _marked(self, record: str, at: int, before: str, found: list[str]) -> tuple[str, int]:
        """Add what a quote or an escape in a field means after the character `before`.

        Returns what is the character before for the next one, and where that is.
        """
        quote, escape, char = self.quote, self._escape, record[at]
        # An escape that is the quote does not escape itself.
        if (char == escape == before and escape != quote) or (char == quote and before == escape):
            found.append(char)
            return _NOTHING, at + 1
        if before == escape:
            found.append(before)
        elif char == before == quote:
            found.append(char)
        elif before == quote:
            # An escape after a closing quote.
            found.append(quote)
            at = self._unquoted(record, at, found)
            char = record[at : at + 1]
        return char, at + 1

    def _unquoted(self, record: str, at: int, found: list[str]) -> int:
        """Add the rest of a field from an escape after its closing quote on, and return where it ends."""
        before = record[at]
        while at < len(record) and record[at] != self.sep:
            char = record[at]
            if char in (self.quote, self._escape):
                before, at = self._marked(record, at, before, found)
                continue
            if before == self.quote:
                found.append(before)
            found.append(char)
            before, at = char, at + 1
        return at

    @property
    def _escape(self) -> str:
        return self.escape or _NOTHING

    def _closed(self, record: str, at: int, value: str) -> tuple[str, int]:
        """Return a field whose quote was closed before a place: what follows blanks after it makes it plain text."""
        begin = at
        while at < len(record) and record[at] <= " " and record[at] != self.sep:
            at += 1
        if at == len(record) or record[at] == self.sep:
            return value, at
        end = self._end(record, at)
        text = f"{self.quote}{value}{self.quote}{record[begin:end]}"
        # At the end of a record Spark's parser adds a quote that it has seen at the second place.
        has_more = end == len(record) and record[at : at + 1] != self.quote and record[at + 1 : at + 2] == self.quote
        return text + self.quote * has_more, end


def read_records(
    records: Sequence[bytes],
    names: Sequence[str],
    fields: Sequence[pa.Field],
    quoting: CsvQuoting,
    null: str,
    written: WrittenTimes,
) -> tuple[list[pa.Array], list[str | None]]:
    """Return the columns of some records, and why a record is malformed, None for one that is not.

    Fields that a record lacks are null, and those that it has beside are left out. `null` is what means null, as an
    empty field without quotes does.
    """
    places = {name: place for place, name in enumerate(names)}
    reasons: list[str | None] = []
    rows: list[list[str | None]] = []
    times = KnownTimes(written)
    for record in records:
        row = quoting.fields(line_text(record))
        count = len(row)
        reasons.append(None if count == len(names) else f"Expected {len(names)} columns, got {count}")
        rows.append([None if text == null else text for text in row] + [None] * (len(names) - count))
    for field in fields:
        if is_time(field.type) and field.name in places:
            for row in rows:
                if (text := row[places[field.name]]) is not None:
                    times.expect(text, field.type)
    times.read()
    columns = []
    for field in fields:
        values: list[Any] = [None] * len(rows)
        for number, row in enumerate(rows if field.name in places else ()):
            if (text := row[places[field.name]]) is None:
                continue
            try:
                values[number] = _converted(text, field.type, times)
            except UnfitError as error:
                reasons[number] = reasons[number] or f"{field.name} = {error}"
        columns.append(pa.array(values, field.type))
    return columns, reasons


def _converted(text: str, data_type: pa.DataType, times: KnownTimes) -> Any:
    types: Any = pa.types
    if types.is_string(data_type):
        return text
    if is_time(data_type):
        return times.value(text, data_type)
    if types.is_integer(data_type):
        return whole_of(text, data_type)
    if types.is_floating(data_type):
        if (infinite := _INFINITE.get(text)) is not None:
            return float(infinite)
        text = text.strip(_BLANKS)
        if (found := _FLOAT.fullmatch(text)) is not None:
            if found["hex"]:
                return float_of(float.fromhex(text.rstrip("fFdD")), data_type)
            return float_of(text if found["word"] else text.rstrip("fFdD"), data_type)
    elif types.is_boolean(data_type):
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
    elif types.is_decimal(data_type):
        return decimal_of(text.replace(",", ""), data_type)
    elif types.is_binary(data_type):
        return text.encode()
    raise UnfitError(f"{text!r} is no {spark_type(data_type)}")


_WINDOW: Final = 128 * 1024
"""Bytes that are compared at once: they stay in the processor's cache."""


def unlike_lines(data: bytes, quoting: CsvQuoting, *, has_numbers: bool, has_empty_texts: bool) -> BoolArray | None:
    r"""Return the lines that must be read one by one, `bool[n]`; None for no line.

    These are lines with text between a quote and the next separator, or with an escape. With `has_numbers`, where
    whole numbers and decimals are read, lines with a number beside a blank, or in hexadecimal digits. With
    `has_empty_texts` those with quotes around nothing.
    """
    characters, ends_of = np.frombuffer(data, np.uint8), cache(partial(line_ends, data))
    places = list(_unlike_numbers(characters, data, quoting)) if has_numbers else []
    if quoting.quote and quoting.quote.encode() in data:
        places += _unlike_quotes(characters, data, quoting, ends_of, has_empty_texts=has_empty_texts)
    found = np.concatenate([np.empty(0, np.int64), *places])
    if not found.size:
        return None
    ends = ends_of()
    unlike = np.zeros(len(ends), np.bool_)
    unlike[np.searchsorted(ends, found)] = True
    return unlike


def _unlike_quotes(
    characters: npt.NDArray[np.uint8],
    data: bytes,
    quoting: CsvQuoting,
    ends_of: Callable[[], npt.NDArray[np.int64]],
    *,
    has_empty_texts: bool,
) -> Iterator[npt.NDArray[np.int64]]:
    """Yield places of quotes that neither open nor close a field, and of escapes in lines with quotes."""
    quotes = np.flatnonzero(characters == ord(quoting.quote))
    before, after = characters.take(quotes - 1, mode="clip"), characters.take(quotes + 1, mode="clip")
    before[quotes == 0], after[quotes == len(characters) - 1] = _NEWLINE, _NEWLINE
    opens = (before == ord(quoting.sep)) | (before == _NEWLINE)
    closes = (after == ord(quoting.sep)) | (after == _NEWLINE) | (after == ord("\r"))
    if quoting.escape == quoting.quote:
        opens |= before == ord(quoting.quote)
        closes |= after == ord(quoting.quote)
    has_escapes = quoting.escape not in ("", quoting.quote) and quoting.escape.encode() in data
    # A quoted field that spans lines is found by the number of records.
    if len(quotes) % 2 == 0 and not has_escapes and opens[::2].all() and closes[1::2].all():
        if has_empty_texts:
            yield quotes[::2][quotes[1::2] == quotes[::2] + 1]
        return
    ends = ends_of()
    quotes_until = np.searchsorted(quotes, ends)
    in_line = np.diff(quotes_until, prepend=0)
    is_odd = (np.arange(len(quotes)) - np.repeat(quotes_until - in_line, in_line)) & 1 == 1
    is_last = np.zeros(len(quotes), np.bool_)
    is_last[quotes_until[in_line > 0] - 1] = True
    yield quotes[np.where(is_odd, ~closes, ~opens | is_last)]
    if has_empty_texts:
        yield quotes[:-1][is_odd[1:] & (quotes[1:] == quotes[:-1] + 1)]
    if has_escapes:
        escapes = np.flatnonzero(characters == ord(quoting.escape))
        yield escapes[in_line[np.searchsorted(ends, escapes)] > 0]


def unlike_records(
    records: Sequence[bytes], quoting: CsvQuoting, *, has_numbers: bool, has_empty_texts: bool
) -> BoolArray | None:
    """Return the same of records that may span lines."""
    plain = _plain_pattern(quoting, has_numbers, has_empty_texts)
    unlike = np.array(
        [plain.fullmatch(record) is None or (has_numbers and b"0x" in record.lower()) for record in records], np.bool_
    )
    return unlike if unlike.any() else None


def _unlike_numbers(
    characters: npt.NDArray[np.uint8], data: bytes, quoting: CsvQuoting
) -> Iterator[npt.NDArray[np.int64]]:
    """Yield places of blanks beside a quote, a separator or a line end, and of the prefix of hexadecimal numbers."""
    blanks = [blank for blank in b" \t" if blank in data and chr(blank) != quoting.sep]
    has_prefixes = b"x" in data or b"X" in data
    for begin in range(0, len(data) if blanks or has_prefixes else 0, _WINDOW):
        # One character of the next window too.
        window = characters[begin : begin + _WINDOW + 1]
        if blanks:
            is_mark = window <= ord("\r")
            for mark in (quoting.sep + quoting.quote).encode():
                is_mark |= window == mark
            for blank in blanks:
                is_blank = window == blank
                beside = is_blank[:-1] & is_mark[1:]
                beside |= is_blank[1:] & is_mark[:-1]
                if beside.any():
                    yield np.flatnonzero(beside) + begin
        if has_prefixes:
            # This bit alone distinguishes a small letter from a capital one.
            is_prefix = (window[1:] | 0x20) == ord("x")
            is_prefix &= window[:-1] == ord("0")
            if is_prefix.any():
                yield np.flatnonzero(is_prefix) + begin
    if characters[0] in blanks:
        yield np.zeros(1, np.int64)


@cache
def _plain_pattern(quoting: CsvQuoting, has_numbers: bool, has_empty_texts: bool) -> re.Pattern[bytes]:
    """Return a pattern of a record with its end of line that both parsers read alike."""
    s, q, e = (re.escape(mark) for mark in (quoting.sep, quoting.quote, quoting.escape))
    blank = r" \t" if has_numbers else ""
    field = f"(?:[^{s}{q}\r\n{blank}](?:[^{s}\r\n]*[^{s}\r\n{blank}])?)?"
    if quoting.quote:
        repeat = "+" if has_empty_texts else "*"
        inside = f"(?:[^{q}]|{q}{q}){repeat}" if quoting.escape == quoting.quote else f"[^{q}{e}]{repeat}"
        quoted = f"(?![{q}][{blank}]){q}{inside}(?<![{blank}]){q}" if blank else f"{q}{inside}{q}"
        field = f"(?:{quoted}|{field})"
    return re.compile(f"{field}(?:{s}{field})*(?:\r?\n)?".encode())
