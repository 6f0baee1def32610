"""CSV records that pyarrow's parser reads otherwise than Spark's, and does not refuse: found before they are parsed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt

from alignment.watermarks import BoolArray
from streaming_source.data_files.formats.csv_values import CsvQuoting
from streaming_source.data_files.formats.lines import line_ends

_WINDOW: Final = 128 * 1024
"""Bytes that are compared at once: they stay in the processor's cache."""

_FOUND: Final = 1_000
"""Letters that are looked at one by one."""


def unlike_lines(data: bytes, quoting: CsvQuoting, *, has_numbers: bool, has_empty_texts: bool) -> BoolArray | None:
    r"""Return the lines that must be read one by one, `bool[n]`; None for no line.

    These are lines with text between a quote and the next separator, or with an escape. With `has_numbers`, where
    whole numbers and decimals are read, lines with a number beside a blank, or in hexadecimal digits. With
    `has_empty_texts` those with quotes around nothing.
    """
    places: list[npt.NDArray[np.int64]] = []
    characters = np.frombuffer(data, np.uint8)
    has_quotes = bool(quoting.quote) and quoting.quote.encode() in data
    if has_numbers:
        marks = [ord(quoting.sep)] + [ord(quoting.quote)] * has_quotes
        if b" " in data or (b"\t" in data and quoting.sep != "\t"):
            places += _beside_blanks(characters, marks)
        places += [_hexadecimal(data, letter) for letter in (b"0x", b"0X")]
    ends: npt.NDArray[np.int64] | None = None
    if has_quotes:
        quotes = np.flatnonzero(characters == ord(quoting.quote))
        before = np.where(quotes > 0, characters[quotes - 1], ord("\n"))
        after = np.where(quotes + 1 < len(data), characters[np.minimum(quotes + 1, len(data) - 1)], ord("\n"))
        opens = (before == ord(quoting.sep)) | (before == ord("\n"))
        closes = (after == ord(quoting.sep)) | (after == ord("\n")) | (after == ord("\r"))
        if quoting.escape == quoting.quote:
            opens |= before == ord(quoting.quote)
            closes |= after == ord(quoting.quote)
        ends = line_ends(data)
        of_line = np.searchsorted(ends, quotes)
        is_odd = (np.arange(len(quotes)) - np.searchsorted(of_line, of_line)) % 2 == 1
        is_last = np.append(of_line[1:] != of_line[:-1], True)
        places.append(quotes[np.where(is_odd, ~closes, ~opens | is_last)])
        if has_empty_texts:
            places.append(quotes[:-1][is_odd[1:] & (quotes[1:] == quotes[:-1] + 1)])
        if quoting.escape not in ("", quoting.quote) and quoting.escape.encode() in data:
            escapes = np.flatnonzero(characters == ord(quoting.escape))
            places.append(escapes[np.isin(np.searchsorted(ends, escapes), of_line)])
    found = np.concatenate(places) if places else np.empty(0, np.int64)
    if not found.size:
        return None
    ends = line_ends(data) if ends is None else ends
    unlike = np.zeros(len(ends), np.bool_)
    unlike[np.searchsorted(ends, found)] = True
    return unlike


def unlike_records(
    records: Sequence[bytes], quoting: CsvQuoting, *, has_numbers: bool, has_empty_texts: bool
) -> BoolArray | None:
    """Return the same of records that may span lines."""
    plain = _plain_pattern(quoting, has_numbers, has_empty_texts)
    unlike = np.array(
        [plain.fullmatch(record) is None or (has_numbers and b"0x" in record.lower()) for record in records], np.bool_
    )
    return unlike if unlike.any() else None


def _beside_blanks(characters: npt.NDArray[np.uint8], marks: Sequence[int]) -> list[npt.NDArray[np.int64]]:
    """Return places of blanks beside one of the marks or an end of line."""
    found = []
    for begin in range(0, len(characters), _WINDOW):
        # One character of the next window too.
        window = characters[begin : begin + _WINDOW + 1]
        is_mark = window <= ord("\r")
        for mark in marks:
            is_mark |= window == mark
        is_blank = window == ord(" ")
        beside = is_blank[:-1] & is_mark[1:]
        beside |= is_blank[1:] & is_mark[:-1]
        if beside.any():
            found.append(np.flatnonzero(beside) + begin)
    if characters[0] == ord(" "):
        found.append(np.zeros(1, np.int64))
    return found


def _hexadecimal(data: bytes, prefix: bytes) -> npt.NDArray[np.int64]:
    """Return places of a prefix of hexadecimal numbers."""
    letter, found, at = prefix[1:], list[int](), -1
    for _ in range(_FOUND):
        at = data.find(letter, at + 1)
        if at < 0:
            return np.array(found, np.int64)
        if data[at - 1 : at] == prefix[:1]:
            found.append(at)
    characters = np.frombuffer(data, np.uint8)
    places = np.flatnonzero((characters[1:] == letter[0]) & (characters[:-1] == prefix[0]))
    return np.asarray(places + 1, np.int64)


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
