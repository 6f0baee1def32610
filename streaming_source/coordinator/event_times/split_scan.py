"""Reading ahead in splits: what was fetched of each, and when to fetch again."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import Final, Generic, TypeVar

from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import LONG_AGO_US, Int64Array
from streaming_source.api import CaughtUp
from streaming_source.api.split import SplitT
from streaming_source.coordinator.event_times.ahead_reader import AheadReader, AheadSplit, FetchedBlock, FetchResult
from streaming_source.coordinator.event_times.provider import RecordNumber

_FIRST_RETRY_S: Final = 0.02
_LAST_RETRY_S: Final = 0.5
"""Seconds before what brought nothing is fetched again: later from time to time."""

_FIRST_PATIENCE_S: Final = 0.5
_LAST_PATIENCE_S: Final = 4.0
"""Seconds that a fetch may block before it is woken. When the longest was in vain, there was nothing to fetch."""

_PASSED_OVER: Final = 8
"""Fetch a split alone after it was skipped this many times, and two more for each split."""

_NO_FETCH: Final = 0
_ANY_FETCH: Final = 2**63


class FetchedRecords:
    """The records of one split that were scanned and are in no state yet.

    Positions may have gaps, the index has none: in the index records are *numbered*. The number of the first record is
    the position at which the split was taken over; from then on every record counts one. So a read limit counts
    records, and a gap, however wide, costs nothing.
    """

    def __init__(self, position: int) -> None:
        self._blocks: list[FetchedBlock] = []
        # Number after the last record of each block.
        self._ends: list[int] = []
        self.end = self.committed_to = RecordNumber(position)
        # (position, number) of where a range may begin or end: between blocks, and where states are.
        self._borders: list[tuple[int, int]] = [(position, position)]
        # (number, watermark, is_idle) that the source itself emitted after the record before that number; rising.
        self._emitted: list[tuple[int, int, bool]] = []

    @property
    def unread(self) -> int:
        """Records that were seen and not handed out."""
        return self.end - self.committed_to

    def append(self, block: FetchedBlock) -> None:
        self.end = RecordNumber(self.end + len(block))
        self._blocks.append(block)
        self._ends.append(self.end)
        self._borders.append((block.end, self.end))

    def position_at(self, number: RecordNumber) -> int:
        """Position from which on the record of that number is the next: the one after the record before it. O(log n).

        So a range that stops there has its last record right before the stop.
        """
        i = bisect_left(self._ends, number)
        if i < len(self._ends):
            row = number - 1 - (self._ends[i] - len(self._blocks[i]))
            if row >= 0:
                return self._blocks[i][row] + 1
        return next(position for position, known in self._borders if known == number)

    def add_emitted(self, rows: int, watermark: int, is_idle: bool) -> None:
        """The source emitted this after all records but the last `rows`, after what it emitted before. O(1)."""
        self._emitted.append((self.end - rows, watermark, is_idle))

    def emitted_before(self, number: int) -> tuple[int, bool] | None:
        """Return what the source emitted last after the records before `number`; None if nothing. O(log n)."""
        i = bisect_left(self._emitted, (number + 1,))
        return None if i == 0 else self._emitted[i - 1][1:]

    def blocks(self, first: int, stop: int) -> Iterator[FetchedBlock]:
        """The records of these numbers, without their positions. O(blocks)."""
        for block, end in zip(self._blocks, self._ends, strict=True):
            begin = end - len(block)
            part = slice(max(first - begin, 0), max(stop - begin, 0))
            if len(times := block.times[part]):
                records = None if block.records is None else block.records.slice(part.start, len(times))
                yield FetchedBlock(0, times, records)

    def times(self, first: int, stop: int) -> Int64Array:
        """Event times of the records of these numbers, which are of one block. O(log n)."""
        i = bisect_left(self._ends, stop)
        begin = self._ends[i] - len(self._blocks[i])
        return self._blocks[i].times[first - begin : stop - begin]

    def commit_plan(self, number: RecordNumber) -> None:
        """The records before `number` are in a state that was handed out. O(blocks)."""
        last, self.committed_to = self.committed_to, number
        border = (self.position_at(number), number)
        done = bisect_left(self._ends, number + 1)
        del self._blocks[:done], self._ends[:done]
        del self._emitted[: max(bisect_left(self._emitted, (number + 1,)) - 1, 0)]
        # What lies between the last two states is still to be cut into ranges.
        self._borders = sorted({border, *(known for known in self._borders if known[1] >= last)})

    def cut(self, start: int, stop: int, rows_per_range: int) -> Sequence[tuple[int, int, int]]:
        """The records between two positions as `(start, stop, rows)` of ranges of at least so many rows each.

        As one range where it is not known what lies between, as after a restart: then rows are an estimate. O(blocks).
        """
        borders = [(position, number) for position, number in self._borders if start <= position <= stop]
        if not borders or borders[0][0] != start or borders[-1][0] != stop:
            return [(start, stop, stop - start)]
        chosen = [borders[0]]
        for position, number in borders[1:]:
            if number - chosen[-1][1] >= rows_per_range or position == stop:
                chosen.append((position, number))
        return [(a, b, n - m) for (a, m), (b, n) in pairwise(chosen)]


class SplitScan(Generic[SplitT]):
    """One split. What workers change is guarded by the lock of the `ReadAheadTimes`; `seen` is the coordinator's alone.

    Attributes
    ----------
    scanned_us
        When the last fetch began that the coordinator took over; `LONG_AGO_US` if it took over none.
    is_done
        Whether that was the last one.
    untaken, front_us
        Records fetched, and not taken over; the largest valid event time fetched.
    is_gone, is_last, found_nothing
        The split has left; nothing more will be fetched; the last fetch showed that there was nothing.
    passed_over
        Fetches that brought something of other splits, and do not show whether this one had anything.
    last_arrival
        On its way to the coordinator.
    """

    def __init__(self, ahead: AheadSplit[SplitT]) -> None:
        self.ahead = ahead
        self.seen = FetchedRecords(ahead.split.position)
        self.scanned_us = LONG_AGO_US
        self.is_done = False
        # Guarded by the lock.
        self.untaken = 0
        self.front_us = NO_TIMESTAMP
        self.is_gone = self.is_last = self.found_nothing = False
        self.passed_over = 0
        self.last_arrival: PostedFetch[SplitT] | None = None

    @property
    def split(self) -> SplitT:
        """The split in the state in which it was added."""
        return self.ahead.split

    def judge(self, fetched: FetchResult, time_limit_us: int, *, others: bool, nothing: bool) -> None:
        """A fetch is over; under the lock.

        `fetched` is what it brought of this split, of which event times from the limit on are invalid. It brought
        something of any split (`others`), or showed that there was `nothing` of any. What the reader itself knows, see
        `SplitReader.caught_up`, is right.
        """
        if fetched.blocks:
            self.untaken += fetched.rows
            for block in fetched.blocks:
                valid = block.times[block.times < time_limit_us]
                self.front_us = max(self.front_us, int(valid.max(initial=NO_TIMESTAMP)))
            self.found_nothing = False
        else:
            self.found_nothing = nothing if fetched.caught_up is None else fetched.caught_up is not CaughtUp.NO
        is_passed_over = others and not (fetched.blocks or fetched.finished or fetched.caught_up)
        self.passed_over = self.passed_over + 1 if is_passed_over else 0


class Stage(Enum):
    """The stages of a `Fetcher`; guarded by the lock of the `ReadAheadTimes`."""

    RESTING = "nothing is to be fetched"
    QUEUED = "it is to fetch as soon as there is a place"
    FETCHING = "a fetch is under way"
    WAITING = "it fetches again in a while"
    FAILED = "its reader raised an error"


class Fetcher(Generic[SplitT]):
    """One `SplitReader`, and when to fetch again. All but the reader is guarded by the lock of the `ReadAheadTimes`.

    Attributes
    ----------
    left_out
        Splits that the last fetch left out: they were far ahead when it began, or are newer.
    is_gone
        No split is left, and none will come.
    is_wanted, is_timed
        It is to fetch again as soon as the fetch under way is over; a timer will wake a fetch that blocks.
    fetches
        Begun so far.
    retry_s, patience_s
        How soon to fetch again what brought nothing; how long a fetch may block.
    """

    def __init__(self, reader: AheadReader[SplitT]) -> None:
        self.reader = reader
        self.scans: dict[str, SplitScan[SplitT]] = {}
        self.left_out: list[SplitScan[SplitT]] = []
        self.stage = Stage.RESTING
        self.is_gone = self.is_wanted = self.is_timed = False
        self.fetches = 0
        self.retry_s = _FIRST_RETRY_S
        self.patience_s = _FIRST_PATIENCE_S
        # The last fetch whose patience was over; the last that was woken for its splits; and the last that may return
        # early because one was woken.
        self._impatient = self._interrupted = self._woken_through = _NO_FETCH

    def add(self, split: SplitT) -> SplitScan[SplitT]:
        scan = self.scans[split.split_id] = SplitScan(self.reader.take_over(split))
        self.left_out.append(scan)
        return scan

    def begin(self, scans: Mapping[str, SplitScan[SplitT]], ahead: list[SplitScan[SplitT]]) -> set[str]:
        """A fetch of some splits begins, of which not all are far `ahead`; which of them are paused for it.

        A split that was passed over for long is fetched alone: how a reader of several splits shares its fetches among
        them is its own affair, but none must be starved, nor hold the watermark because its idleness goes unseen.
        """
        self.stage, self.is_wanted, self.left_out = Stage.FETCHING, False, ahead
        self.fetches += 1
        paused = {scan.split.split_id for scan in ahead}
        most = _PASSED_OVER + 2 * len(scans)
        overdue = {i for i, scan in scans.items() if scan.passed_over >= most and i not in paused}
        if not overdue:
            return paused
        for split_id in overdue:
            scans[split_id].passed_over = 0
        # That these have nothing does not show that the others have nothing.
        self.is_wanted = True
        return set(scans) - overdue

    def begin_waking(self, *, impatient: bool) -> None:
        """The fetch under way is about to be woken: since it has blocked for as long as it may, or for its splits."""
        self._woken_through = _ANY_FETCH
        if not impatient:
            self._interrupted = self.fetches
        elif self._interrupted != self.fetches:
            self._impatient = self.fetches

    def end_waking(self) -> None:
        """The wake-up has arrived. Had the fetch returned by then, it is the next fetch that returns at once."""
        self._woken_through = self.fetches + 1

    def judge(self, found: bool) -> bool:
        """A fetch is over: whether there was nothing to fetch. One that was cut short does not show that."""
        if found:
            self.retry_s = _FIRST_RETRY_S
            return False
        if self._impatient != self.fetches:
            return self.fetches > self._woken_through
        waited_enough = self.patience_s >= _LAST_PATIENCE_S
        self.patience_s = min(2 * self.patience_s, _LAST_PATIENCE_S)
        return waited_enough

    def next_retry_s(self) -> float:
        """Return how soon to fetch again after a fetch that brought nothing."""
        retry_s, self.retry_s = self.retry_s, min(2 * self.retry_s, _LAST_RETRY_S)
        return retry_s


@dataclass(slots=True, eq=False)
class PostedFetch(Generic[SplitT]):
    """The result of a fetch of a split, on its way to the coordinator."""

    scan: SplitScan[SplitT]
    began_us: int
    fetched: FetchResult
    found_nothing: bool
    is_last: bool

    def is_like(self, other: PostedFetch[SplitT]) -> bool:
        """Return whether both found nothing, and know the same of it."""
        is_same = self.fetched.caught_up is other.fetched.caught_up and not other.fetched.emitted
        return self.found_nothing and other.found_nothing and is_same


T = TypeVar("T")


class FetchScheduler(Generic[T]):
    """Two queues in front of a number of places: the busy, which brought something last or are new, and the quiet.

    One that is quiet may keep its place for seconds, and in vain. So some of the places, at least 4, are never given to
    the quiet; and one never to the busy, which always come back for more.
    """

    def __init__(self, places: int) -> None:
        self._places = places
        self._queues: tuple[deque[T], deque[T]] = (deque(), deque())
        self._at_most = (places - 1, places - 2)
        self._taken = [0, 0]

    def add(self, item: T, *, quiet: bool = False) -> None:
        self._queues[quiet].append(item)

    def take(self) -> tuple[T, bool] | None:
        """The next item, and whether it is quiet; None if none may begin. Its place is free after `leave`. O(1)."""
        if sum(self._taken) < self._places:
            for quiet, queue in enumerate(self._queues):
                if queue and self._taken[quiet] < self._at_most[quiet]:
                    self._taken[quiet] += 1
                    return queue.popleft(), bool(quiet)
        return None

    def leave(self, *, quiet: bool) -> None:
        """A turn is over; `quiet` as `take` returned it."""
        self._taken[quiet] -= 1
