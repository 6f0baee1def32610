"""Whose turn it is, where there are more splits than can be fetched at once, and some of them block."""

from __future__ import annotations

from collections import deque
from typing import Final, Generic, TypeVar

__all__ = ["FetchScheduler"]

T = TypeVar("T")

_LEFT_TO_QUIET: Final = 1
_LEFT_TO_BUSY: Final = 2


class FetchScheduler(Generic[T]):
    """Two queues in front of a number of places: the busy, which brought something last or are new, and the quiet.

    One that is quiet may keep its place for seconds, and in vain. So some places are never given to the quiet; and one
    never to the busy, which always come back for more.

    Parameters
    ----------
    places
        How many can have their turn at once, at least 4.
    """

    def __init__(self, places: int) -> None:
        self._places = places
        self._queues: tuple[deque[T], deque[T]] = (deque(), deque())
        self._at_most = (places - _LEFT_TO_QUIET, places - _LEFT_TO_BUSY)
        self._taken = [0, 0]

    def add(self, item: T, *, quiet: bool = False) -> None:
        """Queue up. O(1)."""
        self._queues[quiet].append(item)

    def take(self) -> tuple[T, bool] | None:
        """Who is next, and whether it is quiet; None if nobody may begin. Its place is free after `leave`. O(1)."""
        if sum(self._taken) < self._places:
            for quiet, queue in enumerate(self._queues):
                if queue and self._taken[quiet] < self._at_most[quiet]:
                    self._taken[quiet] += 1
                    return queue.popleft(), bool(quiet)
        return None

    def leave(self, *, quiet: bool) -> None:
        """A turn is over; `quiet` as `take` said."""
        self._taken[quiet] -= 1
