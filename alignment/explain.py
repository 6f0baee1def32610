"""The state of a source from which it follows why the watermark stands where it does."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property, partial
from typing import Annotated, Final, NamedTuple

from alignment.arrow_times import micros_of, time_text
from alignment.codec import Form, Wire
from alignment.combine import SplitStatus
from alignment.durations import format_duration, parse_duration_us
from alignment.plan import LimitedBy, MicroBatchPlan, SplitTable
from alignment.sentence import day_or_moment, named
from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import LONG_AGO_US, MAX_WATERMARK, MIN_WATERMARK, Int64Array


def _status_of(text: str) -> SplitStatus:
    return SplitStatus[text.upper()]


_TIME: Final = Form(time_text, micros_of)
_DURATION: Final = Form(format_duration, partial(parse_duration_us, name="duration"))
_SHARE: Final = Form(partial(round, ndigits=3), float)
_STATUS: Final = Form([status.name.lower() for status in SplitStatus].__getitem__, _status_of)
_METRICS: Final = Form(
    lambda metrics: {name: str(value) for name, value in metrics},
    lambda found: tuple([(name, int(value)) for name, value in found.items()]),
)
ROUTE: Final = Form(lambda routes: "route" if routes else None, lambda written: written == "route")
_STATUSES: Final = tuple(SplitStatus)
_COUNTING: Final = (SplitStatus.ACTIVE, SplitStatus.PAUSED)
FUTURE_US = 15 * 60 * 1_000_000
"""Event times may be so much later than the clock here: clocks differ, time zones by more than that."""

_LONG_BATCH_US = 10_000_000
"""A micro-batch that takes less is not why a watermark stands."""

_MOST = 0.8
"""Share of the time of a query: one that spends more on its micro-batches is never done with them."""


class WaitsFor(StrEnum):
    """Things that a split waits for."""

    NOTHING = "nothing"
    RECORDS = "records"
    SOURCE = "source"
    TRANSACTION = "transaction"
    REPORT = "report"
    DRIFT = "drift"
    ROWS = "rows"
    MIN_ROWS = "minRows"
    GROUP = "group"
    HORIZON = "horizon"
    SCAN = "scan"


class Cause(StrEnum):
    """Why the watermark is not further: in one word, for programs. `streaming_source.monitoring.causes` decides it."""

    FAILED = "failed"
    STOPPED = "stopped"
    MICRO_BATCH = "microBatch"
    UNREAD = "unread"
    NOTHING = "nothing"
    ENDED = "ended"
    NO_SPLITS = "noSplits"
    ALL_IDLE = "allIdle"
    SILENT = "silent"
    EMPTY = "empty"
    INVALID = "invalid"
    SOURCE = "source"
    TRANSACTION = "transaction"
    REPORT = "report"
    FUTURE = "future"
    EARLIER = "earlier"
    DRIFT = "drift"
    ROWS = "rows"
    MIN_ROWS = "minRows"
    GROUP = "group"
    HORIZON = "horizon"
    SCAN = "scan"
    SLOWEST = "slowest"
    UPSTREAM = "upstream"


@dataclass(frozen=True, slots=True)
class Bounds:
    """The user's decisions, in microseconds, and the read limits of the last plan; None where nothing is."""

    out_of_orderness_us: Annotated[int | None, Wire("maxOutOfOrderness", _DURATION)] = None
    max_drift_us: Annotated[int | None, Wire("maxDrift", _DURATION)] = None
    idle_timeout_us: Annotated[int | None, Wire("idleTimeout", _DURATION)] = None
    max_rows: Annotated[int | None, Wire("maxRowsPerTrigger")] = None
    min_rows: Annotated[int | None, Wire("minRowsPerTrigger")] = None


@dataclass(frozen=True, slots=True)
class GroupMember:
    """Another source of the alignment group, which sets the limit.

    `pid` is the process of its planner, `watermark` that of its slowest split that counts. Its last report came at
    `reported_us`, and counts until `until_us` if no other comes, both in processing time.
    """

    group: Annotated[str, Wire("name")]
    source: str
    pid: int
    watermark: Annotated[int, Wire(form=_TIME, absent=MIN_WATERMARK)]
    reported_us: Annotated[int, Wire("reportedAt", _TIME)]
    until_us: Annotated[int, Wire("countsUntil", _TIME)]

    def is_overdue(self, at_us: int) -> bool:
        """Return whether it has missed a report: it reports several times in the time for which one counts."""
        return at_us - self.reported_us > (self.until_us - self.reported_us) // 3


