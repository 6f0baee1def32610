"""The memory of a source between two micro-batches, who reads what lies between, and what the user decided."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import numpy as np

from alignment.combine import SplitStatus
from alignment.event_time_range import EventTimeRange
from alignment.plan import PlanningRules, WatermarkTable
from alignment.strategy import WatermarkStrategy
from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import LONG_AGO_US, MAX_WATERMARK, Int64Array
from streaming_source.api import Source, SplitRange
from streaming_source.api.split import SplitT

if TYPE_CHECKING:
    import numpy.typing as npt

    from alignment.split_generators import GeneratorState

CheckpointT = TypeVar("CheckpointT")

MOST_PARTS: Final = 10_000
"""Parts of one range, each a task of Spark."""


@dataclass(frozen=True, slots=True)
class RunState:
    """The splits that a run that ends by itself (AvailableNow) has brought until now, where runs are counted.

    The splits that are `silent` brought nothing in it, and count: they are idle in the next run that brings nothing of
    them either. The source had no split in it if it `is_empty`. Once it `has_ended` the next one begins.
    """

    silent: frozenset[str]
    is_empty: bool
    has_ended: bool


@dataclass(frozen=True, slots=True)
class SourceState(Generic[SplitT, CheckpointT]):
    """A source between two micro-batches; what an offset has.

    `sequence` counts the states of a query, 0 being the one before its first micro-batch. `splits` and `table` are
    those in work and those that the last micro-batch finished, in order of their ids. `int64[n]` each: `late`, their
    records that came at or below the announced watermark so far; `silent_since_us`, the processing time since which
    each has had nothing left to read, `LONG_AGO_US` where it had something, or that is not known: it decides alone
    when a split is idle after a restart. `checkpoint` is what the enumerator remembers, None before it has started.

    `routed` late records were taken out of the frame so far, of all splits that ever were, and left to the query that
    reads `late_records`. So far `outside` records lay outside of the wanted range, as far as their event times were
    known to the planner. `generators` is what the watermark generator of each split goes on from, where the table does
    not say that; empty without one. Event times from `time_limit_us` on are invalid in the micro-batch that leads to
    this state: by the wall clock when it was planned, and `maxFutureSkew`; None without that option. `left_out` counts
    the splits that the last micro-batch finished and that are not here but follow from the checkpoint, and their
    records: a state that comes of an offset. The source has had no split in work since `empty_since_us`, by
    processing time; `LONG_AGO_US` if it has one, or never had one. `run` is that in which the state was planned; None
    where runs are not counted.
    """

    sequence: int
    splits: tuple[SplitT, ...]
    table: WatermarkTable
    late: Int64Array
    silent_since_us: Int64Array
    checkpoint: CheckpointT | None
    routed: int = 0
    outside: int = 0
    generators: tuple[GeneratorState | None, ...] = ()
    time_limit_us: int | None = None
    left_out: tuple[int, int] = (0, 0)
    empty_since_us: int = LONG_AGO_US
    run: RunState | None = None

    @classmethod
    def initial(cls) -> SourceState[SplitT, CheckpointT]:
        return cls(0, (), WatermarkTable.empty(), np.empty(0, np.int64), np.empty(0, np.int64), None)

    @property
    def has_ended(self) -> bool:
        """True if all splits of a bounded source are finished, and no more will come."""
        return self.checkpoint is not None and self.table.combined == MAX_WATERMARK and not self.unfinished()

    def at_slots(self, slots: Sequence[int] | npt.NDArray[np.intp]) -> SourceState[SplitT, CheckpointT]:
        """The same of some of its splits alone. O(n)."""
        table, places = self.table, np.asarray(slots, np.intp)
        part = WatermarkTable(
            split_ids=tuple(table.split_ids[slot] for slot in places),
            watermarks=table.watermarks[places],
            statuses=table.statuses[places],
            combined=table.combined,
        )
        return replace(
            self,
            splits=tuple(self.splits[slot] for slot in places),
            table=part,
            late=self.late[places],
            silent_since_us=self.silent_since_us[places],
            generators=tuple(self.generators[slot] for slot in places) if self.generators else (),
        )

    def as_written(self, source: Source[SplitT, CheckpointT]) -> SourceState[SplitT, CheckpointT]:
        """Return what an offset has of it: without finished splits that follow from the enumerator's checkpoint."""
        if self.checkpoint is None or not source.names_finished(self.checkpoint):
            return self
        # Those with late records are needed to route these again.
        left_out = (self.table.statuses == SplitStatus.FINISHED) & (self.late == 0)
        rows = sum(self.splits[slot].position for slot in np.flatnonzero(left_out))
        known, known_rows = self.left_out
        return replace(
            self.at_slots(np.flatnonzero(~left_out)),
            left_out=(known + int(np.count_nonzero(left_out)), known_rows + rows),
        )

    def unfinished(self) -> list[SplitT]:
        statuses = zip(self.splits, self.table.statuses, strict=True)
        return [split for split, status in statuses if status != SplitStatus.FINISHED]

    def finished(self) -> list[str]:
        """Ids of the splits that the last micro-batch finished."""
        statuses = zip(self.splits, self.table.statuses, strict=True)
        return [split.split_id for split, status in statuses if status == SplitStatus.FINISHED]

    def by_id(self) -> dict[str, SplitT]:
        return dict(zip(self.table.split_ids, self.splits, strict=True))

    def since(self, start: SourceState[SplitT, CheckpointT], *, reads_on: bool = False) -> list[tuple[SplitT, SplitT]]:
        """Each split as it was in an earlier state, or before its first record; and as it is in this one.

        Where a reader `reads_on` it begins before: with what was not reported when this state was planned.
        """
        before = start.by_id()
        pairs = [(before.get(split_id) or split.origin(), split) for split_id, split in self.by_id().items()]
        if not (reads_on and self.generators):
            return pairs
        seen_to = [None if known is None else known.position for known in self.generators]
        return [
            (before if position is None else before.at(position), after)
            for (before, after), position in zip(pairs, seen_to, strict=True)
        ]

    def generators_since(self, start: SourceState[SplitT, CheckpointT]) -> dict[str, tuple[int, GeneratorState | None]]:
        """Return what readers need to give the watermarks of what they read after an earlier state.

        By split id from which position on records are emitted, and what a generator goes on from.
        """
        known = self.generators or [None] * len(self.splits)
        pairs = zip(self.since(start), known, strict=True)
        return {after.split_id: (before.position, generator) for (before, after), generator in pairs}


