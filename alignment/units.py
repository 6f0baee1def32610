"""Which unit the numbers of an event-time column seem to be of."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from alignment.arrow_times import EPOCH_UNITS, format_timestamp
from alignment.timestamps import NO_TIMESTAMP, FieldTimestampAssigner, TimestampAssigner

_STEPS_A_SECOND: Final = {unit: 1000**power for power, unit in enumerate(EPOCH_UNITS)}
_FROM_S: Final = 315_532_800
"""1980-01-01."""
_UNTIL_S: Final = 4_102_444_800
"""2100-01-01. Of the units at most one makes a number a time between the two."""


class LikelyUnit(NamedTuple):
    """A unit with which a number is a time of these years, and that time in microseconds since the epoch."""

    unit: str
    us: int

    @property
    def time(self) -> str:
        """ISO-8601 text of the time."""
        return format_timestamp(self.us)


def likely_unit(number: float, unit: str) -> LikelyUnit | None:
    """Return the unit with which a number is a time between 1980 and 2100, where it is none with the given `unit`.

    Examples
    --------
    >>> likely_unit(1_767_225_600_000, "s"), likely_unit(1_767_225_600_000, "ms")
    (LikelyUnit(unit='ms', us=1767225600000000), None)
    >>> likely_unit(3_000, "us") is None
    True
    """
    for known, steps in _STEPS_A_SECOND.items():
        if _FROM_S * steps <= number < _UNTIL_S * steps:
            return None if known == unit else LikelyUnit(known, int(number * 1_000_000 // steps))
    return None


def unit_warning(assigner: TimestampAssigner, latest_us: int, others_us: Iterable[int] = ()) -> str | None:
    """Return a warning if the latest event time of some records, as it was read, speaks for another unit.

    `others_us` are event times beside it: where one of them is of our years, the unit is right for that one.
    """
    if not isinstance(assigner, FieldTimestampAssigner) or assigner.unit is None or latest_us == NO_TIMESTAMP:
        return None
    likely = likely_unit(latest_us * _STEPS_A_SECOND[assigner.unit] // 1_000_000, assigner.unit)
    if likely is None:
        return None
    fix = f"if that is right, set timestampUnit = {likely.unit}, and use a new checkpointLocation"
    if any(_FROM_S <= us // 1_000_000 < _UNTIL_S for us in others_us):
        fix = f"others are right with {assigner.unit}, so correct these at their source"
    return (
        f"the latest event time in {assigner.column} is {format_timestamp(latest_us)} with timestampUnit = "
        f"{assigner.unit}, and {likely.time} with {likely.unit}: {fix}"
    )
