"""A planner's part in an alignment group whose other members are other sources."""

from __future__ import annotations

from collections.abc import Callable

from alignment.watermarks import MAX_WATERMARK
from streaming_source.coordinator.calls import AsyncCalls
from streaming_source.coordinator.meeting import GroupMeeting

__all__ = ["GroupSeat"]


class GroupSeat:
    """Asks before a plan how far the other sources let this one read, and tells them after it how far it is.

    Parameters
    ----------
    meeting
        Where they leave word for each other; None for a source that is in no group.
    """

    def __init__(self, meeting: GroupMeeting | None) -> None:
        self._meeting = meeting
        self._limit_us = MAX_WATERMARK
        self._waits = False

    def start(self, calls: AsyncCalls, interval_s: float, on_change: Callable[[], None]) -> None:
        """Have the report renewed again and again; `on_change` is called when what waits may go on."""
        if self._meeting is None:
            return

        def take(limit_us: int | None, error: BaseException | None, began_us: int) -> None:
            if error is not None:
                raise error
            if self._waits and limit_us != self._limit_us:
                on_change()

        calls.call(self._meeting.renew, take, delay_s=interval_s, period_s=interval_s)

    def limit_us(self) -> int:
        """The bound for the next plan; `MAX_WATERMARK` for none."""
        if self._meeting is not None:
            self._limit_us = self._meeting.renew()
        return self._limit_us

    def tell(self, slowest_us: int | None, nearest_us: Callable[[], int | None]) -> None:
        """What a plan came to.

        Parameters
        ----------
        slowest_us
            The smallest watermark of its splits that count; None if none counts.
        nearest_us
            Finds the event time of the record that would be read next; None if all that is there was read.
        """
        if self._meeting is not None:
            nearest = nearest_us()
            self._waits = nearest is not None
            self._meeting.report(slowest_us, nearest)

    def leave(self) -> None:
        """Hold nobody back any more."""
        if self._meeting is not None:
            self._meeting.leave()