@dataclass(frozen=True, slots=True)
class LastBatch:
    """The last micro-batch that was planned: its records of this source, and when; None for what is not known.

    It is done since `done_us`, None while it is not: that is when it was committed, or the next one could be planned.
    Of the time before it the query spent the `share` on the micro-batch before: 1.0 if it planned this one at once.
    `number` is Spark's.
    """

    planned_us: Annotated[int, Wire("plannedAt", _TIME)]
    rows: int | None = None
    done_us: Annotated[int | None, Wire("doneAt", _TIME)] = None
    share: Annotated[float | None, Wire(form=_SHARE)] = None
    number: int | None = None


@dataclass(frozen=True, slots=True)
class QueryEnd:
    """The query does not run any more: the first line of its `error`, None if it has none; and when it ended.

    Where that is not known, `at_us` is None. Of a checkpoint it is known by the end of its planner, the process `pid`;
    or concluded from a micro-batch that is missing: one would announce that the split `overdue` has become idle.
    Whether the checkpoint `is_gone` is None where that is not known. The process `other_pid` goes on with it. A run
    that ends by itself (AvailableNow) `was_cut_off` where it had not come to its end. If its planner `was_killed` there
    is nothing in the error to mend.
    """

    error: str | None = None
    at_us: int | None = None
    overdue: str | None = None
    pid: int | None = None
    is_gone: bool | None = None
    other_pid: int | None = None
    was_cut_off: bool = False
    was_killed: bool = False


class FarRecord(NamedTuple):
    """A record whose event time stands out: that time, and where it is."""

    time_us: Annotated[int, Wire("time", _TIME)]
    place: str


class SplitExplanation(NamedTuple):
    """One split in work: a tuple, since each trigger makes one for each split.

    Its `watermark` is its own, `MIN_WATERMARK` before its first record; `holds_us` where it holds that of the source:
    the same, but of a split of which nothing was read yet, or with perfect watermarks, just below its smallest unread
    event time, where that is known. `behind` records are known to be there and not read; `late` ones came at or below
    the announced watermark, so far. `silent_since_us` is the processing time since which it has had nothing to read;
    None if it has, or that is not known. `next_us` is the event time of its next record, where that is further beyond
    the bound than another drift, else None; `place` where that record is, as the connector calls it, if it does.
    `locked` records are there that cannot be read yet, of transactions that are open. Of a split without a watermark
    `invalid` positions were read, and no record there has an event time. `far` is the record that brought its watermark
    into the future, where it did and that is known. `is_outlier` if the record at `next_us` is far from those of its
    own split around it. `earlier` is its earliest record that is not read, where that holds the watermark and is
    further behind than the bound on out-of-orderness foresees. It `missed_run` if it brought nothing in a run that ends
    by itself, and counts: it is idle in the next one that brings nothing of it either. Its first late record came when
    it `was_idle`, where that is known. Its record
    `stray` is further behind than any bound can cover: it is dated wrongly.
    """

    split_id: Annotated[str, Wire("id")]
    status: Annotated[SplitStatus, Wire(form=_STATUS)]
    watermark: Annotated[int, Wire(form=_TIME, absent=MIN_WATERMARK)]
    holds_us: Annotated[int, Wire("holds", _TIME, absent=MIN_WATERMARK, always=True)]
    position: int
    behind: Annotated[int, Wire("rowsBehind")]
    waits_for: Annotated[WaitsFor, Wire("waitsFor")]
    silent_since_us: Annotated[int | None, Wire("silentSince", _TIME)] = None
    late: Annotated[int, Wire("rowsLate")] = 0
    next_us: Annotated[int | None, Wire("nextRecord", _TIME)] = None
    place: str | None = None
    locked: Annotated[int, Wire("rowsLocked")] = 0
    invalid: int = 0
    far: Annotated[FarRecord | None, Wire("farRecord")] = None
    is_outlier: Annotated[bool, Wire("isOutlier")] = False
    earlier: Annotated[FarRecord | None, Wire("earlierRecord")] = None
    missed_run: Annotated[bool, Wire("missedRun")] = False
    was_idle: Annotated[bool, Wire("wasIdle")] = False
    stray: Annotated[FarRecord | None, Wire("strayRecord")] = None

    @property
    def next_place(self) -> str:
        """The place of its next record."""
        return self.place or f"position {self.position}"

    @property
    def counts(self) -> bool:
        """True if it holds the watermark."""
        return self.status in _COUNTING


