"""Times and dates that are written as text, read as Spark's cast from text reads them."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

import numpy as np
import pyarrow as pa

from alignment import arrow_compute as pc
from alignment.arrow_compute import from_numpy, to_numpy
from alignment.watermarks import BoolArray, Int64Array

UTC: Final = "UTC"
"""A zone by its name, as in all functions."""

_Micros = tuple[Int64Array, BoolArray]

_BLANK: Final = r"[\x00-\x20\x7f]*"
_DATE: Final = r"(?P<sign>[+-])?(?P<year>\d{4,%d})(?:-(?P<month>\d{1,2})(?:-(?P<day>\d{1,2})%s)?)?"
_ZONE: Final = r"(?P<zone>[^0-9].*)?"
_TIME: Final = (
    r"(?:[ T](?P<hour>\d{1,2})(?::(?P<minute>\d{1,2})(?::(?P<second>\d{1,2})(?:\.(?P<fraction>\d*))?"
    + _ZONE
    + r")?)?)?"
)
# Beside Spark's: a comma before the fraction, `t`, and a zone after an hour or a minute alone.
_MORE: Final = r"(?:[ Tt](?P<hour>\d{1,2})(?::(?P<minute>\d{1,2})(?::(?P<second>\d{1,2})(?:[.,](?P<fraction>\d*))?)?)?"
_SPARK: Final = f"(?s)^{_BLANK}{_DATE % (6, _TIME)}{_BLANK}$"
_ISO: Final = f"(?s)^{_BLANK}{_DATE % (6, _MORE + _ZONE + ')?')}{_BLANK}$"
_SPARK_DATE: Final = f"(?s)^{_BLANK}{_DATE % (7, '(?:[ T].*)?')}{_BLANK}$"

_TOO_FINE: Final = r"(\.\d{6})\d+"
_ENDS_WITH_ZONE: Final = re.compile(r"[T ].*(?:Z|[+-]\d{2}(?::?\d{2})?)$")
_LONGEST: Final = 100
"""Characters of a text in which its zone is looked for, and of a zone's name."""
_LAST_SECOND: Final = (2**63 - 1) // 1_000_000 - 1
_LAST_DAY: Final = 2**31 - 1
_FAR_OFFSET: Final = 18 * 3600
"""Seconds of the largest offset that a zone may have in Java, and so in Spark."""


def parse_iso8601(texts: pa.Array, zone: str = UTC) -> _Micros:
    """Read texts of times as `parse_times` does, and more of ISO-8601 than Spark's cast accepts.

    That is a comma before the fraction, `t` and `z`, and a zone after an hour or a minute.
    """
    return _parsed(texts, zone, _ISO)


def iso8601_us(text: str, zone: str = UTC) -> int | None:
    """Return one such time in microseconds since 1970; None if the text is none."""
    (us,), (is_time,) = parse_iso8601(pa.array([text]), zone)
    return int(us) if is_time else None


def parse_times(texts: pa.Array, zone: str | None = UTC) -> _Micros:
    """Read an array of texts as times, as Spark's cast does.

    A date, then optionally ``T`` or a space and a time to the hour, minute, second or any fraction of it; after a
    second a zone may follow (``Z``, ``+1``, ``+01:30``, ``GMT+1``, a region), also after blanks. A month, a day and
    parts of a time may have one digit. Without a zone the time is in `zone`; with `zone` None no text may have one.
    Fractions finer than a microsecond are cut off. Anything else, a date that does not exist, an offset of more than
    18 hours, and a time beyond int64 microseconds is unreadable: marked as such, never an exception. A time without a
    date, which Spark completes with the present day, is unreadable too.

    An array that Arrow's own parser reads as a whole (all texts with a zone, or all without) takes some 20 ns a text,
    any other some 1.5 us. Which way is taken never changes the result.

    Returns
    -------
    values : int64[n]
        Epoch microseconds; without meaning where not valid.
    valid : bool[n]
    """
    return _parsed(texts, zone, _SPARK)


def parse_dates(texts: pa.Array) -> tuple[Int64Array, BoolArray]:
    """Read an array of texts as dates, as Spark's cast does: days since the epoch, and which texts are dates.

    What follows a date and a space or ``T`` is ignored.
    """
    texts = _as_text(texts)
    try:
        days = texts.cast(pa.date32()).cast(pa.int32())
        return to_numpy(days).astype(np.int64), to_numpy(days.is_valid())
    except pa.ArrowInvalid:
        parts = pc.extract_regex(texts, _SPARK_DATE)
        days, valid = _days(parts)
        return days, valid & (np.abs(days) <= _LAST_DAY)


def _parsed(texts: pa.Array, zone: str | None, grammar: str) -> _Micros:
    texts = _as_text(texts)
    if texts.null_count == len(texts):
        return np.zeros(len(texts), dtype=np.int64), np.zeros(len(texts), dtype=np.bool_)
    parsed = _parse_uniform(texts, zone, has_seconds=grammar == _SPARK)
    return parsed if parsed is not None else _parse_any(texts, zone, grammar)


