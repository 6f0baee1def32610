"""One split that the planner reads ahead in: what was fetched, and when to fetch again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from alignment.watermarks import MIN_WATERMARK
from streaming_source.api import CaughtUp, SourceSplit
from streaming_source.coordinator.event_times.ahead_reader import AheadReader, Fetched
from streaming_source.coordinator.event_times.scanned_records import ScannedRecords

__all__ = ["Arrival", "SplitScan"]

SplitT = TypeVar("SplitT", bound=SourceSplit)

_FIRST_RETRY_S: Final = 0.02
_LAST_RETRY_S: Final = 0.5
"""How soon to fetch again what brought nothing: later from time to time."""

_FIRST_PATIENCE_S: Final = 0.5
_LAST_PATIENCE_S: Final = 4.0
"""How long a fetch may block before it is woken. When the longest was in vain, there was nothing to fetch."""

_NO_FETCH: Final = 0
_ANY_FETCH: Final = 2**63


class SplitScan(Generic[SplitT]):
    """One split. What workers change is guarded by the lock of the `ReadAheadTimes`; `seen` is the coordinator's alone.

    Parameters
    ----------
    split
        From its position on.
    reader
        Fetches it.

    Attributes
    ----------
    scanned_us
        When the last fetch began that the coordinator took over.
    is_known, is_done
        Whether the coordinator took over a fetch; the last one.
    untaken
        Records fetched, and not taken over.
    is_fetching, is_full, is_gone
        A fetch is under way; enough was seen; nobody wants to know any more.
    is_quiet
        The last fetch brought nothing.
    is_waiting, is_wanted
        It will be fetched from in a while; it is to be as soon as the fetch under way is over.
    is_timed
        Somebody will see whether a fetch blocks.
    fetches
        Begun so far.
    retry_s, patience_s
        How soon to fetch again what brought nothing; how long a fetch may block.
    last_arrival
        On its way to the coordinator.
    """

    def __init__(self, split: SplitT, reader: AheadReader[SplitT]) -> None:
        self.split = split
        self.reader = reader
        self.seen = ScannedRecords(split.position)
        self.scanned_us = MIN_WATERMARK
        self.is_known = self.is_done = False
        # Guarded by the lock.
        self.untaken = 0
        self.is_fetching = self.is_full = self.is_gone = self.is_quiet = self.is_timed = False
        self.is_waiting = self.is_wanted = False
        self.fetches = 0
        self.retry_s = _FIRST_RETRY_S
        self.patience_s = _FIRST_PATIENCE_S
        self.last_arrival: Arrival[SplitT] | None = None
        # The fetch that was woken last; and the last one that may return early because of it.
        self._woken = self._woken_through = _NO_FETCH

    @property
    def seen_to(self) -> int:
        """Position after the last record that the coordinator took over. O(log n)."""
        return self.seen.position_at(self.seen.end)

    # ---- under the lock ------------------------------------------------------------------------------------------

    def begin_waking(self) -> None:
        """The fetch under way has blocked for as long as it may, and is about to be woken."""
        self._woken, self._woken_through = self.fetches, _ANY_FETCH

    def end_waking(self) -> None:
        """It was told. Had it returned by then, it is the next fetch that returns at once."""
        self._woken_through = self.fetches + 1

    def judge(self, found: bool, caught_up: CaughtUp | None = None) -> bool:
        """A fetch is over: whether there was nothing to fetch. One that was cut short says nothing of that.

        Parameters
        ----------
        found
            Whether it brought something.
        caught_up
            What the reader itself knows, see `SplitReader.caught_up`: it is right.
        """
        nothing = self._judge(found)
        return nothing if found or caught_up is None else caught_up is not CaughtUp.NO

    def _judge(self, found: bool) -> bool:
        if found:
            self.is_quiet, self.retry_s = False, _FIRST_RETRY_S
            return False
        self.is_quiet = True
        if self._woken != self.fetches:
            return self.fetches > self._woken_through
        waited_enough = self.patience_s >= _LAST_PATIENCE_S
        self.patience_s = min(2 * self.patience_s, _LAST_PATIENCE_S)
        return waited_enough

    def next_retry_s(self) -> float:
        """How soon to fetch again after a fetch that brought nothing."""
        retry_s, self.retry_s = self.retry_s, min(2 * self.retry_s, _LAST_RETRY_S)
        return retry_s


@dataclass(slots=True, eq=False)
class Arrival(Generic[SplitT]):
    """What a fetch brought, on its way to the coordinator."""

    scan: SplitScan[SplitT]
    began_us: int
    fetched: Fetched | None
    error: BaseException | None
    found_nothing: bool = False
    is_last: bool = False

    def is_like(self, other: Arrival[SplitT]) -> bool:
        """Whether both found nothing, and know the same of it."""
        if not (self.found_nothing and other.found_nothing) or self.fetched is None or other.fetched is None:
            return False
        return self.fetched.caught_up is other.fetched.caught_up