@dataclass(frozen=True)
class Explanation:
    """A source between two micro-batches; times in microseconds.

    The announced `watermark` has not moved since `stands_since_us`, and all this is so at `at_us`, both in processing
    time. No record later than the bound is in the last plan, and splits that wait to be assigned have none earlier than
    the horizon; `MAX_WATERMARK` for none. If it `is_draining` only what was there when the run began is read
    (AvailableNow), and nothing becomes idle in it; whether idleness `counts_runs` there, and not time. `group` is the
    source that splits wait for that wait for their alignment group; None where none does, or it is not known. Rows that
    wait until `bounds.min_rows` of them are there are read at `reads_at_us` at the latest, in processing time;
    `MAX_WATERMARK` if none wait for that. `batch` is the last micro-batch, `end` that of the query; None where neither
    is known. The query last looked for records at `probed_us`: that a split is silent is known up to then; None for up
    to `at_us`. `reads` is in words what the source reads: a path, a pattern, topics. `away` is in words why splits
    cannot be reached that wait for the source, and since when; None where that is not known. With a bound of
    `needed_bound_us` no record would have been late that a split delivered while it was read; None where that is not
    known. `metrics` are numbers of the source, by name. If it `routes_late`, a query of its own reads late records.
    `upstream` is the checkpoint of the query that wrote what is read here, where that query holds the watermark; else
    None.
    """

    watermark: Annotated[int, Wire(form=_TIME, absent=MIN_WATERMARK)]
    at_us: Annotated[int, Wire("at", _TIME)]
    stands_since_us: Annotated[int, Wire("standsSince", _TIME)]
    splits: Annotated[tuple[SplitExplanation, ...], Wire("-")] = ()
    bound_us: Annotated[int, Wire("limit", _TIME)] = MAX_WATERMARK
    horizon_us: Annotated[int, Wire("horizon", _TIME)] = MAX_WATERMARK
    bounds: Annotated[Bounds, Wire(always=True)] = field(default=Bounds())
    is_draining: Annotated[bool, Wire("availableNow")] = False
    group: GroupMember | None = None
    reads_at_us: Annotated[int, Wire("readsAt", _TIME)] = MAX_WATERMARK
    batch: LastBatch | None = None
    end: Annotated[QueryEnd | None, Wire("-")] = None
    probed_us: Annotated[int | None, Wire("probedAt", _TIME)] = None
    reads: str | None = None
    away: str | None = None
    needed_bound_us: Annotated[int | None, Wire("neededBound", _DURATION)] = None
    metrics: Annotated[tuple[tuple[str, int], ...], Wire(form=_METRICS)] = ()
    routes_late: Annotated[bool, Wire("late", ROUTE)] = False
    upstream: str | None = None
    counts_runs: Annotated[bool, Wire("countsRuns")] = False

    @property
    def waits_for_group(self) -> bool:
        """True if the alignment group sets the limit."""
        return any(split.waits_for is WaitsFor.GROUP for split in self.splits)

    @cached_property
    def counting(self) -> tuple[SplitExplanation, ...]:
        """The splits that count. O(n)."""
        return tuple([split for split in self.splits if split.status in _COUNTING])

    @cached_property
    def holders(self) -> tuple[SplitExplanation, ...]:
        """The splits that hold the watermark: all that count and hold it lowest. O(n).

        Where these only wait at the limit, it is those instead that set the limit, unless the next record of the others
        is far beyond it; where splits hold the watermark that are not assigned yet, none.
        """
        lowest = _lowest(self.counting)
        if lowest and self.horizon_us <= lowest[0].holds_us:
            return ()
        if earlier := tuple(split for split in lowest if split.earlier is not None):
            return earlier
        stuck = tuple(split for split in lowest if split.next_us is not None)
        return stuck or self._first_away(self.setters or lowest)

    @staticmethod
    def _first_away(holders: tuple[SplitExplanation, ...]) -> tuple[SplitExplanation, ...]:
        """Those first that go on only when the source is back."""
        return tuple(sorted(holders, key=lambda split: split.waits_for is not WaitsFor.SOURCE))

    @cached_property
    def setters(self) -> tuple[SplitExplanation, ...]:
        """The splits that set the limit of the others: the lowest of those that do not wait at it."""
        return _lowest([split for split in self.counting if split.waits_for is not WaitsFor.DRIFT])

    @property
    def held_by(self) -> tuple[str, ...]:
        """Ids of the `holders`."""
        return tuple(split.split_id for split in self.holders)

    @property
    def is_in_the_future(self) -> bool:
        """True if the watermark is later than the clock, by more than clocks differ."""
        return self.at_us + FUTURE_US < self.watermark < MAX_WATERMARK

    @property
    def furthest_in_the_future(self) -> SplitExplanation | None:
        """The split with the latest watermark, if that is later than the clock: the watermark may still follow it."""
        latest = max(self.splits, key=lambda split: split.watermark, default=None)
        if latest is None or not self.at_us + FUTURE_US < latest.watermark < MAX_WATERMARK:
            return None
        return latest

    @cached_property
    def silent_since_us(self) -> int | None:
        """Processing time since which no split that counts has had anything to read; None if one has."""
        since_us = [split.silent_since_us for split in self.counting if split.waits_for is WaitsFor.RECORDS]
        known_us = [us for us in since_us if us is not None]
        return max(known_us) if known_us and len(known_us) == len(self.counting) else None

    @property
    def batch_takes_us(self) -> int | None:
        """Return how long the last micro-batch has taken, where that is why the watermark is not further; else None.

        One that is not done, and is planned for long; or one that took long, of a query that does nothing else.
        """
        batch = self.batch
        if batch is None:
            return None
        took_us = (self.at_us if batch.done_us is None else batch.done_us) - batch.planned_us
        is_slow = batch.done_us is None or (batch.share or 0.0) >= _MOST
        return took_us if is_slow and took_us >= _LONG_BATCH_US else None

    def idle_at_us(self, split: SplitExplanation) -> int | None:
        """Processing time at which a split is idle if nothing comes; None if it is not going to be."""
        if (self.end is not None and not self.is_draining) or self.counts_runs:
            return None
        timeout_us, since_us = self.bounds.idle_timeout_us, split.silent_since_us
        waits = split.status is SplitStatus.ACTIVE and split.waits_for in (WaitsFor.RECORDS, WaitsFor.REPORT)
        return since_us + timeout_us if waits and timeout_us is not None and since_us is not None else None

    @property
    def late(self) -> int:
        """Late records of all splits in work."""
        return sum(split.late for split in self.splits)


