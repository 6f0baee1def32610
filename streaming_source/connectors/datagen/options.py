"""The options of `readStream.format("aligned_datagen")`."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Final

import pyarrow as pa

from alignment.iso8601 import parse_iso8601
from streaming_source.api import Option, OptionSet
from streaming_source.api.options import Parser, boolean, duration, integer, optional_duration
from streaming_source.exceptions import OptionError

__all__ = ["DATAGEN_OPTIONS", "epoch_us", "moment"]

_SECOND_US: Final = 1_000_000

_DEFAULT_START: Final = datetime(2024, 1, 1, tzinfo=UTC)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def _number(minimum: float) -> Parser:
    """A finite number of at least `minimum`."""

    def parse(name: str, value: str) -> float:
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not math.isfinite(number) or number < minimum:
            raise OptionError(f"option {name} = {value!r}: must be a number of at least {minimum:g}, like 2.5")
        return number

    return parse


def epoch_us(time: datetime) -> int:
    """Microseconds since 1970; UTC without a zone."""
    return int(((time if time.tzinfo else time.replace(tzinfo=UTC)) - _EPOCH) // _MICROSECOND)


def moment(name: str, value: datetime | str) -> datetime:
    """A time in UTC, of one in any zone or of ISO-8601 text; UTC without a zone.

    Raises
    ------
    OptionError
        If it is none of these, or not of the years 1 to 9999.
    """
    if isinstance(value, datetime):
        time_us = epoch_us(value)
    elif isinstance(value, str):
        times, valid = parse_iso8601(pa.array([value]))
        if not valid[0]:
            raise OptionError(f"{name} = {value!r}: must be an ISO-8601 time, like 2024-01-01T00:00:00Z")
        time_us = int(times[0])
    else:
        raise OptionError(f"{name} = {value!r}: must be a datetime, or ISO-8601 text like 2024-01-01T00:00:00Z")
    try:
        return _EPOCH + timedelta(microseconds=time_us)
    except OverflowError:
        raise OptionError(f"{name} = {value!r}: must be of the years 1 to 9999, in UTC") from None


def _moment_option(name: str, value: str) -> datetime:
    return moment(f"option {name}", value)


def _numbers(name: str, value: str) -> tuple[int, ...]:
    """Whole numbers with commas between them."""
    return tuple(integer(0)(name, part) for part in value.split(","))


DATAGEN_OPTIONS: Final = OptionSet(
    [
        Option("splits", integer(1), "Number of splits.", 4, "4"),
        Option("rowsPerSecond", _number(1e-6), "Records of each split a second.", 1000.0, "1000"),
        Option("rowsPerSplit", integer(1), "Records after which each split ends."),
        Option(
            "bounded",
            boolean,
            "All records are there at once, and the source ends with them; needs `rowsPerSplit`. If not, they arrive "
            "while the query runs.",
            False,
            "false",
        ),
        Option(
            "skew",
            _number(1),
            "How many times as fast as in the first split event time passes in the last; in those between, evenly "
            "between.",
            1.0,
            "1",
        ),
        Option("disorder", duration(), "How far records are behind the latest before them at most.", 0, "0 seconds"),
        Option(
            "startTime",
            _moment_option,
            "Event time of the first record of each split, ISO-8601.",
            _DEFAULT_START,
            "2024-01-01T00:00:00Z",
        ),
        Option("idleSplits", _numbers, "Numbers of the splits, from 0, that stop delivering; as in `1,3`.", (), "none"),
        Option("idleAfter", integer(0), "After how many records they stop."),
        Option(
            "idleFor",
            optional_duration(1),
            "After how long they go on, by the clock and in event time; `none`: never.",
        ),
        Option("seed", integer(0), "Another seed, other records.", 0, "0"),
        Option("numKeys", integer(1), "Number of different keys.", 10, "10"),
        Option("discoveryInterval", duration(1000), "How often to look what has arrived.", _SECOND_US, "1 second"),
    ]
)