def _as_text(texts: pa.Array) -> pa.Array:
    return texts if pa.types.is_string(texts.type) or pa.types.is_large_string(texts.type) else texts.cast(pa.string())


def _parse_uniform(texts: pa.Array, local: str | None, *, has_seconds: bool) -> _Micros | None:
    """Read texts by Arrow's own parser, which refuses the whole array for one text that it cannot read."""
    first = texts.drop_null()[0].as_py() if texts.null_count else texts[0].as_py()
    if re.search(_TOO_FINE, first):
        texts = pc.replace_substring_regex(texts, _TOO_FINE, r"\1")
    zone = UTC if _ENDS_WITH_ZONE.search(first[-_LONGEST:]) else None
    if zone is not None and local is None:
        return None
    try:
        epoch_us = texts.cast(pa.timestamp("us", zone)).cast(pa.int64())
    except pa.ArrowInvalid:
        return None
    if zone is not None and not _are_plainly_zoned(texts, has_seconds=has_seconds):
        return None
    micros = to_numpy(epoch_us)
    return micros if zone or local is None else in_utc(micros, local), to_numpy(epoch_us.is_valid())


def _are_plainly_zoned(texts: pa.Array, *, has_seconds: bool) -> bool:
    """Return whether all texts, which Arrow can read, end in `Z` or an offset of less than 18 hours as `+01:00`.

    With `has_seconds` all must also have a second.
    """
    texts = texts.drop_null() if texts.null_count else texts
    wide = pa.types.is_large_string(texts.type)
    _, of_offsets, of_letters = texts.buffers()
    offsets = np.frombuffer(of_offsets, np.int64 if wide else np.int32)[texts.offset : texts.offset + len(texts) + 1]
    letters = np.frombuffer(of_letters, np.uint8)
    ends = offsets[1:]
    begins = offsets[:-1]
    if has_seconds and any((letters[np.minimum(begins + at, ends - 1)] != ord(":")).any() for at in (13, 16)):
        return False
    ends = ends[letters[ends - 1] != ord("Z")]
    if not ends.size:
        return True
    tens, ones = letters[ends - 5] - ord("0"), letters[ends - 4] - ord("0")
    is_sign = (letters[ends - 6] == ord("+")) | (letters[ends - 6] == ord("-"))
    return bool((is_sign & (letters[ends - 3] == ord(":")) & (tens * 10 + ones < 18)).all())


def _parse_any(texts: pa.Array, local: str | None, grammar: str) -> _Micros:
    parts = pc.extract_regex(texts, grammar)
    days, valid = _days(parts)
    hour, minute, second = (_number(parts, name) for name in ("hour", "minute", "second"))
    valid &= (hour <= 23) & (minute <= 59) & (second <= 59)
    epoch_s = np.where(valid, days * 86_400 + hour * 3600 + minute * 60 + second, 0)
    valid &= np.abs(epoch_s) <= _LAST_SECOND
    digits = pc.utf8_rpad(pc.utf8_slice_codeunits(pc.struct_field(parts, "fraction"), 0, 6), 6, "0")
    epoch_us = np.where(valid, epoch_s, 0) * 1_000_000 + to_numpy(digits.cast(pa.int64()))

    written = pc.utf8_trim(pc.struct_field(parts, "zone"), "".join(map(chr, range(33))) + "\x7f").fill_null("")
    encoded = written.dictionary_encode()
    codes, iso = to_numpy(encoded.indices), grammar == _ISO
    # By text: seconds of an offset, the name of a zone, or None for what is neither.
    own = 0 if local is None else local
    zones = [
        own if not text else _zone_named(text, iso=iso) if local else None for text in encoded.dictionary.to_pylist()
    ]
    valid &= np.array([zone is not None for zone in zones], np.bool_)[codes]
    seconds = np.array([zone if isinstance(zone, int) else 0 for zone in zones], np.int64)
    epoch_us -= seconds[codes] * 1_000_000
    for name in {zone for zone in zones if isinstance(zone, str)}:
        is_there = valid & np.array([zone == name for zone in zones], np.bool_)[codes]
        epoch_us[is_there] = in_utc(epoch_us[is_there], name)
    return epoch_us, valid


def _days(parts: pa.StructArray) -> tuple[Int64Array, BoolArray]:
    """Return the days since the epoch of dates of the proleptic Gregorian calendar, and which of them exist."""
    valid = to_numpy(parts.is_valid())
    year, month, day = (
        _number(parts, name, default) for name, default in (("year", "0"), ("month", "1"), ("day", "1"))
    )
    is_before = to_numpy(pc.equal(pc.struct_field(parts, "sign"), "-"))
    year = np.where(is_before, -year, year)
    month = np.where(valid, month, 1)
    valid &= (month >= 1) & (month <= 12)
    months = ((year - 1970) * 12 + month - 1).astype("datetime64[M]")
    first_day = months.astype("datetime64[D]").astype(np.int64)
    next_month = (months + np.timedelta64(1, "M")).astype("datetime64[D]").astype(np.int64)
    valid &= (day >= 1) & (day <= next_month - first_day)
    return first_day + day - 1, valid