def _lowest(splits: Sequence[SplitExplanation]) -> tuple[SplitExplanation, ...]:
    lowest_us = min([split.holds_us for split in splits], default=MAX_WATERMARK)
    return tuple([split for split in splits if split.holds_us == lowest_us])


def silent_in_run(explanation: Explanation) -> str | None:
    """That splits brought nothing in a run that counts runs, and what waits for them; None where nothing does. O(n)."""
    silent = [split for split in explanation.splits if split.missed_run and split.counts]
    held_us = min([split.holds_us for split in silent], default=MAX_WATERMARK)
    if explanation.watermark == MAX_WATERMARK or all(split.holds_us <= held_us for split in explanation.splits):
        return None
    from_us = max(held_us, explanation.watermark)
    windows = "all windows wait" if from_us == MIN_WATERMARK else f"windows from {day_or_moment(from_us + 1)} on wait"
    ids, them = named([split.split_id for split in silent]), "them" if silent[1:] else "it"
    return f"{ids} brought nothing in this run: {windows} for {them} until the next one."


def explain_splits(
    plan: MicroBatchPlan | None,
    table: SplitTable,
    columns: Sequence[Int64Array],
    blocked: Mapping[str, WaitsFor],
    unreported: Collection[str],
    group_limit_us: int,
) -> tuple[SplitExplanation, ...]:
    """Explain the splits of a table after the last plan, None before any. O(n).

    The `columns`, `int64[n]` each: where the splits hold the watermark of the source; their next positions, and how
    many records are known to be there from these on; since when they have had nothing to read, `LONG_AGO_US` where that
    is not known; their late records; and the event time of their next records, `NO_TIMESTAMP` where it is not known or
    not far beyond the bound. `blocked` cannot be read now, and wait for that; the readers of the `unreported` have not
    reported all that they read.
    """
    limited_by, bound_us = (None, MAX_WATERMARK) if plan is None else (plan.limited_by, plan.bound_us)
    limit = _limit(limited_by, is_group=bound_us == group_limit_us < MAX_WATERMARK)
    splits = []
    lists: Iterable[list[int]] = (column.tolist() for column in (table.watermarks, *columns))
    for split_id, status, watermark, holds, position, behind, since, late, following in zip(
        table.split_ids, table.statuses.tolist(), *lists, strict=True
    ):
        waits_for, silent_since_us, next_us = limit, None, None
        if behind == 0:
            waits_for = WaitsFor.REPORT if split_id in unreported else WaitsFor.RECORDS
            silent_since_us = since if since > LONG_AGO_US else None
        if blocked.get(split_id, WaitsFor.RECORDS) is not WaitsFor.RECORDS:
            waits_for = blocked[split_id]
        if waits_for is WaitsFor.DRIFT and following > NO_TIMESTAMP:
            next_us = following
        of_reading = (position, behind, waits_for, silent_since_us, late, next_us)
        splits.append(SplitExplanation(split_id, _STATUSES[status], watermark, holds, *of_reading))
    return tuple(splits)


def _limit(limited_by: LimitedBy | None, *, is_group: bool) -> WaitsFor:
    """Why a split that has something to read is not read further."""
    if limited_by in (LimitedBy.ROWS, LimitedBy.MIN_ROWS):
        return WaitsFor.ROWS if limited_by is LimitedBy.ROWS else WaitsFor.MIN_ROWS
    if is_group:
        return WaitsFor.GROUP
    if limited_by is LimitedBy.HORIZON:
        return WaitsFor.HORIZON
    return WaitsFor.DRIFT if limited_by in (LimitedBy.DRIFT, LimitedBy.GAP) else WaitsFor.NOTHING
