"""Event times of sources that have no index of them: the planner reads ahead of the readers to learn them.

The splits in work are fetched in the planner, with as many `SplitReader`s as `Source.fetching` gives, on
worker threads. Of what they bring only positions and event times are kept, until a plan commits to the records; the
readers then read exactly these again. So every source is cut exactly and read exactly once, whatever it knows ahead of
reading. The price is that every record is read twice, once of it in one process; only the columns that event times are
made of are read there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence, Set
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from alignment.events import Probed, ScanMoved, SplitsBlocked
from alignment.sentence import named
from alignment.shown import log_of
from alignment.watermarks import LONG_AGO_US, MAX_WATERMARK
from streaming_source.api import CaughtUp, Source, SplitRange
from streaming_source.api.split import SplitT
from streaming_source.coordinator.enumerator_host import EnumeratorHost
from streaming_source.coordinator.event_times.ahead_reader import AheadReader, FetchedBlock, FetchResult
from streaming_source.coordinator.event_times.provider import EventTimeProvider, RecordNumber
from streaming_source.coordinator.event_times.split_ends import SplitEnds
from streaming_source.coordinator.event_times.split_scan import (
    FetchedRecords,
    Fetcher,
    FetchScheduler,
    PostedFetch,
    SplitScan,
    Stage,
)
from streaming_source.coordinator.rules import ReadRules
from streaming_source.coordinator.state import SourceState

_log = log_of(__name__)


_AT_ONCE: Final = 6
"""Fetches under way at once: of `WORKERS` some are left for discovery, and to wake those that block."""

_MAX_OPEN: Final = 64
"""With more `SplitReader`s than this, each is closed after a fetch, since connections and files are limited."""


class ReadAheadTimes(EventTimeProvider[SplitT]):
    """Fills the index from the source's own `SplitReader`s, a bounded number of records ahead.

    Every split may be ahead by an equal share of the bound, and by one fetch more. It may be ahead in event time by the
    drift that is allowed, of the split that was scanned least far and may have more: what is later cannot be planned
    before that one was scanned further. Where other splits are fetched with the same `SplitReader` a split that is
    ahead is paused there. Positions in the index are numbers of records, see `FetchedRecords`.

    With `lateness=none` given, what is there at the start may be of any event time: a split holds the watermark until
    it was scanned to its end, or to the first end that the source reports.

    A split has been caught up with when a fetch brings nothing, by itself or after it was woken from a long wait; that
    is when its idleness begins, and where an AvailableNow run ends.
    """

    # All times are in memory already: nothing is to be gained by keeping them twice.
    cached_times = 0

    def __init__(self, source: Source[SplitT, Any], host: EnumeratorHost[SplitT, Any], rules: ReadRules) -> None:
        self._host = host
        self._calls = host.calls
        self._max_rows = rules.read_ahead_rows
        self._max_drift_us = rules.planning.max_drift_us
        self._fetching = source.fetching
        self._new_reader: Callable[[], AheadReader[SplitT]] = partial(
            AheadReader,
            source,
            host.schema,
            host.timestamp_assigner,
            host.enumerator,
            columns=rules.strategy.generator_columns,
            keeps_watermarks=rules.strategy.uses_source_watermarks,
            must_pause=self._fetching.kind != "per_split" and not rules.options.allow_unaligned_source_splits,
        )
        self._none_is_late = rules.options.lateness == "none"
        # Splits with records that were there at the start and are not scanned, and the position up to which, if known.
        self._unscanned: dict[str, int | None] = {}
        # Of a run to the end of what is there, before it ends: splits that are probed once more, and those that were.
        self._split_ends = SplitEnds(source, host, self._take_probe)
        self._awaits_probe: set[str] = set()
        self._probed_last: set[str] = set()
        # Of the splits that ended with the last state: its ranges are still to be cut.
        self._ended: dict[str, FetchedRecords] = {}
        # All below is guarded by the lock, which is held for moments only. The coordinator reads what it alone changes
        # without it.
        self._lock = threading.Lock()
        self._scans: dict[str, SplitScan[SplitT]] = {}
        self._fetchers: dict[Hashable, Fetcher[SplitT]] = {}
        self._turns: FetchScheduler[Fetcher[SplitT]] = FetchScheduler(_AT_ONCE)
        self._share = rules.read_ahead_rows
        self._latest_us = MAX_WATERMARK

    # ---- splits --------------------------------------------------------------------------------------------------

    def restore_splits(self, state: SourceState[SplitT, Any]) -> None:
        """See `EventTimeProvider`. Splits that were scanned before are scanned no more."""
        self._let_go(list(self._scans))
        self._ended.clear()
        self.add_splits(state.unfinished())

    def add_splits(self, splits: Sequence[SplitT]) -> None:
        with self._lock:
            for split in splits:
                key = self._fetching.key_of(split.split_id)
                fetcher = self._fetchers.get(key)
                if fetcher is None:
                    fetcher = self._fetchers[key] = Fetcher(self._new_reader())
                self._scans[split.split_id] = fetcher.add(split)
        if self._none_is_late and splits:
            self._unscanned.update((split.split_id, None) for split in splits)
            self._hold()
        self._go_on()

    def finish_splits(self, split_ids: Iterable[str]) -> None:
        finished = [split_id for split_id in split_ids if split_id in self._scans]
        self._ended.update((split_id, self._scans[split_id].seen) for split_id in finished)
        self._let_go(finished)

    def split_ids(self) -> Set[str]:
        with self._lock:
            fetched = {split_id for fetcher in self._fetchers.values() for split_id in fetcher.scans}
        probed = self._split_ends.split_ids() | self._awaits_probe | self._probed_last | self._unscanned.keys()
        return self._scans.keys() | self._ended.keys() | fetched | probed

    def commit_plan(self, split_ids: Sequence[str], numbers: Sequence[RecordNumber]) -> tuple[SplitT, ...]:
        self._ended.clear()
        splits = []
        for split_id, number in zip(split_ids, numbers, strict=True):
            scan = self._scans[split_id]
            splits.append(scan.split.at(scan.seen.position_at(number)))
            if number > scan.seen.committed_to:
                scan.seen.commit_plan(number)
        self._go_on()
        return tuple(splits)

    def close(self) -> None:
        self._let_go(list(self._scans))

    def find_expected(self, ends: Mapping[str, int]) -> Callable[[], bool]:
        """See `EventTimeProvider`: each has something unread, or a fetch that begins from now on has found nothing."""
        since_us = self._calls.now_us()
        scans = {i: scan for i, scan in self._scans.items() if not scan.is_done}
        behind = {i: one for i, one in scans.items() if ends.get(i, 0) > one.seen.position_at(one.seen.end)}
        with self._lock:
            for key in {self._fetching.key_of(split_id) for split_id in behind}:
                self._fetch_soon(self._fetchers[key])
            self._begin_ready()
        return lambda: all(one.seen.unread or one.scanned_us >= since_us or one.is_gone for one in behind.values())

    # ---- what the planner reads ----------------------------------------------------------------------------------

    def is_warm(self) -> bool:
        return all(scan.scanned_us > LONG_AGO_US for scan in self._scans.values())

    @property
    def knows_all(self) -> bool:
        """See `EventTimeProvider`. O(n)."""
        with self._lock:
            return not any(self._is_ahead(scan) for scan in self._scans.values() if not scan.is_done)

    @property
    def is_settled(self) -> bool:
        """While draining: whether of every split something unread was seen, or everything. O(n)."""
        return not self._awaits_probe and all(scan.is_done or scan.seen.unread for scan in self._scans.values())

    @property
    def is_at_rest(self) -> bool:
        """While draining: whether nothing more will be seen before more is handed out. O(n)."""
        with self._lock:
            return not self._awaits_probe and all(
                scan.is_done or (self._is_ahead(scan) and not scan.untaken) for scan in self._scans.values()
            )

    def probe_last(self, split_ids: Iterable[str]) -> bool:
        """See `EventTimeProvider`: a split may have ended since the run began."""
        probed = [
            scan
            for scan in map(self._scans.get, split_ids)
            if scan is not None
            and scan.is_done
            and scan.split.stop is None
            and not scan.seen.unread
            and scan.split.split_id not in self._probed_last | self._host.engine.complete
        ]
        for scan in probed:
            self._awaits_probe.add(scan.split.split_id)
            self._probed_last.add(scan.split.split_id)
            self._split_ends.probe(scan.split, scan.seen.position_at(scan.seen.end), at_once=True)
        return bool(probed)

    def _take_probe(self, split: SplitT, began_us: int, ended_at: int | None) -> None:
        self._awaits_probe.discard(split.split_id)
        scan = self._scans.get(split.split_id)
        # One that ends after records that came since has them for the next run.
        if scan is not None and ended_at == scan.seen.position_at(scan.seen.end):
            self._host.complete_split(split.split_id)

    def position_at(self, split_id: str, number: RecordNumber) -> int:
        return self._scans[split_id].seen.position_at(number)

    def event_times(self, split_id: str, start: int, stop: int) -> npt.NDArray[np.int64]:
        return self._scans[split_id].seen.times(start, stop)

    def blocks(self, split_id: str, start: int, stop: int) -> Iterable[FetchedBlock]:
        return self._scans[split_id].seen.blocks(start, stop)

    def emitted_before(self, split_id: str, number: int) -> tuple[int, bool] | None:
        return self._scans[split_id].seen.emitted_before(number)

    def ranges(self, start: SplitT, end: SplitT, rows_per_range: int) -> Sequence[SplitRange[SplitT]]:
        """See `EventTimeProvider`. Cut where a fetch ended, unless a split can be read from any position."""
        if end.is_divisible:
            return SplitRange.evenly(start, end.position, rows_per_range)
        scan = self._scans.get(end.split_id)
        seen = scan.seen if scan is not None else self._ended.get(end.split_id, FetchedRecords(end.position))
        parts = seen.cut(start.position, end.position, rows_per_range)
        return [SplitRange(start.at(begin).until(stop), rows) for begin, stop, rows in parts]

    # ---- how far ahead: under the lock ---------------------------------------------------------------------------

    def _is_ahead(self, scan: SplitScan[SplitT]) -> bool:
        """Return whether what was scanned of a split is enough for now."""
        rows = scan.untaken + scan.seen.unread
        return rows >= self._share or (rows > 0 and scan.front_us > self._latest_us)

    def _measure(self) -> bool:
        """See how far each split may be ahead; whether that has changed. O(n)."""
        before = self._share, self._latest_us
        self._share = max(self._max_rows // max(len(self._scans), 1), 1)
        if self._max_drift_us is not None:
            fronts = [scan.front_us for scan in self._scans.values() if not (scan.is_last or scan.found_nothing)]
            self._latest_us = min(fronts, default=MAX_WATERMARK) + self._max_drift_us
        return before != (self._share, self._latest_us)

    def _has_work(self, fetcher: Fetcher[SplitT]) -> bool:
        return any(not (scan.is_last or self._is_ahead(scan)) for scan in fetcher.scans.values())

    def _fetch_soon(self, fetcher: Fetcher[SplitT]) -> None:
        """Fetch as soon as there is a place, if there is something to fetch."""
        if fetcher.stage is Stage.FETCHING:
            fetcher.is_wanted = True
        elif fetcher.stage in (Stage.RESTING, Stage.WAITING) and self._has_work(fetcher):
            fetcher.stage = Stage.QUEUED
            self._turns.add(fetcher)

    def _go_on(self) -> None:
        """Let all splits be fetched that may be, also those that running fetches leave out. Called without the lock."""
        with self._lock:
            self._measure()
            waking = []
            for fetcher in self._fetchers.values():
                leaves_out = any(not (scan.is_gone or self._is_ahead(scan)) for scan in fetcher.left_out)
                if leaves_out or fetcher.stage is Stage.RESTING:
                    self._fetch_soon(fetcher)
                if leaves_out and fetcher.stage is Stage.FETCHING:
                    fetcher.left_out.clear()
                    fetcher.begin_waking(impatient=False)
                    waking.append(fetcher)
            self._begin_ready()
        for fetcher in waking:
            self._wake_up(fetcher)

    # ---- fetching: on workers ------------------------------------------------------------------------------------

    def _begin_ready(self) -> None:
        """Under the lock."""
        while (task := self._turns.take()) is not None:
            fetcher, is_quiet = task
            if fetcher.is_gone:
                self._turns.leave(quiet=is_quiet)
            else:
                self._calls.workers.submit(partial(self._fetch, fetcher, is_quiet))

    def _fetch(self, fetcher: Fetcher[SplitT], is_quiet: bool) -> None:
        with self._lock:
            if fetcher.is_gone or not self._has_work(fetcher):
                fetcher.stage = Stage.RESTING
                self._turns.leave(quiet=is_quiet)
                self._begin_ready()
                return
            scans = {split_id: scan for split_id, scan in fetcher.scans.items() if not scan.is_last}
            paused = fetcher.begin(scans, [scan for scan in scans.values() if self._is_ahead(scan)])
            was_timed, fetcher.is_timed = fetcher.is_timed, True
        if not was_timed:
            self._calls.workers.submit(partial(self._wake, fetcher, fetcher.fetches), fetcher.patience_s)
        began_us, fetched, error = self._calls.now_us(), dict[str, FetchResult](), None
        try:
            fetched = fetcher.reader.fetch({split_id: scan.ahead for split_id, scan in scans.items()}, paused)
            if len(self._fetchers) > _MAX_OPEN:
                fetcher.reader.close()
        except BaseException as raised:  # whatever it is, the query must fail with it
            error = raised
        with self._lock:
            self._turns.leave(quiet=is_quiet)
            is_gone = fetcher.is_gone
            if error is not None:
                fetcher.stage = Stage.FAILED
                error.add_note(f"(while the planner read {_named(scans)} ahead)")
                self._calls.post(partial(self._fail, fetcher, error))
            else:
                self._judge(fetcher, began_us, {scans[split_id]: part for split_id, part in fetched.items()})
            is_limit_moved = self._max_drift_us is not None and self._measure()
            self._begin_ready()
        if is_gone:
            self._close(fetcher)
        if is_limit_moved:
            self._go_on()

    def _wake(self, fetcher: Fetcher[SplitT], number: int) -> None:
        """Wake a fetch that has blocked since this was submitted; a later one is given as long."""
        with self._lock:
            is_fetching = fetcher.stage is Stage.FETCHING
            if is_fetching and fetcher.fetches != number:
                self._calls.workers.submit(partial(self._wake, fetcher, fetcher.fetches), fetcher.patience_s)
                return
            fetcher.is_timed = False
            if not is_fetching:
                return
            fetcher.begin_waking(impatient=True)
        self._wake_up(fetcher)

    def _wake_up(self, fetcher: Fetcher[SplitT]) -> None:
        try:
            fetcher.reader.wake_up()
        except Exception:  # its fetch goes on
            _log.exception("waking the reader of %s failed", _named(fetcher.scans))
        finally:
            with self._lock:
                fetcher.end_waking()

    def _judge(self, fetcher: Fetcher[SplitT], began_us: int, fetched: dict[SplitScan[SplitT], FetchResult]) -> None:
        """Under the lock: pass on what a fetch brought, and decide when to fetch again."""
        brought = any(part.blocks or part.finished for part in fetched.values())
        nothing = fetcher.judge(brought)
        drains = self.drains_from_us is not None and began_us >= self.drains_from_us
        limit_us = self._host.event_time_limit_us
        for scan, part in fetched.items():
            if scan.is_gone:
                continue
            scan.judge(part, MAX_WATERMARK if limit_us is None else limit_us, others=brought, nothing=nothing)
            scan.is_last = part.finished or (drains and scan.found_nothing)
            if part.blocks or part.emitted or scan.is_last or scan.found_nothing or not brought:
                self._pass_on(PostedFetch(scan, began_us, part, scan.found_nothing, scan.is_last))
        fetcher.stage = Stage.RESTING
        if brought or fetcher.is_wanted:
            self._fetch_soon(fetcher)
        elif self._has_work(fetcher):
            fetcher.stage = Stage.WAITING
            self._calls.workers.submit(partial(self._retry, fetcher, fetcher.fetches), fetcher.next_retry_s())

    def _retry(self, fetcher: Fetcher[SplitT], number: int) -> None:
        with self._lock:
            # It may have been fetched from in the meantime, for a trigger.
            if fetcher.stage is Stage.WAITING and fetcher.fetches == number:
                fetcher.stage = Stage.QUEUED
                self._turns.add(fetcher, quiet=True)
                self._begin_ready()

    def _pass_on(self, arrival: PostedFetch[SplitT]) -> None:
        last = arrival.scan.last_arrival
        if last is not None and last.is_like(arrival) and not arrival.is_last:
            # They do not pile up while the coordinator is busy.
            last.began_us = arrival.began_us
            return
        arrival.scan.last_arrival = arrival
        self._calls.post(partial(self._take_over, arrival))

    # ---- on the coordinator's thread -----------------------------------------------------------------------------

    def _fail(self, fetcher: Fetcher[SplitT], error: BaseException) -> None:
        if not fetcher.is_gone:
            raise error

    def _take_over(self, arrival: PostedFetch[SplitT]) -> None:
        scan, fetched, blocks = arrival.scan, arrival.fetched, arrival.fetched.blocks
        with self._lock:
            if scan.last_arrival is arrival:
                scan.last_arrival = None
        if scan.is_gone:
            return
        split_id = scan.split.split_id
        if blocks:
            # First, since the index loads exact event times of a block that has times which are none.
            with self._lock:
                for block in blocks:
                    scan.seen.append(block)
                scan.untaken -= fetched.rows
            low, high = zip(*(block.bounds() for block in blocks), strict=True)
            self._host.add_blocks(split_id, [*map(len, blocks)], low, high)
        for rows, watermark, is_idle in fetched.emitted:
            scan.seen.add_emitted(fetched.rows - rows, watermark, is_idle)
        if fetched.finished:
            self._host.complete_split(split_id)
        scan.scanned_us = arrival.began_us
        scan.is_done |= arrival.is_last
        if split_id in self._unscanned:
            self._see_backlog(scan, is_caught_up=scan.is_done or (arrival.found_nothing and not blocks))
        if fetched.caught_up is CaughtUp.BLOCKED:
            self._host.engine.apply(SplitsBlocked(frozenset([split_id])))
        elif arrival.found_nothing and not blocks:
            self._host.engine.apply(Probed(arrival.began_us, (split_id,)))

    def _see_backlog(self, scan: SplitScan[SplitT], *, is_caught_up: bool) -> None:
        """A split was scanned further: it holds the watermark no more once all that was there at the start is known."""
        split_id, end = scan.split.split_id, self._unscanned[scan.split.split_id]
        if end is None:
            end = self._unscanned[split_id] = self._host.known_ends.get(split_id)
        if is_caught_up or (end is not None and scan.seen.position_at(scan.seen.end) >= end):
            del self._unscanned[split_id]
            self._hold()

    def _hold(self) -> None:
        self._host.engine.apply(ScanMoved(frozenset(self._unscanned) - self._host.engine.complete))

    def _let_go(self, split_ids: Sequence[str]) -> None:
        gone: list[tuple[Fetcher[SplitT], bool]] = []
        with self._lock:
            for split_id in split_ids:
                scan = self._scans.pop(split_id)
                self._split_ends.forget(split_id)
                self._awaits_probe.discard(split_id)
                self._probed_last.discard(split_id)
                self._unscanned.pop(split_id, None)
                key = self._fetching.key_of(split_id)
                fetcher = self._fetchers[key]
                del fetcher.scans[split_id]
                scan.is_gone = True
                if not fetcher.scans:
                    fetcher.is_gone = True
                    del self._fetchers[key]
                    gone.append((fetcher, fetcher.stage is Stage.FETCHING))
        for fetcher, is_fetching in gone:
            # Closed by the fetch under way when that is over.
            (self._wake_up if is_fetching else self._close)(fetcher)
        self._go_on()

    def _close(self, fetcher: Fetcher[SplitT]) -> None:
        try:
            fetcher.reader.close()
        except Exception:  # it is not needed any more
            _log.exception("closing a reader that reads ahead failed")


def _named(split_ids: Collection[str]) -> str:
    return f"{'split' if len(split_ids) == 1 else 'splits'} {named(split_ids, 5)}"
