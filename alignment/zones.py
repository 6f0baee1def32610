"""Times that are written without a zone: what they are in the zone of their reader."""

from __future__ import annotations

import re
from functools import cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from alignment.exceptions import InvalidArgumentError

__all__ = ["UTC", "in_utc", "is_in_order", "time_zone"]

UTC = "UTC"

_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{2}))?", re.IGNORECASE)
_US_IN_HOURS = 3 * 3600 * 1_000_000
"""Longer than any zone's clocks were ever set back or forward at once, but for days that were left out."""


@cache
def time_zone(name: str) -> str:
    """A zone as Arrow calls it, of one as Java does: `Europe/Berlin`, `+02:00`, `GMT+2`, `Z`.

    Raises
    ------
    InvalidArgumentError
        If there is no such zone.
    """
    if name.upper() in ("UTC", "GMT", "UT", "Z", "ETC/UTC"):
        return UTC
    offset = _OFFSET.fullmatch(name)
    known = f"{offset[1]}{int(offset[2]):02d}:{offset[3] or '00'}" if offset else name
    try:
        in_utc(np.zeros(1, np.int64), known)
    except pa.ArrowException:
        raise InvalidArgumentError(
            f"timeZone = {name!r}: there is no such zone; give one such as Europe/Berlin, +02:00 or UTC"
        ) from None
    return known


def in_utc(local_us: npt.NDArray[np.int64], zone: str) -> npt.NDArray[np.int64]:
    """Times on the clocks of a zone in UTC; both in microseconds. O(n).

    As in Java: of a time that was there twice the first is meant, and one that was left out is as much later as the
    clocks were set forward.
    """
    if zone == UTC or not local_us.size:
        return local_us
    local = pa.array(local_us, pa.int64()).cast(pa.timestamp("us"))
    # Of a time that was left out this is the last one before: the offset that held then is Java's.
    instants = pc.assume_timezone(local, zone, ambiguous="earliest", nonexistent="earliest")
    offset_us = _micros(pc.local_timestamp(instants)) - _micros(instants)
    return local_us - offset_us


def is_in_order(local_us: int, zone: str) -> bool:
    """Whether what is earlier or later than this on a zone's clocks is so in UTC: not where they are set forward."""
    if zone == UTC:
        return True
    around = in_utc(np.array([local_us - _US_IN_HOURS, local_us, local_us + _US_IN_HOURS]), zone)
    return bool((np.diff(around) == _US_IN_HOURS).all())


def _micros(times: pa.Array) -> npt.NDArray[np.int64]:
    return np.asarray(times.cast(pa.int64()).to_numpy(zero_copy_only=False))