def _number(parts: pa.StructArray, name: str, default: str = "0") -> Int64Array:
    # A group that took no part in the match is the empty string.
    digits = pc.struct_field(parts, name)
    return to_numpy(pc.if_else(pc.equal(digits, ""), default, digits).cast(pa.int64()))


# ---- zones -----------------------------------------------------------------------------------------------------------

_OFFSET: Final = re.compile(
    r"(?:UTC|GMT|UT)?([+-])(?:(\d{1,2})|(\d\d)(\d\d)(\d\d)?|(\d\d):(\d\d)(?::(\d\d))?)", re.ASCII
)
_HOUR_OF_ONE_DIGIT: Final = re.compile(r"([+-])(\d):", re.ASCII)
_MINUTE_OF_ONE_DIGIT: Final = re.compile(r"([+-]\d\d):(\d)$", re.ASCII)
_REGION: Final = re.compile(r"[A-Za-z][A-Za-z0-9~/._+-]+", re.ASCII)
_SHORT: Final = {
    **{"ACT": "Australia/Darwin", "AET": "Australia/Sydney", "AGT": "America/Argentina/Buenos_Aires"},
    **{"ART": "Africa/Cairo", "AST": "America/Anchorage", "BET": "America/Sao_Paulo", "BST": "Asia/Dhaka"},
    **{"CAT": "Africa/Harare", "CNT": "America/St_Johns", "CST": "America/Chicago", "CTT": "Asia/Shanghai"},
    **{"EAT": "Africa/Addis_Ababa", "ECT": "Europe/Paris", "IET": "America/Indiana/Indianapolis"},
    **{"IST": "Asia/Kolkata", "JST": "Asia/Tokyo", "MIT": "Pacific/Apia", "NET": "Asia/Yerevan"},
    **{"NST": "Pacific/Auckland", "PLT": "Asia/Karachi", "PNT": "America/Phoenix", "PRT": "America/Puerto_Rico"},
    **{"PST": "America/Los_Angeles", "SST": "Pacific/Guadalcanal", "VST": "Asia/Ho_Chi_Minh"},
    **{"EST": "-05:00", "MST": "-07:00", "HST": "-10:00", "UTC": UTC, "GMT": UTC, "UT": UTC, "Z": UTC},
}
"""Java's names of three letters, which no database of zones has."""


def offset_seconds(text: str) -> int | None:
    """Return the seconds of an offset as `+1`, `+0130`, `GMT-01:30`; None for any other text, or beyond 18 hours."""
    text = _MINUTE_OF_ONE_DIGIT.sub(r"\1:0\2", _HOUR_OF_ONE_DIGIT.sub(r"\g<1>0\2:", text))
    found = _OFFSET.fullmatch(text)
    if found is None:
        return None
    hours, minutes, seconds = (
        int(found[a] or found[b] or found[c] or 0) for a, b, c in ((2, 3, 6), (4, 7, 7), (5, 8, 8))
    )
    size = hours * 3600 + minutes * 60 + seconds
    if minutes > 59 or seconds > 59 or size > _FAR_OFFSET:
        return None
    return -size if found[1] == "-" else size


@lru_cache(maxsize=1_000)
def _zone_named(text: str, *, iso: bool) -> int | str | None:
    """Return the seconds of an offset, or the name of a zone; None if there is no such zone."""
    if len(text) > _LONGEST:
        return None
    text = _SHORT.get(text.upper() if iso and text == "z" else text, text)
    if (seconds := offset_seconds(text)) is not None or text[0] in "+-":
        return seconds
    if text == UTC:
        return 0
    if _REGION.fullmatch(text) is None:
        return None
    try:
        in_utc(np.zeros(1, np.int64), text)
    except pa.ArrowException:
        return None
    return text


def in_utc(local_us: Int64Array, zone: str) -> Int64Array:
    """Times on the clocks of a zone in UTC; both in microseconds. O(n).

    As in Java: of a time that was there twice the first is meant, and one that was left out is as much later as the
    clocks were set forward.
    """
    if zone == UTC or not local_us.size:
        return local_us
    local = from_numpy(local_us).cast(pa.timestamp("us"))
    # Of a time that was left out this is the last one before: the offset that held then is Java's.
    instants = pc.assume_timezone(local, zone, ambiguous="earliest", nonexistent="earliest")
    offset_us = _micros(pc.local_timestamp(instants)) - _micros(instants)
    return local_us - offset_us


def _micros(times: pa.Array) -> Int64Array:
    return to_numpy(times.cast(pa.int64()))
