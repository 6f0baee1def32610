"""Times written as text: in ISO-8601, or by a pattern."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from alignment import arrow_compute as pc
from alignment.arrow_compute import from_numpy, to_numpy
from alignment.time_texts import UTC, parse_dates, parse_times
from streaming_source.exceptions import OptionError

_MONTHS: Final = (
    "January February March April May June July August September October November December".split()  # noqa: SIM905
)
# Lists, not Arrow arrays: the first array of a process loads pandas, which a planner does not need.
_MONTHS_BY_NAME: Final = [name[:3].lower() for name in _MONTHS]
_TWO_DIGITS: Final = [f"{number:02}" for number in range(24)]
_HOURS_BY_CLOCK: Final = ["12", *_TWO_DIGITS[1:12]]
_HOURS: Final = r"(?:0\d|1[0-8])"
_ONE_OR_TWO: Final = r"\d{1,2}"
_TWO: Final = r"\d{2}"
_FIELDS: Final = {
    "y": {1: r"\d{1,4}", 2: _TWO, 4: r"\d{4}"},
    "M": {1: _ONE_OR_TWO, 2: _TWO, 3: "|".join(name[:3] for name in _MONTHS), 4: "|".join(_MONTHS)},
    **{letter: {1: _ONE_OR_TWO, 2: _TWO} for letter in "dHhms"},
    "a": {1: "AM|PM"},
    # Of n letters one to n digits, as in Spark.
    "S": {size: rf"\d{{1,{size}}}" for size in range(1, 10)},
    "X": {1: rf"Z|[+-]{_HOURS}(?:\d{{2}})?", 2: rf"Z|[+-]{_HOURS}\d{{2}}", 3: rf"Z|[+-]{_HOURS}:\d{{2}}"},
    "x": {1: rf"[+-]{_HOURS}(?:\d{{2}})?", 2: rf"[+-]{_HOURS}\d{{2}}", 3: rf"[+-]{_HOURS}:\d{{2}}"},
    "Z": dict.fromkeys((1, 2, 3), rf"[+-]{_HOURS}\d{{2}}") | {5: rf"Z|[+-]{_HOURS}:\d{{2}}"},
}
"""Letter -> number of repetitions -> regular expression."""

_US_PER_DAY: Final = 86_400_000_000
_PER_SECOND: Final = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}

_SAME: Final = {"u": "y", "L": "M"}
_GROUPS: Final = {
    **{"y": "year", "M": "month", "d": "day", "m": "minute", "s": "second", "S": "fraction", "a": "half"},
    **dict.fromkeys("Hh", "hour"),
    **dict.fromkeys("XxZ", "zone"),
}
_KNOWN: Final = "y u M L d H h m s S a X x Z"
_UNNAMED: Final = re.compile(r"\(\?P<\w+>")
_SECTIONS: Final = 8
"""Most optional parts of a pattern in which a field may be more than once."""

_TOKEN: Final = re.compile(r"'(?:[^']|'')*'|([A-Za-z])\1*|.", re.DOTALL)


@dataclass(frozen=True, slots=True)
class TimePattern:
    """A pattern of times.

    `text` has Java's letters: `yyyy-MM-dd HH:mm:ss.SSS`. Text in `'...'` is literal, and `[...]` is optional; a part of
    a time may be in several of these, as in `[yyyy-MM-dd HH:mm][M/d/yyyy H:mm]`. Years of two digits are 2000 to 2099.

    A field that the pattern lacks is taken from 1970-01-01T00:00:00. Names are English, in upper or lower case.

    `choices` are tried one after another. Each has a regular expression with a group for each field, and those of what
    a text must not begin with: an optional part that fits is never passed over.
    """

    text: str
    choices: tuple[tuple[str, tuple[str, ...]], ...]
    two_digit_year: bool

    def parse(self, texts: pa.Array, local: str | None = UTC) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Parse texts as `alignment.time_texts.parse_times` does, 1.5 us each; `local` is the zone of zoneless ones.

        Returns
        -------
        values : int64[n]
            Epoch microseconds, UTC; without meaning where not valid.
        valid : bool[n]
            False where the text is null, does not match the pattern, or is of a time that does not exist.
        """
        texts = texts.cast(pa.string())
        values, valid = np.zeros(len(texts), np.int64), np.zeros(len(texts), np.bool_)
        for grammar, excluded in self.choices:
            of_choice, fits = self._parse(pc.extract_regex(texts, grammar), local)
            for beginning in excluded:
                fits &= ~to_numpy(pc.match_substring_regex(texts, beginning))
            values, valid = np.where(fits & ~valid, of_choice, values), valid | fits
            if valid.all():
                break
        return values, valid

    def _parse(self, parts: pa.StructArray, local: str | None) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        written = {field.name for field in parts.type}

        def part(name: str, default: str = "", width: int = 0) -> pa.Array | pa.Scalar:
            """Return a field, or the default where a text lacks it; null where a text does not match."""
            if name not in written:
                return pa.scalar(default)
            found = pc.struct_field(parts, name)
            return pc.utf8_lpad(pc.if_else(pc.equal(found, ""), default, found), width, "0")

        year = part("year", "1970", 2 if self.two_digit_year else 4)
        if self.two_digit_year:
            year = pc.replace_substring_regex(year, r"^(\d\d)$", r"20\1")
        month = part("month", "01", 2)
        if "month" in written:
            named = pc.index_in(pc.utf8_slice_codeunits(pc.utf8_lower(month), 0, 3), pa.array(_MONTHS_BY_NAME))
            month = pc.coalesce(pc.take(pa.array(_TWO_DIGITS), pc.add(named, 1)), month)
        hour = part("hour", "12" if "half" in written else "00", 2)
        if "half" in written:
            after_noon = pc.if_else(pc.equal(pc.utf8_upper(part("half")), "PM"), 12, 0)
            hour = pc.take(pa.array(_TWO_DIGITS), pc.add(pc.index_in(hour, pa.array(_HOURS_BY_CLOCK)), after_noon))
        micros = pc.utf8_rpad(pc.utf8_slice_codeunits(part("fraction"), 0, 6), 6, "0")
        iso = [year, "-", month, "-", part("day", "01", 2), "T", hour, ":", part("minute", "00", 2), ":"]
        iso += [part("second", "00", 2), ".", micros, pc.utf8_upper(part("zone"))]
        return parse_times(pc.binary_join_element_wise(*iso, ""), local)


