"""Durations: ``timedelta`` or Spark-style text in, whole microseconds out.

Everything in this package that is a duration is an ``int`` of microseconds with the unit in its name
(``max_drift_us``, ``timeout_us``). This module is the only place where text becomes such an int.
"""

from __future__ import annotations

import re
from datetime import timedelta
from difflib import get_close_matches
from fractions import Fraction

from alignment.exceptions import InvalidArgumentError

_INT64_MIN = -(2**63)
_INT64_MAX = 2**63 - 1
_MICROSECOND = timedelta(microseconds=1)

_LONG_UNITS: dict[str, int] = {
    "week": 7 * 86_400_000_000,
    "day": 86_400_000_000,
    "hour": 3_600_000_000,
    "minute": 60_000_000,
    "second": 1_000_000,
    "millisecond": 1_000,
    "microsecond": 1,
}
_SHORT_UNITS: dict[str, str] = {
    "w": "week",
    "d": "day",
    "h": "hour",
    "hr": "hour",
    "hrs": "hour",
    "min": "minute",
    "mins": "minute",
    "s": "second",
    "sec": "second",
    "secs": "second",
    "ms": "millisecond",
    "milli": "millisecond",
    "millis": "millisecond",
    "us": "microsecond",
    "µs": "microsecond",  # micro sign
    "μs": "microsecond",  # Greek mu: the same unit as typed on another keyboard
    "micro": "microsecond",
    "micros": "microsecond",
}
_UNITS: dict[str, int] = {
    **_LONG_UNITS,
    **{f"{name}s": us for name, us in _LONG_UNITS.items()},
    **{short: _LONG_UNITS[name] for short, name in _SHORT_UNITS.items()},
}
_AMBIGUOUS_UNITS = frozenset({"month", "months", "mon", "mons", "year", "years", "y", "yr", "yrs"})

_INTERVAL = re.compile(r"interval\b\s*", re.IGNORECASE)
_NUMBER = r"[+-]?[0-9]{1,20}(?:\.[0-9]{1,20})?"
_TERM = re.compile(rf"\s*(?:'\s*({_NUMBER})\s*'|({_NUMBER}))\s*([^\W\d_]+)\s*")
_WRITTEN_TIMEDELTA = re.compile(r"(?:(-?\d{1,9}) days?, )?(\d{1,2}):(\d{2}):(\d{2})(?:\.(\d{6}))?")
_EXAMPLES = "write it as text with a unit, such as '5 seconds' or '1 hour 30 minutes', or as a datetime.timedelta"


def parse_duration_us(value: timedelta | str, *, name: str, minimum_us: int = 0) -> int:
    """Read a duration, a `timedelta` or text, as whole microseconds within int64.

    Text is one or more ``<number> <unit>``, with or without the word ``INTERVAL`` in front, in any case: ``5 seconds``,
    ``1 hour 30 minutes``, ``500 ms``, ``INTERVAL 5 SECONDS``. Units are weeks, days, hours, minutes, seconds,
    milliseconds and microseconds, singular, plural or short (``w d h min s ms us``). Text may also be a `timedelta` as
    ``str`` writes it, and with it Spark's own ``option``: ``0:00:05``, ``1 day, 2:00:00``. `name` is that of the option
    or argument, for the message of an error.

    Raises
    ------
    InvalidArgumentError
        If the value has no unit, an unknown unit, or one without a fixed length (month, year); if it is finer
        than a microsecond, below `minimum_us`, or beyond int64.

    Examples
    --------
    >>> parse_duration_us("1 hour 30 minutes", name="maxDrift")
    5400000000
    """
    if isinstance(value, timedelta):
        duration_us = value // _MICROSECOND
    elif isinstance(value, str):
        duration_us = _parse_text(value, name)
    else:
        why = ": a bare number has no unit" if isinstance(value, int | float) else ""
        raise InvalidArgumentError(f"{name} = {value!r} is not a duration{why}; {_EXAMPLES}")
    if not _INT64_MIN <= duration_us <= _INT64_MAX:
        raise InvalidArgumentError(f"{name} = {value!r} does not fit into 64 bits of microseconds; use a shorter one")
    if duration_us < minimum_us:
        raise InvalidArgumentError(
            f"{name} = {value!r} is too short: it must be at least {format_duration(minimum_us)}"
        )
    return duration_us


def _parse_text(text: str, name: str) -> int:
    body = text.strip()
    if written := _WRITTEN_TIMEDELTA.fullmatch(body):
        days, hours, minutes, seconds, micros = (int(part or 0) for part in written.groups())
        return timedelta(days, seconds, micros, minutes=minutes, hours=hours) // _MICROSECOND
    if marker := _INTERVAL.match(body):
        body = body[marker.end() :]
    total = Fraction(0)
    position = 0
    while position < len(body):
        term = _TERM.match(body, position)
        if term is None:
            raise InvalidArgumentError(f"{name} = {text!r} is not a duration; {_EXAMPLES}")
        total += Fraction(term[1] or term[2]) * _unit_us(term[3], text, name)
        position = term.end()
    if position == 0:
        raise InvalidArgumentError(f"{name} = {text!r} is empty; {_EXAMPLES}")
    if total.denominator != 1:
        raise InvalidArgumentError(f"{name} = {text!r} is finer than a microsecond; round it to whole microseconds")
    return int(total)


def _unit_us(unit: str, text: str, name: str) -> int:
    lowered = unit.lower()
    if lowered in _AMBIGUOUS_UNITS:
        raise InvalidArgumentError(
            f"{name} = {text!r} is ambiguous: a {lowered.rstrip('s')} has no fixed length; give it in days"
        )
    if lowered == "m":
        raise InvalidArgumentError(
            f"{name} = {text!r} is ambiguous: {unit!r} may be minutes or months; write 'min' or days"
        )
    if lowered not in _UNITS:
        near = get_close_matches(lowered, _UNITS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known units: {', '.join(f'{u}s' for u in _LONG_UNITS)}"
        raise InvalidArgumentError(f"{name} = {text!r} has the unknown unit {unit!r}; {hint}")
    return _UNITS[lowered]


def format_duration(us: int) -> str:
    """Write microseconds as text that :func:`parse_duration_us` reads back exactly.

    Every part of a negative duration carries its own sign, so that each part has its own meaning.

    >>> format_duration(5_400_000_000), format_duration(-1_500_000)
    ('1 hour 30 minutes', '-1 second -500 milliseconds')
    """
    rest = abs(us)
    sign = "-" if us < 0 else ""
    parts = []
    for name, unit_us in _LONG_UNITS.items():
        # Weeks are read but not written: days are what people compare.
        if name == "week":
            continue
        count, rest = divmod(rest, unit_us)
        if count:
            parts.append(f"{sign}{count} {name}" + ("s" if count != 1 else ""))
    return " ".join(parts) or "0 seconds"
