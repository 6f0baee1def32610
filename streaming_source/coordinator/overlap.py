"""Option `overlap` = `fail`: the error for records outside of the range of event times, known ahead or met."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from alignment.arrow_times import format_timestamp
from alignment.event_time_range import EventTimeRange
from streaming_source.exceptions import OutOfRangeError

if TYPE_CHECKING:
    from alignment.index import EventTimeIndex
    from streaming_source.coordinator.event_times.provider import EventTimeProvider


def check_no_overlap(index: EventTimeIndex, wanted: EventTimeRange, event_times: EventTimeProvider[Any]) -> None:
    """Raise an `OutOfRangeError` if `overlap` is `fail` and a block of the index lies outside as a whole. O(m)."""
    if wanted.overlap != "fail" or (found := index.first_outside()) is None:
        return
    split_id, start, stop, low_us, high_us = found
    place = event_times.place_of(split_id, start) or f"record {start}"
    raise refusal(f"split {split_id!r}, {stop - start} records from {place} on", low_us, high_us, wanted)


def refusal(where: str, low_us: int, high_us: int, wanted: EventTimeRange) -> OutOfRangeError:
    """Return the error for records with event times between two bounds, both among them."""
    times = [format_timestamp(us) for us in dict.fromkeys([low_us, high_us])]
    bounds = {"eventTimeFrom": wanted.from_us, "eventTimeUntil": wanted.until_us}
    given = " and ".join(f"{name} = {format_timestamp(us)}" for name, us in bounds.items() if us is not None)
    return OutOfRangeError(
        f"{where}: event time {' to '.join(times)} is outside of {given}, and option overlap is 'fail'; leave such "
        "records to another source with overlap = drop, or hand them on with overlap = keep in a new checkpointLocation"
    )
