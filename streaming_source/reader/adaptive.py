"""As many fetchers as keep the reader busy."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from typing import Final, TypeVar

from streaming_source.api import SourceSplit
from streaming_source.reader.fetcher import Handover
from streaming_source.reader.managers import SplitFetcherManager, SplitReaderSupplier
from streaming_source.reader.queue import DEFAULT_CAPACITY

__all__ = ["AdaptiveFetcherManager", "fetchers_needed"]

SplitT = TypeVar("SplitT", bound=SourceSplit)
ElementT = TypeVar("ElementT")

_WARM_UP_FETCHES: Final = 2
"""The first fetches of a fetcher connect and open: they say nothing of its rate."""

_WEIGHT_OF_NEW: Final = 0.3


def fetchers_needed(fetch_s: float, process_s: float, active_splits: int, max_fetchers: int) -> int:
    """How many fetchers bring a fetch as often as the reader can process one.

    Parameters
    ----------
    fetch_s, process_s
        How long a fetch takes, and how long the reader works on what it brings.

    Returns
    -------
    int
        `fetch_s / process_s` rounded up, and neither below 1 nor above the splits or the maximum.
    """
    most = max(min(active_splits, max_fetchers), 1)
    return most if fetch_s >= most * process_s else max(-int(-fetch_s // process_s), 1)


class AdaptiveFetcherManager(SplitFetcherManager[SplitT, ElementT]):
    """Begins with one fetcher, and spreads its splits over more where fetching is slower than processing.

    The rule, `fetchers_needed`: as many as the time of a fetch is times the time the reader takes over what it brings,
    both smoothed over the latest; at most one for each split. The number grows at once and does not shrink: fetchers
    without splits end by themselves. To reach it, splits are taken from the fetchers that have more than their share:
    removed, and when all that was fetched of them is out, added to another fetcher from where they are. So the
    `SplitReader` must let go of splits (`SplitsRemoval`), and go on with a split in the state that `SplitState` gives.

    Parameters
    ----------
    split_reader_supplier, queue_capacity
        See `SplitFetcherManager`.
    max_fetchers
        At least 1.
    clock
        Seconds, monotonic.

    Raises
    ------
    ValueError
        If `max_fetchers` is below 1.
    """

    def __init__(
        self,
        split_reader_supplier: SplitReaderSupplier[SplitT],
        *,
        max_fetchers: int = 8,
        queue_capacity: int = DEFAULT_CAPACITY,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        super().__init__(split_reader_supplier, queue_capacity=queue_capacity)
        if max_fetchers < 1:
            raise ValueError(f"max_fetchers = {max_fetchers}: must be at least 1")
        self._max_fetchers = max_fetchers
        self._clock = clock
        self._slots: dict[str, int] = {}
        self._moving: set[str] = set()
        self._fetchers = 1
        self._fetches = 0
        self._fetch_s = 0.0
        self._process_s = 0.0
        self._polled_at: float | None = None

    @property
    def fetchers(self) -> int:
        """How many fetchers the splits are spread over, if there are as many splits."""
        return self._fetchers

    def key_of(self, split_id: str) -> Hashable:
        """The fetcher that has the fewest splits."""
        self._moving.discard(split_id)
        self._slots.pop(split_id, None)
        loads = self._loads()
        self._slots[split_id] = slot = loads.index(min(loads))
        return slot

    def forget_split(self, split_id: str) -> None:
        """See `SplitFetcherManager`."""
        super().forget_split(split_id)
        self._slots.pop(split_id, None)
        self._moving.discard(split_id)

    def is_moving(self, split_id: str) -> bool:
        """See `SplitFetcherManager`."""
        return split_id in self._moving

    def remove_splits(self, split_ids: Sequence[str]) -> None:
        """See `SplitFetcherManager`. Splits that were to move to another fetcher do not."""
        self._moving.difference_update(split_ids)
        super().remove_splits(split_ids)

    def poll(self) -> Handover[ElementT] | None:
        """See `SplitFetcherManager`; measures, and spreads the splits."""
        if self._polled_at is not None:
            self._process_s = self._smooth(self._process_s, self._clock() - self._polled_at)
        handover = super().poll()
        if handover is None or handover.removed:
            self._polled_at = None
            return handover
        self._fetches += 1
        self._fetch_s = self._smooth(self._fetch_s, handover.seconds)
        if self._fetches > _WARM_UP_FETCHES and not self._moving:
            self._spread()
        self._polled_at = self._clock()
        return handover

    def _smooth(self, mean: float, new: float) -> float:
        return new if self._fetches <= _WARM_UP_FETCHES else mean + _WEIGHT_OF_NEW * (new - mean)

    def _loads(self) -> list[int]:
        loads = [0] * self._fetchers
        for slot in self._slots.values():
            loads[slot] += 1
        return loads

    def _spread(self) -> None:
        active = len(self._slots)
        needed = fetchers_needed(self._fetch_s, self._process_s, active, self._max_fetchers)
        if needed <= self._fetchers:
            return
        self._fetchers = needed
        share = -(-active // needed)
        kept = [0] * needed
        surplus = []
        for split_id, slot in self._slots.items():
            kept[slot] += 1
            if kept[slot] > share:
                surplus.append(split_id)
        self.remove_splits(surplus)
        self._moving.update(surplus)
