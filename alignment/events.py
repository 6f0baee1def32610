"""Events of a source between two plans: they drive an `Engine`.

An event is a frozen value. It has what became known, and processing time where that matters; it does nothing. The
same events in the same order give the same plans, so that a log of them can be replayed. Processing time is in
microseconds since the epoch, from a clock that does not go back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from alignment.explain import WaitsFor
from alignment.plan import SplitTable
from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import LONG_AGO_US, MIN_WATERMARK, Int64Array


@dataclass(frozen=True, slots=True)
class RangeReport:
    """The records of the positions `[start, stop)` of one split, as the reader of that range saw them.

    `gaps` of these positions hold no record. A range that is read twice gives the same report: taking one in twice
    makes no difference. `min_us` and `max_us` are the earliest and latest event time, `NO_TIMESTAMP` if no record has
    one; `late` counts records at or below the watermark that was announced before the micro-batch, `outside` those that
    lie outside of the wanted range. Of a generator of the user's own, or the source: the largest watermark that it
    emitted for these records, whether it marked the split as idle last, and what it goes on from after them
    (`alignment.split_generators.GeneratorState`; empty without one).
    """

    split_id: str
    start: int
    stop: int
    min_us: int = NO_TIMESTAMP
    max_us: int = NO_TIMESTAMP
    late: int = 0
    watermark_us: int = MIN_WATERMARK
    is_idle: bool = False
    state_version: int = 0
    state: str = ""
    gaps: int = 0
    outside: int = 0

    @property
    def records(self) -> int:
        """Return how many records the range has."""
        return self.stop - self.start - self.gaps


@dataclass(frozen=True, slots=True, eq=False)
class Restored:
    """Planning begins, or begins again, from a state; its splits that are finished leave at once.

    `int64[n]` each: `origins`, the position of each split before its first record; `late`, its late records so far;
    `silent_since_us`, since when it has had nothing to read, `LONG_AGO_US` if not known. The source has had no split
    since `empty_since_us`, `LONG_AGO_US` if it has one, or never had one. Where runs are counted, the splits that are
    `overdue` brought nothing in the last run; of those that are `seen` something was read in this one, which goes on;
    the source had no split in the last run if it `was_empty`.
    """

    table: SplitTable
    origins: Int64Array
    late: Int64Array
    silent_since_us: Int64Array
    at_us: int
    empty_since_us: int = LONG_AGO_US
    overdue: frozenset[str] = frozenset()
    seen: frozenset[str] = frozenset()
    was_empty: bool = False


@dataclass(frozen=True, slots=True)
class SplitsAssigned:
    """The enumerator assigned splits: they count at once, from `MIN_WATERMARK`.

    Of each the position of its first unread record, and the one before its first record.
    """

    split_ids: tuple[str, ...]
    positions: tuple[int, ...]
    origins: tuple[int, ...]
    at_us: int


@dataclass(frozen=True, slots=True, eq=False)
class BlocksIndexed:
    """Records of a split are there, after those that were known: `int64[k]` each, see `EventTimeIndex.append`."""

    split_id: str
    rows: Int64Array
    min_us: Int64Array
    max_us: Int64Array
    earliest_us: Int64Array | None = None


@dataclass(frozen=True, slots=True)
class OpaqueBlockIndexed:
    """Records of a split are there of which only the latest event time is known; see `EventTimeIndex.append_opaque`."""

    split_id: str
    rows: int
    max_us: int


@dataclass(frozen=True, slots=True)
class SplitCompleted:
    """No record will be added to a split."""

    split_id: str


@dataclass(frozen=True, slots=True)
class SplitAbandoned:
    """A split no longer exists: its records that are not planned cannot be read, and none will be added."""

    split_id: str


@dataclass(frozen=True, slots=True)
class HorizonMoved:
    """From `event_time_us` on there are records of splits that wait to be assigned; `MAX_WATERMARK`: none waits."""

    event_time_us: int


@dataclass(frozen=True, slots=True)
class NoMoreSplits:
    """No split will be assigned any more."""


@dataclass(frozen=True, slots=True)
class Probed:
    """A look at the outside that began at `at_us` found no more records than are indexed; None for all splits."""

    at_us: int
    split_ids: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class SplitsBlocked:
    """Splits have records that cannot be read yet (an open transaction, say): they are not idle until probed again.

    Whether those that are `unreachable` have records is not known; those that are `unindexed` have some that the index
    does not have yet.
    """

    split_ids: frozenset[str]
    unreachable: frozenset[str] = frozenset()
    unindexed: frozenset[str] = frozenset()

    def waits_for(self) -> dict[str, WaitsFor]:
        """Return what each of the splits waits for."""
        waits_for = dict.fromkeys(self.unindexed, WaitsFor.RECORDS)
        waits_for |= dict.fromkeys(self.split_ids, WaitsFor.TRANSACTION)
        return waits_for | dict.fromkeys(self.unreachable, WaitsFor.SOURCE)


@dataclass(frozen=True, slots=True)
class ScanMoved:
    """Records of the `unscanned` splits were found whose event times are not indexed yet; of all others none.

    They hold the watermark, whatever their event times are.
    """

    unscanned: frozenset[str]


@dataclass(frozen=True, slots=True)
class RangesReported:
    """Readers report the ranges that they read."""

    reports: tuple[RangeReport, ...]


@dataclass(frozen=True, slots=True)
class GroupLimitMoved:
    """The other sources of the alignment group let this one read up to `limit_us`; `MAX_WATERMARK`: no limit."""

    limit_us: int


@dataclass(frozen=True, slots=True)
class IdleWatermarkMoved:
    """While none of its splits counts, the source announces `watermark_us` at least: it follows others of its query."""

    watermark_us: int


@dataclass(frozen=True, slots=True)
class SourceWatermarkMoved:
    """The source emits a watermark for all its splits: no record that it finds from now on is at or before it.

    But late ones. What it has found already and is unread may be. It is the `writer` that is no further: the checkpoint
    of a query; None if that is not known.
    """

    watermark_us: int
    writer: str | None = None


@dataclass(frozen=True, slots=True)
class TimeLimitMoved:
    """Event times of unread records from `limit_us` on are invalid: such records move no watermark."""

    limit_us: int


@dataclass(frozen=True, slots=True)
class DrainStarted:
    """From now on only what is known to be there is read (AvailableNow); at the processing time `at_us`."""

    at_us: int


@dataclass(frozen=True, slots=True)
class EmitPeriodElapsed:
    """The generators of splits are to be called without records."""

    at_us: int


@dataclass(frozen=True, slots=True)
class Planned:
    """An entry of the log: `Engine.plan` was called with these arguments."""

    now_us: int
    max_rows: int | None
    min_rows: int | None = None
    waits_until_us: int = LONG_AGO_US


@dataclass(frozen=True, slots=True)
class LookedAhead:
    """An entry of the log: `Engine.lookahead` was called, which may have loaded event times."""

    max_rows: int | None
    knows_all: bool = True


@dataclass(frozen=True, slots=True)
class PlanCommitted:
    """An entry of the log: the last plan was committed."""


Event: TypeAlias = (
    Restored
    | SplitsAssigned
    | BlocksIndexed
    | OpaqueBlockIndexed
    | SplitCompleted
    | SplitAbandoned
    | HorizonMoved
    | NoMoreSplits
    | Probed
    | SplitsBlocked
    | ScanMoved
    | RangesReported
    | GroupLimitMoved
    | IdleWatermarkMoved
    | SourceWatermarkMoved
    | TimeLimitMoved
    | DrainStarted
    | EmitPeriodElapsed
)