@cache
def time_pattern(pattern: str, option: str = "timestampFormat") -> TimePattern:
    """Parse the pattern of an option.

    Raises
    ------
    OptionError
        If a letter is unknown or repeated too often, or a field occurs twice.
    """
    refusal = f"{option} = {pattern!r}: "
    years = {len(run) for run in re.findall(r"[yu]+", re.sub(r"'(?:[^']|'')*'", "", pattern))}
    pieces = _pieces(pattern, refusal)
    grammar = "".join(f"(?:{piece})?" if is_optional else piece for piece, is_optional in pieces)
    if "(?P<" not in grammar:
        raise OptionError(f"{refusal}has no letter for a part of a time: {_KNOWN}")
    if ("(?P<half>" in grammar) != any(token == "h" for token in _letters(pattern)):
        raise OptionError(f"{refusal}h, the hour from 1 to 12, and a, AM or PM, need each other")
    if not (twice := _twice(grammar)):
        return TimePattern(pattern, ((f"^(?i:{grammar})$", ()),), years == {2})
    choices = []
    optional = [number for number, (_, is_optional) in enumerate(pieces) if is_optional]
    for taken in product((True, False), repeat=len(optional)) if len(optional) <= _SECTIONS else ():
        left_out = {number for number, is_taken in zip(optional, taken, strict=True) if not is_taken}
        chosen = ["" if number in left_out else piece for number, (piece, _) in enumerate(pieces)]
        if not _twice("".join(chosen)) and "(?P<" in "".join(chosen):
            begins = [f"^(?i:{''.join(chosen[:number])}{pieces[number][0]})" for number in sorted(left_out)]
            excluded = [_UNNAMED.sub("(?:", beginning) for beginning in begins]
            choices.append((f"^(?i:{''.join(chosen)})$", tuple(excluded)))
    if not choices:
        raise OptionError(f"{refusal}contains the {twice} twice")
    return TimePattern(pattern, tuple(choices), years == {2})


def _letters(pattern: str) -> set[str]:
    return {found[1] for found in _TOKEN.finditer(pattern) if found[1]}


def _twice(grammar: str) -> str:
    """Return a field that a regular expression has twice; empty for none."""
    fields = re.findall(r"\(\?P<(\w+)>", grammar)
    return next((field for field in fields if fields.count(field) > 1), "")


def _pieces(pattern: str, refusal: str) -> list[tuple[str, bool]]:
    """Return the regular expressions of the parts of a pattern one after another, and which of them are optional.

    A part within an optional one belongs to it.
    """
    pieces: list[tuple[str, bool]] = []
    translated, depth = "", 0
    for token, expression in _translated(pattern, refusal):
        if token == "[":
            if not depth and translated:
                pieces.append((translated, False))
            translated, depth = translated + "(?:" if depth else "", depth + 1
        elif token == "]":
            depth -= 1
            if depth < 0:
                raise OptionError(f"{refusal}a ] has no [ before it")
            if depth:
                translated += ")?"
            else:
                pieces.append((translated, True))
                translated = ""
        else:
            translated += expression
    if depth:
        raise OptionError(f"{refusal}a [ has no ] after it")
    return [*pieces, (translated, False)] if translated else pieces


