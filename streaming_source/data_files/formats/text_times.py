"""Times written as text: in ISO-8601, or by a pattern."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from alignment import arrow_compute as pc
from alignment.arrow_times import UTC, parse_iso8601
from streaming_source.exceptions import OptionError

__all__ = ["TimePattern", "are_times", "inferred", "may_be_time", "raw_field", "time_pattern", "typed"]

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
    "M": {
        1: _ONE_OR_TWO,
        2: _TWO,
        3: "|".join(name[:3] for name in _MONTHS),
        4: "|".join(_MONTHS),
    },
    **{letter: {1: _ONE_OR_TWO, 2: _TWO} for letter in "dHhms"},
    "a": {1: "AM|PM"},
    "S": {size: rf"\d{{{size}}}" for size in range(1, 10)},
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
_TOKEN: Final = re.compile(r"'(?:[^']|'')*'|([A-Za-z])\1*|.", re.DOTALL)


@dataclass(frozen=True, slots=True)
class TimePattern:
    """A pattern of times.

    `text` has Java's letters: `yyyy-MM-dd HH:mm:ss.SSS`. Text in `'...'` is literal, and `[...]` is optional. `grammar`
    is the same as a regular expression with a group for each field. Years of two digits are 2000 to 2099.

    A field that the pattern lacks is taken from 1970-01-01T00:00:00. Names are English, in upper or lower case.
    """

    text: str
    grammar: str
    two_digit_year: bool

    def parse(self, texts: pa.Array, local: str = UTC) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Parse texts as `alignment.arrow_times.parse_iso8601` does, 1.5 us each; `local` is the zone of zoneless ones.

        Returns
        -------
        values : int64[n]
            Epoch microseconds, UTC; without meaning where not valid.
        valid : bool[n]
            False where the text is null, does not match the pattern, or is of a time that does not exist.
        """
        parts = pc.extract_regex(texts.cast(pa.string()), self.grammar)
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
        iso += [part("second", "00", 2), ".", micros, part("zone")]
        return parse_iso8601(pc.binary_join_element_wise(*iso, ""), local)


@cache
def time_pattern(pattern: str, option: str = "timestampFormat") -> TimePattern:
    """Parse the pattern of an option.

    Raises
    ------
    OptionError
        If a letter is unknown or repeated too often, or a field occurs twice.
    """
    years = {len(run) for run in re.findall(r"[yu]+", re.sub(r"'(?:[^']|'')*'", "", pattern))}
    grammar = "".join(_translated(pattern, option))
    if "(?P<" not in grammar:
        raise OptionError(f"{option} = {pattern!r}: has no letter for a part of a time: {_KNOWN}")
    if ("(?P<half>" in grammar) != any(token == "h" for token in _letters(pattern)):
        raise OptionError(f"{option} = {pattern!r}: h, the hour from 1 to 12, and a, AM or PM, need each other")
    return TimePattern(pattern, f"^(?i:{grammar})$", years == {2})


def _letters(pattern: str) -> set[str]:
    return {found[1] for found in _TOKEN.finditer(pattern) if found[1]}


def _translated(pattern: str, option: str) -> Iterator[str]:
    def refused(why: str) -> OptionError:
        return OptionError(f"{option} = {pattern!r}: {why}")

    seen: set[str] = set()
    depth = 0
    for found in _TOKEN.finditer(pattern):
        token = found[0]
        if found[1]:
            letter = _SAME.get(token[0], token[0])
            if letter not in _FIELDS:
                raise refused(
                    f"the letter {token[0]} is not known. Known are {_KNOWN}; put other text in quotes, as in 'T'. "
                    "For other times read the column as string, and give from_source a timestamp assigner"
                )
            if len(token) not in _FIELDS[letter]:
                sizes = ", ".join(token[0] * size for size in _FIELDS[letter])
                raise refused(f"{token} means nothing; there are {sizes}")
            group = _GROUPS[letter]
            if group in seen:
                raise refused(f"{token} contains the {group} twice")
            seen.add(group)
            yield f"(?P<{group}>{_FIELDS[letter][len(token)]})"
        elif token == "'":
            raise refused("a quote does not end")
        elif token[0] == "'":
            yield re.escape(token[1:-1].replace("''", "'") or "'")
        elif token in "[]":
            depth += 1 if token == "[" else -1
            if depth < 0:
                raise refused("a ] has no [ before it")
            yield "(?:" if token == "[" else ")?"
        elif token in "{}#":
            raise refused(f"{token} has no meaning in a pattern; put it in quotes to have it as text")
        else:
            yield re.escape(token)
    if depth:
        raise refused("a [ has no ] after it")


def raw_field(field: pa.Field) -> pa.Field:
    """Return the column as it is parsed first: a time as text."""
    return pa.field(field.name, pa.string()) if _is_time(field.type) else field


def typed(
    column: pa.Array, data_type: pa.DataType, pattern: TimePattern | None = None, zone: str = UTC
) -> tuple[pa.Array, npt.NDArray[np.bool_] | None]:
    """Convert a column of `raw_field` to its own type, null where a text cannot be parsed.

    Returns the column, and a mask of texts that could not be parsed, None for no text. Times are parsed by the
    pattern, or as ISO-8601 without one. A time without a zone is in `zone`, if the type has a zone.
    """
    if not _is_time(data_type):
        return column, None
    zone = zone if pa.types.is_timestamp(data_type) and data_type.tz is not None else UTC
    micros, valid = parse_iso8601(column, zone) if pattern is None else pattern.parse(column, zone)
    if pa.types.is_date(data_type):
        days = pa.array((micros // _US_PER_DAY).astype(np.int32), pa.int32(), mask=~valid)
        converted = days.cast(pa.date32()).cast(data_type)
    else:
        converted = _timestamps(micros, valid, data_type)
    if converted.null_count == column.null_count:
        return converted, None
    return converted, pc.and_(column.is_valid(), converted.is_null()).to_numpy(zero_copy_only=False)


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


def _is_time(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(data_type) or pa.types.is_date(data_type))


def _timestamps(micros: npt.NDArray[np.int64], valid: npt.NDArray[np.bool_], data_type: pa.DataType) -> pa.Array:
    per_second = _PER_SECOND[data_type.unit]
    if per_second > 1_000_000:
        factor = per_second // 1_000_000
        valid = valid & (np.abs(micros) <= np.iinfo(np.int64).max // factor)
        steps = np.where(valid, micros, 0) * factor
    else:
        steps = micros // (1_000_000 // per_second) if per_second < 1_000_000 else micros
    return pa.array(steps, pa.int64(), mask=None if valid.all() else ~valid).cast(data_type)