@dataclass(frozen=True, slots=True)
class ReadRules:
    """The user's decisions; the strategy, and what the planner makes of it.

    Event times from `time_limit_us` on are invalid, and those later than the wall clock by more than
    `max_future_skew_us`. The source `announces` its watermark by rows, so that Spark's own follows it. `group`
    names an alignment group that other sources of the application may be in, all of them `in_one_query` if that is
    set. `late` and `lateness` are the options of these names. It `reports` where event times of a source without an
    index are learnt from what its readers report, and not by reading ahead: of up to `read_ahead_rows` records over all
    splits, 8 bytes each, 16 where positions have gaps. `allow_unaligned` lets it be read ahead with a `SplitReader`
    of several splits that cannot pause any. A micro-batch waits until `min_rows` records are there, but for no
    longer than `max_delay_us` after the last one with records. A bounded source that `ends_twice` announces its end
    once more in a micro-batch of its own. `at_once`: no micro-batch has a limit of rows, and no record comes after the
    first listing.
    """

    strategy: WatermarkStrategy
    planning: PlanningRules
    time_limit_us: int | None = None
    max_future_skew_us: int | None = None
    announces: bool = False
    group: str | None = None
    in_one_query: bool = False
    late: str = "keep"
    lateness: str | None = None
    reports: bool = False
    read_ahead_rows: int = 4_000_000
    allow_unaligned: bool = False
    min_rows: int | None = None
    max_delay_us: int = 0
    ends_twice: bool = False
    at_once: bool = False

    @property
    def times(self) -> EventTimeRange | None:
        """Records whose event times are outside are not wanted; None: all are."""
        return self.planning.times

    @property
    def counts_runs(self) -> bool:
        """True if idleness is counted in runs where they end by themselves: by default, and where a split may wait."""
        may_wait = (self.announces or self.planning.max_drift_us is not None) and not self.planning.bounded
        return may_wait and not (self.strategy.is_idleness_given or self.strategy.uses_source_watermarks)

    @property
    def needs_each_time(self) -> bool:
        """True if no record's event time may be unknown to the planner: late ones are counted, or none may be late."""
        return self.late in ("drop", "route") or self.lateness == "none"

    @property
    def earliest_us(self) -> int:
        """Event times before this are invalid: those before 1970, where those after 3999 are."""
        return NO_TIMESTAMP if self.time_limit_us is None else 0

    def time_limit_at(self, clock_us: int) -> int | None:
        """Event times from here on are invalid while the wall clock shows `clock_us`; None for no limit."""
        if self.max_future_skew_us is None:
            return self.time_limit_us
        limit_us = clock_us + self.max_future_skew_us + 1
        return limit_us if self.time_limit_us is None else min(limit_us, self.time_limit_us)

    def clock_at(self, state: SourceState[SplitT, CheckpointT]) -> int:
        """Return the latest time of the wall clock that a state shows, `LONG_AGO_US` if none.

        It is when the state was planned, if there was a `maxFutureSkew` and it has not changed.
        """
        shown_us = max(int(state.silent_since_us.max(initial=LONG_AGO_US)), state.empty_since_us)
        skew_us, limit_us = self.max_future_skew_us, state.time_limit_us
        if skew_us is None or limit_us is None or limit_us == self.time_limit_us:
            return shown_us
        return max(shown_us, limit_us - skew_us - 1)

    @property
    def needs_event_times(self) -> bool:
        """True if plans depend on the event times of records; see `SplitEnumeratorContext`."""
        is_limited = bool(self.times) or self.planning.max_drift_us is not None
        return not self.at_once or is_limited or self.strategy.makes_own_watermarks

    @property
    def supports_opaque_blocks(self) -> bool:
        """True if watermarks follow from a bound and one event time of each cut; late records are not counted then."""
        return self.planning.out_of_orderness_us is not None and not self.reports and not self.needs_each_time


