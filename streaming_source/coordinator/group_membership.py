"""A planner's part in an alignment group whose other members are other sources."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from alignment.watermarks import MAX_WATERMARK
from streaming_source.coordinator.calls import AsyncCalls
from streaming_source.coordinator.group_exchange import GroupExchange

__all__ = ["GroupMembership"]

_LISTEN_S: Final = 0.05
"""How often a source that waits for the others looks whether it may go on: an exchange costs well under a millisecond,
and a backlog of two queries moves on by a drift each time (FLINK-37399)."""


class GroupMembership:
    """Asks before a plan how far the other sources let this one read, and tells them after it how far it is.

    Parameters
    ----------
    meeting
        Where they leave word for each other; None for a source that is in no group.
    """

    def __init__(self, meeting: GroupExchange | None) -> None:
        self._meeting = meeting
        self._limit_us = MAX_WATERMARK
        self._waits = False

    def start(self, calls: AsyncCalls, interval_s: float, on_change: Callable[[], None]) -> None:
        """Have the report renewed again and again; `on_change` is called when what waits may go on.

        It is renewed on a worker, whatever the coordinator's thread does: a source is not dead because its micro-batch
        takes longer than its lease.
        """
        meeting = self._meeting
        if meeting is None:
            return
        is_told = False

        def tell() -> None:
            nonlocal is_told
            is_told = False
            on_change()

        def keep_seat() -> None:
            nonlocal is_told
            limit_us = meeting.keep_seat(listens=self._waits)
            if self._waits and limit_us != self._limit_us and not is_told:
                is_told = True
                calls.post(tell)

        calls.repeat(keep_seat, min(interval_s, _LISTEN_S))

    def limit_us(self) -> int:
        """The bound for the next plan; `MAX_WATERMARK` for none."""
        if self._meeting is not None:
            self._limit_us = self._meeting.renew()
        return self._limit_us

    def tell(self, slowest_us: int | None, nearest_us: Callable[[], int | None] | None) -> None:
        """What a plan came to.

        Parameters
        ----------
        slowest_us
            The smallest watermark of its splits that count; None if none counts.
        nearest_us
            Finds the event time of the record that would be read next, None if all that is there was read; None for a
            state that nobody has planned from yet.
        """
        if self._meeting is not None:
            nearest = None if nearest_us is None else nearest_us()
            self._waits = nearest is not None
            self._meeting.report(slowest_us, nearest)

    def leave(self) -> None:
        """Hold nobody back any more."""
        if self._meeting is not None:
            self._meeting.leave()