def _translated(pattern: str, refusal: str) -> Iterator[tuple[str, str]]:
    """Yield each token of a pattern and its regular expression; brackets have none."""
    for found in _TOKEN.finditer(pattern):
        token = found[0]
        if found[1]:
            letter = _SAME.get(token[0], token[0])
            if letter not in _FIELDS:
                raise OptionError(
                    f"{refusal}the letter {token[0]} is not known. Known are {_KNOWN}; put other text in quotes, as in "
                    "'T'. For other times read the column as string, and give from_source a timestamp assigner"
                )
            if len(token) not in _FIELDS[letter]:
                sizes = ", ".join(token[0] * size for size in _FIELDS[letter])
                raise OptionError(f"{refusal}{token} means nothing; there are {sizes}")
            yield token, f"(?P<{_GROUPS[letter]}>{_FIELDS[letter][len(token)]})"
        elif token == "'":
            raise OptionError(f"{refusal}a quote does not end")
        elif token[0] == "'":
            yield token, re.escape(token[1:-1].replace("''", "'") or "'")
        elif token in "{}#":
            raise OptionError(f"{refusal}{token} has no meaning in a pattern; put it in quotes to have it as text")
        else:
            yield token, re.escape(token)


@dataclass(frozen=True, slots=True)
class WrittenTimes:
    """The two patterns by which the times of a file are written; None for what Spark's cast reads.

    `zone` is that of times without one.
    """

    of_times: TimePattern | None = None
    of_dates: TimePattern | None = None
    zone: str = UTC

    def read(self, texts: pa.Array, data_type: pa.DataType) -> pa.Array:
        """Return texts as timestamps or dates, null where one cannot be read."""
        if pa.types.is_date(data_type):
            if self.of_dates is None:
                days, valid = parse_dates(texts)
            else:
                micros, valid = self.of_dates.parse(texts)
                days = micros // _US_PER_DAY
            return from_numpy(np.where(valid, days, 0), valid).cast(pa.int32()).cast(pa.date32()).cast(data_type)
        # A time that has no zone must not be written with one.
        zone = self.zone if data_type.tz is not None else None
        if self.of_times is None:
            return _timestamps(*parse_times(texts, zone), data_type)
        micros, valid = self.of_times.parse(texts, zone)
        if zone is None and not valid.all():
            # To Spark the pattern is not that of times without a zone.
            in_iso, is_iso = parse_times(texts, None)
            micros, valid = np.where(valid, micros, in_iso), valid | is_iso
        return _timestamps(micros, valid, data_type)

    def read_each(self, texts: Sequence[str], data_type: pa.DataType) -> dict[str, int | None]:
        """Return each text with its time in the steps of a type since the epoch, None where it cannot be read."""
        found = self.read(pa.array(texts, pa.string()), data_type)
        steps = found.cast(pa.int32() if pa.types.is_date32(data_type) else pa.int64())
        return dict(zip(texts, steps.to_pylist(), strict=True))


def may_be_time(data_type: pa.DataType) -> bool:
    """Return whether a column of this type, as pyarrow inferred it, may contain times of another pattern."""
    return bool(pa.types.is_string(data_type) or pa.types.is_timestamp(data_type) or pa.types.is_time(data_type))


def are_times(texts: pa.Array, pattern: TimePattern) -> bool:
    """Return whether all texts that are not null match the pattern, and there is one."""
    _, valid = pattern.parse(texts)
    count = int(valid.sum())
    return count > 0 and count == len(texts) - int(texts.null_count)


def inferred(data_type: pa.DataType) -> pa.DataType:
    """Return the type to read in place of an inferred one: Spark's timestamp for times, text where it is unclear."""
    if pa.types.is_timestamp(data_type):
        return pa.timestamp("us", "UTC")
    if pa.types.is_null(data_type) or pa.types.is_time(data_type) or pa.types.is_binary(data_type):
        return pa.string()
    if pa.types.is_list(data_type):
        return pa.list_(inferred(data_type.value_type))
    if pa.types.is_struct(data_type):
        return pa.struct([pa.field(part.name, inferred(part.type)) for part in data_type])
    return data_type


def is_time(data_type: pa.DataType) -> bool:
    """Return whether values of a type are times or dates."""
    return bool(pa.types.is_timestamp(data_type) or pa.types.is_date(data_type))


def _timestamps(micros: npt.NDArray[np.int64], valid: npt.NDArray[np.bool_], data_type: pa.DataType) -> pa.Array:
    per_second = _PER_SECOND[data_type.unit]
    if per_second > 1_000_000:
        factor = per_second // 1_000_000
        valid = valid & (np.abs(micros) <= np.iinfo(np.int64).max // factor)
        steps = np.where(valid, micros, 0) * factor
    else:
        steps = micros // (1_000_000 // per_second) if per_second < 1_000_000 else micros
    return from_numpy(steps, valid).cast(data_type)