def rows_per_range(rows: int, readers: int, min_rows: int) -> int:
    """The size of ranges, `min_rows` at least, of which there are as many as readers if there are as many rows."""
    share = -(-rows // readers)
    return max(min_rows, share if -(-rows // max(share, 1)) >= readers else max(rows // readers, 1))


def assign_ranges(
    ranges: Sequence[SplitRange[SplitT]], readers: int, max_rows: int | None = None
) -> list[list[SplitT]]:
    """Give ranges to at most `readers` readers so that each has about as many records; no reader is left empty.

    Largest range first, each to the reader that has least: within 4/3 of the best. O(n log n). Equal input gives equal
    output. Ranges of one split stay in their order within a reader. With `max_rows` no reader of divisible splits has
    more records than that, and there are as many readers as that takes. A range is cut into `MOST_PARTS` at most: its
    positions may have a gap of any width.
    """
    if max_rows is not None:
        ranges = [part for whole in ranges for part in cut_range(whole, max(max_rows, -(-whole.rows // MOST_PARTS)))]
    loads = [(0, reader) for reader in range(min(readers, len(ranges)))]
    assigned: list[list[int]] = [[] for _ in loads]
    for number in sorted(range(len(ranges)), key=lambda n: (-ranges[n].rows, n)):
        rows, reader = heapq.heappop(loads)
        if max_rows is not None and rows and rows + ranges[number].rows > max_rows:
            heapq.heappush(loads, (rows, reader))
            rows, reader = 0, len(assigned)
            assigned.append([])
        assigned[reader].append(number)
        heapq.heappush(loads, (rows + ranges[number].rows, reader))
    return [[ranges[number].split for number in sorted(numbers)] for numbers in assigned]


def one_range_each(ranges: Sequence[SplitT]) -> Iterator[list[SplitT]]:
    """The ranges of one reader in rounds, in each at most one of a split: a reader knows a split by its id."""
    left = list(ranges)
    while left:
        first: dict[str, SplitT] = {}
        for split in left:
            first.setdefault(split.split_id, split)
        yield list(first.values())
        left = [split for split in left if first[split.split_id] is not split]


def cut_range(whole: SplitRange[SplitT], max_rows: int) -> list[SplitRange[SplitT]]:
    """A range in parts of at most so many rows, if its split can be read from any position."""
    split = whole.split
    if whole.rows <= max_rows or not split.is_divisible or split.stop is None:
        return [whole]
    return SplitRange.evenly(split, split.stop, max_rows)
