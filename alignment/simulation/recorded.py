"""A workload that a query had, from its event log: what was there when, planned once more with other settings.

The events of the log drive an engine as they drove that of the query, one difference aside: its settings. It plans when
the query planned, and when the log is over it goes on until nothing more is read.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from alignment.engine import Engine
from alignment.events import (
    BlocksIndexed,
    DrainStarted,
    Event,
    LookedAhead,
    OpaqueBlockIndexed,
    PlanCommitted,
    Planned,
    Probed,
    Restored,
    SplitsAssigned,
)
from alignment.exceptions import InvalidArgumentError
from alignment.index import EventTimeIndex
from alignment.plan import MicroBatchPlan, PlanningRules, SplitTable
from alignment.recording import EngineStarted, Loaded, Located, as_of_a_log, last_engine, log_files
from alignment.simulation.trace import Comparison, Settings, SimulatedStep, SourceTrace, TraceColumns, combinations
from alignment.split_generators import WatermarkEmitted
from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import MAX_WATERMARK, MIN_WATERMARK, Int64Array

_MOST_RECORDS: Final = 10**8
_NO_EVENTS: Final = (EngineStarted, LookedAhead, MicroBatchPlan, PlanCommitted, Loaded, Located, WatermarkEmitted)


class RecordedWorkload:
    """The last run of a query in its event log, from the `entries` of one engine.

    Event times are those of the log, which has them exactly where the planner loaded them, so of blocks of records that
    a micro-batch ended in. Of other blocks it has bounds: there they are taken to rise evenly from one to the other,
    unless `known` has the records of such a block, all of them and within its bounds: for each split its positions,
    rising, and the event times at these. `settings` are those of the query; so many `records` were there, of which the
    event times of some are `estimated`. An `InvalidArgumentError` if the query planned by reports of its readers, or
    with watermarks of the user's own.
    """

    def __init__(
        self, entries: Sequence[Any], known: Mapping[str, tuple[Int64Array, Int64Array]] | None = None
    ) -> None:
        started: EngineStarted = entries[0]
        plans = [entry for entry in entries if isinstance(entry, Planned)]
        if started.by_reports or started.generates or not plans:
            why = (
                "of a query with indexing=off, which learns event times as it reads: record one without that option"
                if started.by_reports
                else "of a query whose watermarks no maxOutOfOrderness gives: record one with that option"
                if started.generates
                else "of a query that planned nothing: let it read for a while"
            )
            raise InvalidArgumentError(f"the event log cannot be played with other settings: it is {why}")
        # What was planned before it went back to an earlier state is planned again.
        begins = max(at for at, entry in enumerate(entries) if isinstance(entry, Restored))
        entries = [*(entry for entry in entries[:begins] if isinstance(entry, DrainStarted)), *entries[begins:]]
        self._entries = entries
        self._rules = started.rules
        # Of a query without an idleTimeout; one that is tried is counted in processing time.
        self._counts_runs = started.counts_runs
        self._times = _RecordedTimes(entries, {} if known is None else known)
        bound_us = started.rules.out_of_orderness_us
        assert bound_us is not None, "only a generator goes without a bound"
        self.settings = Settings(
            max_drift_us=started.rules.max_drift_us,
            out_of_orderness_us=bound_us,
            idle_timeout_us=started.idle_timeout_us,
            max_rows=plans[-1].max_rows,
        )
        self.records, self.estimated = self._times.records, self._times.estimated

    @classmethod
    def of_log(cls, path: str | Path, known: Mapping[str, tuple[Int64Array, Int64Array]] | None = None) -> Self:
        """That of a file, or of a folder with one: what option `eventLog` names. An error for none, or several."""
        logs = log_files(Path(path))
        if logs[1:]:
            names = ", ".join(sorted(log.name for log in logs))
            raise InvalidArgumentError(f"{path} has {len(logs)} event logs ({names}): give the one that is meant")
        with logs[0].open(encoding="utf-8") as lines, as_of_a_log():
            return cls(last_engine(lines), known)

    @as_of_a_log()
    def compare(self, **varied: Any) -> Comparison:
        """Return what it comes to with its own settings, and with others: see `combinations`, whose keywords these are.

        Examples
        --------
        >>> print(RecordedWorkload.of_log("log").compare(max_drift=["1 minute", "none"]))  # doctest: +SKIP
        """
        workload = f"{self.records:,} recorded records of {self._times.splits:,} splits"
        if self.estimated:
            workload += f", the event times of {self.estimated:,} estimated"
        workload += ".\nThe first row has the settings of the query"
        return Comparison.of(self.play, [self.settings, *combinations(self.settings, **varied)], workload)

    def play(self, settings: Settings) -> SourceTrace:
        """Play the query with these settings. O(records), and a plan for each of its plans."""
        counts_runs = self._counts_runs and settings.idle_timeout_us == self.settings.idle_timeout_us
        run = _Run(self._rules, self.settings, settings, self._times, counts_runs=counts_runs)
        for entry in self._entries:
            if isinstance(entry, Planned):
                # The query itself planned again when its micro-batch was done. So does one with other settings.
                while run.step(entry.now_us) and settings != self.settings:
                    pass
            elif not isinstance(entry, _NO_EVENTS):
                run.apply(entry)
        while run.step(run.now_us):
            pass
        return run.trace()


class _Run:
    """The engine of a query, with other settings."""

    def __init__(
        self,
        rules: PlanningRules,
        recorded: Settings,
        settings: Settings,
        times: _RecordedTimes,
        *,
        counts_runs: bool,
    ) -> None:
        self._settings, self._times = settings, times
        self._shift_us = recorded.out_of_orderness_us - settings.out_of_orderness_us
        self._is_another = settings != recorded
        self.now_us = 0
        self._began_us: int | None = None
        self._engine = Engine(
            replace(rules, out_of_orderness_us=settings.out_of_orderness_us, max_drift_us=settings.max_drift_us),
            EventTimeIndex(self._load, locate=self._locate, wanted=rules.times),
            idle_timeout_us=settings.idle_timeout_us,
            counts_runs=counts_runs,
        )
        self._columns, self._held = TraceColumns(), np.empty(0, np.int64)
        # What the query did not read ahead, for its maxDrift, comes later in the log than a wider one would read it.
        self._is_known = recorded.max_drift_us is None or (
            settings.max_drift_us is not None and settings.max_drift_us <= recorded.max_drift_us
        )

    def apply(self, event: Event) -> None:
        if isinstance(event, Restored):
            event = replace(event, table=self._shifted(event.table))
        self._engine.apply(event)
        if self._is_another and isinstance(event, Probed) and self._engine.idle_clock.is_due():
            # The query had no reason to plan then.
            self.step(event.at_us)

    def step(self, now_us: int) -> bool:
        """Plan, and read what is planned; whether Spark would have had a micro-batch of it."""
        engine = self._engine
        self.now_us = now_us
        plan = engine.plan(now_us, self._settings.max_rows)
        if not engine.has_news(plan):
            return False
        before = engine.table
        self._began_us = now_us if self._began_us is None else self._began_us
        ranges = zip(before.split_ids, before.positions.tolist(), plan.after.positions.tolist(), strict=True)
        read = [self._times.between(split_id, start, stop) for split_id, start, stop in ranges if start < stop]
        held = np.concatenate([self._held, *read])
        self._held = held[held > before.combined]
        engine.commit(plan)
        # From where an estimated time decided, a real query may read other records: those so far are late in any case.
        late, began_us = int(plan.late.sum()) if self._is_known else 0, self._began_us
        self._columns.add(SimulatedStep(now_us - began_us, before, plan, plan.after.watermarks, late, self._held.size))
        return True

    def trace(self) -> SourceTrace:
        unread = int(self._engine.unread().sum())
        has_ended = self._engine.table.combined == MAX_WATERMARK
        # Of opaque blocks the engine counts no late records.
        is_exact = self._is_known and not self._times.has_opaque
        return self._columns.trace(unread=unread, has_ended=has_ended, is_exact=is_exact)

    def _load(self, split_id: str, start: int, stop: int) -> Int64Array:
        """Return event times that the engine loads: a cut, or the number of late records, depends on them."""
        self._is_known &= self._times.is_exact(split_id, start, stop)
        return self._times.between(split_id, start, stop)

    def _locate(
        self, split_ids: Sequence[str], starts: Int64Array, stops: Int64Array, bound_us: int
    ) -> tuple[Int64Array, Int64Array]:
        ranges = zip(split_ids, starts.tolist(), stops.tolist(), strict=True)
        self._is_known &= all(self._times.is_exact(*one) for one in ranges)
        return self._times.first_later(split_ids, starts, stops, bound_us)

    def _shifted(self, table: SplitTable) -> SplitTable:
        """A state as it would be had the query always run with this bound."""

        def shifted(watermarks: Int64Array) -> Int64Array:
            is_time = (watermarks > MIN_WATERMARK) & (watermarks < MAX_WATERMARK)
            return watermarks + np.where(is_time, self._shift_us, 0)

        return replace(
            table, watermarks=shifted(table.watermarks), combined=int(shifted(np.array([table.combined]))[0])
        )


def _check_records(count: int) -> None:
    if not 0 <= count <= _MOST_RECORDS:
        raise InvalidArgumentError(
            f"the event log is of {count:,} records, and the event times of {_MOST_RECORDS:,} at most are simulated: "
            "record a shorter run"
        )


class _Block(NamedTuple):
    """The bounds of some records: numbers from `start` to `stop`, and event times, `low_us` if it is known."""

    start: int
    stop: int
    low_us: int
    high_us: int


class _RecordedTimes:
    """Event times of all records in a log, some of them estimated."""

    def __init__(self, entries: Sequence[Any], known: Mapping[str, tuple[Int64Array, Int64Array]]) -> None:
        self._first: dict[str, int] = {}
        self._ends: dict[str, int] = {}
        self._blocks: dict[str, list[_Block]] = defaultdict(list)
        self.has_opaque = any(isinstance(entry, OpaqueBlockIndexed) for entry in entries)
        self._points: dict[str, dict[int, int]] = defaultdict(dict)
        self._loaded: dict[str, dict[int, Int64Array]] = defaultdict(dict)
        for entry in entries:
            self._take(entry)
        for split_id, (positions, times) in known.items():
            if split_id in self._ends:
                self._fill(split_id, positions, times)
        self._starts = {split_id: sorted(loaded) for split_id, loaded in self._loaded.items()}
        self._known = {
            split_id: tuple(np.array(column, np.int64) for column in zip(*sorted(points.items()), strict=True))
            for split_id, points in self._points.items()
        }
        self.splits = len(self._ends)
        self.records = sum(end - self._first[split_id] for split_id, end in self._ends.items())
        _check_records(self.records)
        ranges = ((split_id, self._first[split_id], end) for split_id, end in self._ends.items())
        self.estimated = sum(int(np.count_nonzero(~self._exact(*one)[1])) for one in ranges)

    def between(self, split_id: str, start: int, stop: int) -> Int64Array:
        """`int64[stop - start]`. O(log m) and a step for each record."""
        times = np.full(stop - start, NO_TIMESTAMP)
        if split_id in self._known:
            positions, known = self._known[split_id]
            risen = np.interp(np.arange(start, stop), positions, (known - known[0]).astype(np.float64))
            times = np.rint(risen).astype(np.int64) + known[0]
        exact, is_exact = self._exact(split_id, start, stop)
        return np.where(is_exact, exact, times)

    def is_exact(self, split_id: str, start: int, stop: int) -> bool:
        """Return whether no event time of a range is estimated."""
        return bool(self._exact(split_id, start, stop)[1].all())

    def _exact(self, split_id: str, start: int, stop: int) -> tuple[Int64Array, npt.NDArray[np.bool_]]:
        """Return the event times of a range, and which of them are exact. O(log m), and a step for each record."""
        times, is_exact = np.full(stop - start, NO_TIMESTAMP), np.zeros(stop - start, bool)
        loaded, starts = self._loaded[split_id], self._starts.get(split_id, [])
        for first in starts[max(bisect_right(starts, start) - 1, 0) : bisect_right(starts, stop - 1)]:
            exact = loaded[first]
            begin, end = max(start, first), min(stop, first + exact.size)
            if begin < end:
                times[begin - start : end - start] = exact[begin - first : end - first]
                is_exact[begin - start : end - start] = True
        return times, is_exact

    def _fill(self, split_id: str, positions: Int64Array, times: Int64Array) -> None:
        """Take the event times of the blocks of which all records are there, and within the bounds of the log."""
        if not self.has_opaque:
            # Numbers have no gaps: they begin with the position of the first record, see `alignment.events`.
            first = self._first[split_id]
            times = times[positions >= first]
            positions = np.arange(first, first + times.size)
        for block in self._blocks[split_id]:
            begin, end = np.searchsorted(positions, [block.start, block.stop]).tolist()
            found = times[begin:end]
            low_us, high_us = int(found.min(initial=MAX_WATERMARK)), int(found.max(initial=NO_TIMESTAMP))
            is_low = block.low_us in (low_us, NO_TIMESTAMP) or self.has_opaque
            if found.size == block.stop - block.start and is_low and block.high_us == high_us:
                self._loaded[split_id].setdefault(block.start, found)

    def first_later(
        self, split_ids: Sequence[str], starts: Int64Array, stops: Int64Array, bound_us: int
    ) -> tuple[Int64Array, Int64Array]:
        """See `alignment.index.FirstLater`."""
        positions, found = stops.copy(), np.full(stops.size, NO_TIMESTAMP)
        for at, (split_id, start, stop) in enumerate(zip(split_ids, starts.tolist(), stops.tolist(), strict=True)):
            times = self.between(split_id, start, stop)
            later = np.flatnonzero(times > bound_us)[:1]
            positions[at], found[at] = (start + later[0], times[later[0]]) if later.size else (stop, NO_TIMESTAMP)
        return positions, found

    def _take(self, entry: Any) -> None:
        if isinstance(entry, Restored):
            self._begin(entry.table.split_ids, entry.table.positions.tolist())
        elif isinstance(entry, SplitsAssigned):
            self._begin(entry.split_ids, entry.positions)
        elif isinstance(entry, BlocksIndexed):
            for rows, low, high in np.column_stack((entry.rows, entry.min_us, entry.max_us)).tolist():
                start, stop = self._extend(entry.split_id, rows)
                self._blocks[entry.split_id].append(_Block(start, stop, low, high))
                if high == NO_TIMESTAMP:
                    self._loaded[entry.split_id][start] = np.full(rows, NO_TIMESTAMP)
                else:
                    self._points[entry.split_id] |= {start: high if low == NO_TIMESTAMP else low, stop - 1: high}
        elif isinstance(entry, OpaqueBlockIndexed):
            start, stop = self._extend(entry.split_id, entry.rows)
            self._blocks[entry.split_id].append(_Block(start, stop, NO_TIMESTAMP, entry.max_us))
            self._points[entry.split_id][stop - 1] = entry.max_us
        elif isinstance(entry, Loaded):
            self._loaded[entry.split_id][entry.start] = entry.times
        elif isinstance(entry, Located):
            columns = (entry.starts.tolist(), entry.positions.tolist(), entry.times.tolist())
            for split_id, start, position, time in zip(entry.split_ids, *columns, strict=True):
                points = self._points[split_id]
                if time != NO_TIMESTAMP:
                    points[position] = time
                if position > start:
                    # So the same question gets the same answer.
                    points[position - 1] = min(points.get(position - 1, MAX_WATERMARK), entry.bound_us)

    def _begin(self, split_ids: Sequence[str], positions: Sequence[int]) -> None:
        for split_id, position in zip(split_ids, positions, strict=True):
            self._ends[split_id] = position
            self._first.setdefault(split_id, position)

    def _extend(self, split_id: str, rows: int) -> tuple[int, int]:
        _check_records(rows)
        start = self._ends[split_id]
        self._ends[split_id] += rows
        return start, self._ends[split_id]
