"""Event times of sources that have no index of them: the planner reads ahead of the readers to learn them.

Each split in work has a `SplitReader` of its own in the planner, whose fetches are made on worker threads. Of what they
bring only positions and event times are kept, until a plan hands the records out; the readers then read exactly these
again. So every source is cut exactly and read exactly once, whatever it knows ahead of reading. The price is that every
record is read twice, once of it in one process; only the columns that event times are made of are read there.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from alignment.events import Probed, SplitsBlocked
from alignment.watermarks import MIN_WATERMARK
from streaming_source.api import CaughtUp, Source, SourceReaderContext, SourceSplit, SplitRange
from streaming_source.coordinator.assignment import even_ranges
from streaming_source.coordinator.calls import AsyncCalls
from streaming_source.coordinator.context import CoordinatorContext
from streaming_source.coordinator.event_times.ahead_reader import AheadReader, columns_for_times
from streaming_source.coordinator.event_times.fetch_scheduler import FetchScheduler
from streaming_source.coordinator.event_times.provider import EventTimeProvider
from streaming_source.coordinator.event_times.scanned_records import ScannedRecords
from streaming_source.coordinator.event_times.split_scan import Arrival, SplitScan
from streaming_source.coordinator.state import SourceState
from streaming_source.coordinator.workers import WORKERS, Workers

__all__ = ["ReadAheadTimes"]

_log = logging.getLogger(__name__)

SplitT = TypeVar("SplitT", bound=SourceSplit)

_AT_ONCE: Final = WORKERS - 2
"""Fetches under way at once: one worker is left for discovery, and one to wake those that block."""

_MAX_OPEN: Final = 64
"""With more splits than this a `SplitReader` is closed after each fetch: connections and files are not without end."""


class ReadAheadTimes(EventTimeProvider[SplitT]):
    """Fills the index from the source's own `SplitReader`s, a bounded number of records ahead.

    Every split may be ahead by an equal share of the bound, and by one fetch more. Positions in the index are numbers
    of records, see `ScannedRecords`.

    A split has been caught up with when a fetch brings nothing, by itself or after it was woken from a long wait; that
    is when its idleness begins, and where an AvailableNow run ends.

    Parameters
    ----------
    source
        What to read.
    context
        Takes the blocks.
    calls, workers, now_us
        Where and when work is done.
    max_rows
        Records seen and not handed out, over all splits.
    """

    # All times are in memory already: nothing is to be gained by keeping them twice.
    cached_times = 0

    def __init__(
        self,
        source: Source[SplitT, Any],
        context: CoordinatorContext[SplitT],
        calls: AsyncCalls,
        workers: Workers,
        now_us: Callable[[], int],
        max_rows: int,
    ) -> None:
        self._source = source
        self._context = context
        self._calls = calls
        self._workers = workers
        self._now_us = now_us
        self._max_rows = max_rows
        schema = columns_for_times(context.schema, context.timestamp_assigner)
        self._reader_context = SourceReaderContext(schema, enumerator=context.enumerator)
        self._scans: dict[str, SplitScan[SplitT]] = {}
        # Of the splits that ended with the last state: its ranges are still to be cut.
        self._ended: dict[str, ScannedRecords] = {}
        self._drains_from_us: int | None = None
        self._scanned_again: list[SplitScan[SplitT]] = []
        self._scans_again_from_us = MIN_WATERMARK
        # All below is guarded by the lock, which is held for moments only.
        self._lock = threading.Lock()
        self._turns: FetchScheduler[SplitScan[SplitT]] = FetchScheduler(_AT_ONCE)
        self._share = max_rows
        self._arrived: list[Arrival[SplitT]] = []

    # ---- splits --------------------------------------------------------------------------------------------------

    def restore_splits(self, state: SourceState[SplitT, Any]) -> None:
        """See `EventTimeProvider`. Splits that were scanned before are scanned no more."""
        self._let_go(list(self._scans))
        self._ended.clear()
        self.add_splits(state.unfinished())

    def add_splits(self, splits: Sequence[SplitT]) -> None:
        """SplitScan ahead in these, too."""
        assigner = self._context.timestamp_assigner
        new = [SplitScan(split, AheadReader(self._source, split, self._reader_context, assigner)) for split in splits]
        self._scans.update((scan.split.split_id, scan) for scan in new)
        with self._lock:
            self._share = self._fair_share()
            for scan in new:
                self._turns.add(scan)
            self._begin_ready()

    def finish_splits(self, split_ids: Iterable[str]) -> None:
        """See `EventTimeProvider`."""
        finished = [split_id for split_id in split_ids if split_id in self._scans]
        self._ended.update((split_id, self._scans[split_id].seen) for split_id in finished)
        self._let_go(finished)

    def commit_plan(self, split_ids: Sequence[str], positions: Sequence[int]) -> tuple[SplitT, ...]:
        """See `EventTimeProvider`; `positions` are numbers of records."""
        self._ended.clear()
        splits = tuple(self.split_at(split_id, number) for split_id, number in zip(split_ids, positions, strict=True))
        for split_id, number in zip(split_ids, positions, strict=True):
            scan = self._scans[split_id]
            if number > scan.seen.committed_to:
                scan.seen.commit_plan(number)
                with self._lock:
                    if scan.is_full and not self._fills(scan):
                        scan.is_full = False
                        self._turns.add(scan)
        with self._lock:
            self._begin_ready()
        return splits

    def drain(self) -> None:
        """From now on scan no further once a split has been caught up with."""
        self._drains_from_us = self._now_us()

    def close(self) -> None:
        """SplitScan no further. Fetches that block are woken, and not waited for."""
        self._let_go(list(self._scans))

    def look_again(self, ends: Mapping[str, int]) -> None:
        """See `EventTimeProvider`. Fetch at once where it would be waited for."""
        self._scans_again_from_us = self._now_us()
        scans = [scan for split_id, scan in self._scans.items() if ends.get(split_id, 0) > scan.seen_to]
        self._scanned_again = [scan for scan in scans if not scan.is_done]
        with self._lock:
            for scan in self._scanned_again:
                scan.is_wanted = True
                if scan.is_waiting:
                    scan.is_waiting = False
                    self._turns.add(scan)
            self._begin_ready()

    def has_looked_again(self) -> bool:
        """See `EventTimeProvider`: of each something unread was found, or a fetch that began since found nothing."""
        since_us = self._scans_again_from_us
        return all(scan.seen.unread or scan.scanned_us >= since_us or scan.is_gone for scan in self._scanned_again)

    # ---- what the planner reads ----------------------------------------------------------------------------------

    def is_warm(self) -> bool:
        """Whether every split was fetched from. O(n)."""
        return all(scan.is_known for scan in self._scans.values())

    @property
    def is_settled(self) -> bool:
        """While draining: whether of every split something unread was seen, or everything. O(n)."""
        return all(scan.is_done or scan.seen.unread for scan in self._scans.values())

    @property
    def is_at_rest(self) -> bool:
        """While draining: whether nothing more will be seen before more is handed out. O(n)."""
        with self._lock:
            return all(scan.is_done or (scan.is_full and not scan.untaken) for scan in self._scans.values())

    def position_at(self, split_id: str, position: int) -> int:
        """See `EventTimeProvider`; `position` is a number of records. O(log n)."""
        return self._scans[split_id].seen.position_at(position)

    def event_times(self, split_id: str, start: int, stop: int) -> npt.NDArray[np.int64]:
        """See `EventTimeProvider`."""
        return self._scans[split_id].seen.times(start, stop)

    def split_at(self, split_id: str, position: int) -> SplitT:
        """The split in the state in which the record of this number is next."""
        scan = self._scans[split_id]
        return scan.split.at(scan.seen.position_at(position))

    def ranges(self, start: SplitT, end: SplitT, rows_per_range: int) -> Sequence[SplitRange[SplitT]]:
        """See `EventTimeProvider`. Cut where a fetch ended, unless a split can be read from any position."""
        if end.is_divisible:
            return even_ranges(start, end.position, rows_per_range)
        scan = self._scans.get(end.split_id)
        seen = scan.seen if scan is not None else self._ended.get(end.split_id, ScannedRecords(end.position))
        parts = seen.cut(start.position, end.position, rows_per_range)
        return [SplitRange(start.at(begin).until(stop), rows) for begin, stop, rows in parts]

    # ---- fetching: on workers ------------------------------------------------------------------------------------

    def _begin_ready(self) -> None:
        """Under the lock."""
        while (turn := self._turns.take()) is not None:
            scan, is_quiet = turn
            if scan.is_gone:
                self._turns.leave(quiet=is_quiet)
            else:
                self._workers.submit(partial(self._fetch, scan, is_quiet))

    def _fetch(self, scan: SplitScan[SplitT], is_quiet: bool) -> None:
        with self._lock:
            if scan.is_gone:
                self._turns.leave(quiet=is_quiet)
                self._begin_ready()
                return
            scan.is_fetching, scan.is_wanted = True, False
            scan.fetches += 1
            was_timed, scan.is_timed = scan.is_timed, True
        if not was_timed:
            self._workers.submit(partial(self._wake, scan, scan.fetches), scan.patience_s)
        arrival = Arrival(scan, self._now_us(), None, None)
        try:
            arrival.fetched = scan.reader.fetch()
            if len(self._scans) > _MAX_OPEN:
                scan.reader.close()
        except BaseException as error:  # whatever it is, the query must hear of it
            error.add_note(f"while the planner read split {scan.split.split_id!r} ahead")
            arrival.error = error
        with self._lock:
            self._turns.leave(quiet=is_quiet)
            scan.is_fetching = False
            is_gone = scan.is_gone
            if not is_gone:
                self._judge(arrival)
            self._begin_ready()
        if is_gone:
            self._close(scan)

    def _wake(self, scan: SplitScan[SplitT], number: int) -> None:
        """Wake a fetch that has blocked since this was submitted; a later one is given as long."""
        with self._lock:
            if scan.is_fetching and scan.fetches != number:
                self._workers.submit(partial(self._wake, scan, scan.fetches), scan.patience_s)
                return
            scan.is_timed = False
            if not scan.is_fetching:
                return
            scan.begin_waking()
        try:
            scan.reader.wake_up()
        finally:
            with self._lock:
                scan.end_waking()

    def _judge(self, arrival: Arrival[SplitT]) -> None:
        """Under the lock: pass on what a fetch brought, and decide when to fetch again."""
        scan, fetched = arrival.scan, arrival.fetched
        if fetched is None:
            self._pass_on(arrival)
            return
        scan.untaken += fetched.rows
        arrival.found_nothing = scan.judge(bool(fetched.blocks), fetched.caught_up)
        drains = self._drains_from_us is not None and arrival.began_us >= self._drains_from_us
        arrival.is_last = fetched.finished or (drains and arrival.found_nothing)
        self._pass_on(arrival)
        if arrival.is_last:
            return
        if fetched.blocks:
            scan.is_full = self._fills(scan)
            if not scan.is_full:
                self._turns.add(scan)
        elif scan.is_wanted:
            self._turns.add(scan)
        else:
            scan.is_waiting = True
            self._workers.submit(partial(self._retry, scan, scan.fetches), scan.next_retry_s())

    def _retry(self, scan: SplitScan[SplitT], number: int) -> None:
        with self._lock:
            # It may have been fetched from in the meantime, for a trigger.
            if scan.is_waiting and scan.fetches == number:
                scan.is_waiting = False
                self._turns.add(scan, quiet=scan.is_quiet)
                self._begin_ready()

    def _fair_share(self) -> int:
        return max(self._max_rows // max(len(self._scans), 1), 1)

    def _fills(self, scan: SplitScan[SplitT]) -> bool:
        return scan.untaken + scan.seen.unread >= self._share

    def _pass_on(self, arrival: Arrival[SplitT]) -> None:
        last = arrival.scan.last_arrival
        if last is not None and last.is_like(arrival) and not arrival.is_last:
            # As long as nobody takes them they do not pile up.
            last.began_us = arrival.began_us
            return
        arrival.scan.last_arrival = arrival
        if not self._arrived:
            self._calls.post(self._take)
        self._arrived.append(arrival)

    # ---- on the coordinator's thread -----------------------------------------------------------------------------

    def _take(self) -> None:
        with self._lock:
            arrived, self._arrived = self._arrived, []
            for arrival in arrived:
                arrival.scan.last_arrival = None
        wanted = [arrival for arrival in arrived if not arrival.scan.is_gone]
        for arrival in wanted:
            if arrival.error is None:
                self._take_over(arrival)
        for arrival in wanted:
            if arrival.error is not None:
                raise arrival.error

    def _take_over(self, arrival: Arrival[SplitT]) -> None:
        scan, fetched = arrival.scan, arrival.fetched
        assert fetched is not None
        split_id = scan.split.split_id
        for block in fetched.blocks:
            low, high = block.bounds()
            self._context.add_blocks(split_id, len(block), low, high)
            with self._lock:
                scan.seen.append(block)
                scan.untaken -= len(block)
        if fetched.finished:
            self._context.complete_split(split_id)
        scan.is_known = True
        scan.scanned_us = arrival.began_us
        scan.is_done |= arrival.is_last
        if fetched.caught_up is CaughtUp.BLOCKED:
            self._context.engine.apply(SplitsBlocked(frozenset([split_id])))
        elif arrival.found_nothing and not fetched.blocks:
            self._context.engine.apply(Probed(arrival.began_us, (split_id,)))

    def _let_go(self, split_ids: Sequence[str]) -> None:
        scans = [scan for split_id in split_ids if (scan := self._scans.pop(split_id, None)) is not None]
        with self._lock:
            self._share = self._fair_share()
            for scan in scans:
                scan.is_gone = True
            fetching = {scan for scan in scans if scan.is_fetching}
        for scan in scans:
            if scan not in fetching:
                self._close(scan)
                continue
            try:
                scan.reader.wake_up()
            except Exception:  # it is not needed any more
                _log.exception("waking the reader of split %r failed", scan.split.split_id)

    def _close(self, scan: SplitScan[SplitT]) -> None:
        try:
            scan.reader.close()
        except Exception:  # it is not needed any more
            _log.exception("closing the reader of split %r failed", scan.split.split_id)
