"""Everything that a source knows between two micro-batches, owned by one pure state machine.

Theory of operation
===================

**Three calls change an engine.** `apply` takes an event: something became known. `plan` chooses what the next
micro-batch reads, at a processing time. `commit` accepts the last plan. The engine has no clock and does no I/O but
loading the event times where a cut falls, and knows no connector: the same calls in the same order lead to the same
state, and `alignment.recording` replays them.

**Each fact has one owner.** The `table` has the next position of each split in work, the watermark that follows from
its own records, and its status; and the announced watermark. Only a commit moves positions. The `index` has the unread
records with their event times. If readers report, it has only the ends of splits, and the `ReactivePlanner` has the
reports. The `idle_clock` has since when splits have had nothing to read, and when they were probed. `SplitGenerators`
have the watermarks that follow from no bound. The fields of the engine have the rest: which splits get no more records,
the horizon, the limit of the alignment group.

**The life of a split.** It is *assigned*, and counts from the next plan on, from `MIN_WATERMARK`. It is *active*,
*paused* or *idle*, as each plan concludes. It is *complete* once no record will be added, *finished* by the plan that
reads the last one, and leaves with the commit of that plan. Nothing is remembered of a split that left: one that is
assigned with the same id later is new.

**The life of a plan.** It is a function of the state and of the call's arguments. A plan without news (`has_news`) is
dropped: the next one begins from the same table. When a split joins, the last plan can no longer be committed, since
the new split counts.

**Why commit and plan are two calls.** Between them the coordinator makes the state that Spark writes to its offset log.
A plan whose state is written is read; any other plan has no effect. A restart begins from a state with `Restored`, and
the same events are applied again.

**What always holds** is in `validate`, which tests call after each step.

**It could be better.** Any event makes a plan due, also one that cannot change it. An explanation is computed anew
after each event.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import replace
from typing import TYPE_CHECKING, assert_never

import numpy as np

from alignment import events
from alignment.combine import SplitStatus
from alignment.exceptions import DuplicateSplitError
from alignment.explain import Bounds, Explanation, WaitsFor, explain_splits
from alignment.idle_clock import IdleClock
from alignment.index import EventTimeIndex
from alignment.plan import MicroBatchPlan, PlanConditions, PlanningRules, SplitTable, total
from alignment.plan.by_index import awaits_scan, look_ahead, plan_micro_batch, read_to_their_ends, times_to_load
from alignment.watermarks import LONG_AGO_US, MAX_WATERMARK, MIN_WATERMARK, BoolArray, Int64Array, saturating_add

if TYPE_CHECKING:
    from alignment.groups import Lookahead
    from alignment.plan.by_reports import ReactivePlanner
    from alignment.split_generators import SplitGenerators


class Engine:
    """One source: its splits in work, their unread records, and the announced watermark.

    Parameters
    ----------
    index
        Event times of what is unread; empty. It is filled by events.
    idle_timeout_us
        After how long without anything to read a split is idle; None for never.
    counts_runs
        Whether runs are counted instead where they end by themselves (AvailableNow); see `IdleClock`.
    reactive
        Plans by the reports of readers instead of by the index, which then has only the ends of splits.
    generators
        Generate the watermarks of splits; None if these follow from a bound on out-of-orderness.
    record
        Called with each event, plan and commit, for a log that can be replayed; see `alignment.recording`.

    Notes
    -----
    The `table` has the splits in work and the announced watermark, without those that the last plan finished; `late`
    (`int64[n]`) counts the records of each split that came at or below it. No record will be added to `complete`
    splits; `abandoned` ones among them have no more records to read. Of `unscanned` splits more records are there than
    the index has. Splits that wait to be assigned have records from
    `horizon_us` on, `MAX_WATERMARK` if none waits. Not thread-safe: one thread at a time. An event costs O(1)
    amortised, but a split that is abandoned O(m + n).
    """

    def __init__(
        self,
        rules: PlanningRules,
        index: EventTimeIndex,
        *,
        idle_timeout_us: int | None = None,
        counts_runs: bool = False,
        reactive: ReactivePlanner | None = None,
        generators: SplitGenerators | None = None,
        record: Callable[[object], None] | None = None,
    ) -> None:
        self.rules = rules
        self.index = index
        self.table = SplitTable.empty()
        self.late: Int64Array = np.empty(0, np.int64)
        self.last_plan: MicroBatchPlan | None = None
        self._record = record
        self._pending: MicroBatchPlan | None = None
        # Both are of the state since the last event, plan or commit.
        self._explained: Explanation | None = None
        self._to_load: tuple[int | None, list[tuple[str, int, int]]] | None = None
        self._reactive = reactive
        self._generators = generators
        self.idle_clock = IdleClock(idle_timeout_us, counts_runs=counts_runs)
        # Of the last committed plan: a plan that differs from it has news for Spark.
        self._announced = SplitTable.empty()
        # Assigned since the last plan: position, origin, and when.
        self._joining: dict[str, tuple[int, int, int]] = {}
        self.complete: set[str] = set()
        self.abandoned: set[str] = set()
        self.unscanned: frozenset[str] = frozenset()
        self.horizon_us: int = MAX_WATERMARK
        self._group_limit_us: int = MAX_WATERMARK
        self._idle_watermark_us: int = MIN_WATERMARK
        # What the source has emitted for all its splits.
        self._source_us: int = MIN_WATERMARK
        self._writer: str | None = None
        self._no_more_splits = False
        # Since when only what is there is read (AvailableNow); None otherwise.
        self._drains_from_us: int | None = None
        self._changed = False
        self._planned_us = self._stands_since_us = 0
        self._max_rows: int | None = None
        self._min_rows: int | None = None
        # When the last plan's wait for more rows is over, in processing time; `MAX_WATERMARK` if it did not wait.
        self.reads_at_us: int = MAX_WATERMARK

    # ---- events --------------------------------------------------------------------------------------------------

    def apply(self, event: events.Event) -> None:
        """Apply an event to the state.

        Raises a `DuplicateSplitError` if a split is assigned that is in work, an `UnknownSplitError` if records of a
        split are indexed that is not in work.
        """
        if isinstance(event, events.SplitsAssigned):
            self._check_new(event.split_ids)
        self._note(event)
        match event:
            case events.BlocksIndexed():
                if event.split_id not in self.abandoned:
                    self.index.append(event.split_id, event.rows, event.min_us, event.max_us, event.earliest_us)
                    self._find(event.split_id)
            case events.OpaqueBlockIndexed():
                if event.split_id not in self.abandoned:
                    self.index.append_opaque(event.split_id, event.rows, event.max_us)
                    self._find(event.split_id)
            case events.Probed():
                probed = None if event.split_ids is None else self._in_work(event.split_ids)
                self.idle_clock.probe(event.at_us, probed)
            case events.SplitsBlocked():
                waits_for = event.waits_for()
                self.idle_clock.blocked |= {split_id: waits_for[split_id] for split_id in self._in_work(waits_for)}
            case events.ScanMoved():
                self._changed |= event.unscanned != self.unscanned
                self.unscanned = frozenset(self._in_work(event.unscanned))
            case events.RangesReported():
                self._take_reports(event.reports)
            case events.SplitsAssigned():
                self._assign(event)
            case events.SplitCompleted():
                self._complete_split(event.split_id)
            case events.SplitAbandoned():
                self._abandon(event.split_id)
            case events.NoMoreSplits():
                self._changed |= not self._no_more_splits
                self._no_more_splits = True
            case events.HorizonMoved():
                self._changed |= event.event_time_us != self.horizon_us
                self.horizon_us = event.event_time_us
            case events.GroupLimitMoved():
                self._changed |= event.limit_us != self._group_limit_us
                self._group_limit_us = event.limit_us
            case events.IdleWatermarkMoved():
                self._changed |= event.watermark_us > self._idle_watermark_us
                self._idle_watermark_us = event.watermark_us
            case events.SourceWatermarkMoved():
                self._changed |= event.watermark_us > self._source_us
                self._source_us, self._writer = max(event.watermark_us, self._source_us), event.writer
            case events.TimeLimitMoved():
                self._settle()
                self.index.limit_times(event.limit_us, self.table.positions)
            case events.EmitPeriodElapsed():
                self._settle()
                if self._generators is not None:
                    self._changed |= self._generators.emit(self.table, event.at_us)
            case events.DrainStarted():
                self._drains_from_us, self._changed = event.at_us, True
            case events.Restored():
                self._restore(event)
            case _:
                assert_never(event)

    def _restore(self, event: events.Restored) -> None:
        self.index.remove(self.index.split_ids)
        self._joining.clear()
        self.abandoned.intersection_update(event.table.split_ids)
        self.complete = set(self.abandoned)
        self.unscanned = frozenset()
        self._no_more_splits = False
        self.horizon_us = MAX_WATERMARK
        self._source_us, self._writer = MIN_WATERMARK, None
        self.last_plan = self._pending = None
        self.reads_at_us = MAX_WATERMARK
        self._stands_since_us = event.at_us
        self._announced = self.table = event.table
        self.late = event.late
        self.idle_clock.begin(
            event.table.statuses,
            event.origins,
            event.silent_since_us,
            event.at_us,
            event.empty_since_us,
            overdue=_are_in(event.table.split_ids, event.overdue),
            silent=~_are_in(event.table.split_ids, event.seen),
            was_empty=event.was_empty,
        )
        if self._reactive is not None:
            self._reactive.splits.rewind(event.table)
        if self._generators is not None:
            self._generators.begin(event.table, event.at_us)
        for split_id, position in zip(event.table.split_ids, event.table.positions.tolist(), strict=True):
            self.index.add_split(split_id, position)
        self._leave_finished()
        self._changed = True

    def _check_new(self, split_ids: Sequence[str]) -> None:
        # All of them or none: whoever goes on after the error must not find half of them in work.
        counts = Counter(split_ids)
        if known := [split_id for split_id, times in counts.items() if times > 1 or split_id in self.index]:
            raise DuplicateSplitError(f"split {known[0]!r} is in work already; assign it once, after it has left")

    def _assign(self, event: events.SplitsAssigned) -> None:
        for split_id, position, origin in zip(event.split_ids, event.positions, event.origins, strict=True):
            self.index.add_split(split_id, position)
            self._joining[split_id] = position, origin, event.at_us
        self._changed = True

    def _find(self, split_id: str) -> None:
        self.idle_clock.find(split_id)
        self._changed = True

    def _in_work(self, split_ids: Iterable[str]) -> list[str]:
        """Return the splits that are in work: events of other splits have no effect."""
        return [split_id for split_id in split_ids if split_id in self.index]

    def _complete_split(self, split_id: str) -> None:
        if split_id in self.index:
            self.complete.add(split_id)
            self.unscanned -= {split_id}
            self._changed = True

    def _abandon(self, split_id: str) -> None:
        if split_id not in self.index:
            return
        self._settle()
        self.abandoned.add(split_id)
        slot = self.table.split_ids.index(split_id)
        self.index.forget_unread(split_id, int(self.table.positions[slot]))
        self._complete_split(split_id)

    def _take_reports(self, reports: Sequence[events.RangeReport]) -> None:
        assert self._reactive is not None, "readers report where there is an index"
        # `sum`, not `any`: every report must be taken.
        self._changed |= sum(self._reactive.splits.report(report) for report in reports) > 0
        if self._generators is not None:
            self._changed |= sum(self._generators.take_report(report) for report in reports) > 0

    # ---- plans ---------------------------------------------------------------------------------------------------

    @property
    def emits_at_us(self) -> int:
        """When the generators are called next without records; `MAX_WATERMARK` for never. O(1)."""
        return MAX_WATERMARK if self._generators is None else self._generators.emits_at_us

    @property
    def is_due(self) -> bool:
        """True if a plan may differ from the last one: something changed, or a split may have become idle. O(1)."""
        return self._changed or self.idle_clock.is_due()

    def plan(
        self,
        now_us: int,
        max_rows: int | None = None,
        *,
        min_rows: int | None = None,
        waits_until_us: int = LONG_AGO_US,
    ) -> MicroBatchPlan:
        """Plan the next micro-batch at a processing time; see `commit`.

        `max_rows` is a read limit of at least 1, None for no limit. If there are fewer than `min_rows`, and more may
        come, no row is read before `waits_until_us`; statuses and the watermark are still planned.
        """
        self._settle()
        if self._record is not None:
            self._record(events.Planned(now_us, max_rows, min_rows, waits_until_us))
        self._explained, self._to_load, self._changed = None, None, False
        self._max_rows, self._min_rows = max_rows, min_rows
        holds_rows = min_rows is not None and now_us < waits_until_us and self._waits_for_rows(min_rows)
        self.reads_at_us = waits_until_us if holds_rows else MAX_WATERMARK
        given = self._given(max_rows, holds_rows=holds_rows)
        before, _, _, conditions = given
        ends = self.index.ends()
        if self._reactive is None:
            plan = plan_micro_batch(*given, None if self._generators is None else self._generators.advance)
        else:
            plan = self._reactive.plan(before, ends, conditions)
        self.idle_clock.track(self.table.positions < ends, plan.after.statuses, now_us)
        if self._idle_watermark_us > plan.after.combined and self.status_after(plan) is SplitStatus.IDLE:
            plan = replace(plan, after=replace(plan.after, combined=self._idle_watermark_us))
        self._pending, self._planned_us = plan, now_us
        if self._record is not None:
            self._record(plan)
        return plan

    def awaits_scan(self, max_rows: int | None, min_rows: int | None = None) -> bool:
        """Return whether the next plan surely awaits the scan; see `MicroBatchPlan`. O(n log m), nothing is loaded."""
        self._settle()
        if self.unscanned and min_rows is not None and total(self.unread()) < min_rows:
            return True
        return awaits_scan(*self._given(max_rows))

    def times_to_load(self, max_rows: int | None) -> list[tuple[str, int, int]]:
        """Return `(split_id, first, end)` of the blocks that the next plan will probably load.

        O(n log m) once after each event, plan or commit, else O(1).
        """
        self._settle()
        if self._to_load is None or self._to_load[0] != max_rows:
            self._to_load = max_rows, times_to_load(*self._given(max_rows))
        return self._to_load[1]

    def status_after(self, plan: MicroBatchPlan) -> SplitStatus:
        """Return what the source itself is after the last plan: active, idle or finished. O(n).

        It is idle if none of its splits counts, or if it has had none for the idle timeout; see `IdleClock`.
        """
        if plan.after.combined == MAX_WATERMARK:
            return SplitStatus.FINISHED
        if plan.slowest_us is not None or self.horizon_us < MAX_WATERMARK:
            return SplitStatus.ACTIVE
        is_idle = (plan.after.statuses == SplitStatus.IDLE).any()
        if is_idle or self.idle_clock.is_empty_source_idle(self._drains_from_us):
            return SplitStatus.IDLE
        return SplitStatus.ACTIVE

    def lookahead(self, max_rows: int | None = None, *, knows_all: bool = True) -> Lookahead | None:
        """Return how far the next plan gets by this source's own rules; None if readers report. See `look_ahead`.

        If it `knows_all` records of a run (AvailableNow), splits without more records do not count.
        """
        if self._reactive is not None:
            return None
        self._settle()
        if self._record is not None:
            self._record(events.LookedAhead(max_rows, knows_all))
        before, index, rules, conditions = self._given(max_rows)
        return look_ahead(before, index, rules, replace(conditions, draining=conditions.draining and knows_all))

    def read_to_their_ends(self, max_rows: int) -> frozenset[str] | None:
        """Return splits that the next plan reads to their ends; None where these alone have `max_rows` records.

        As long as it is not None, more splits can be assigned. O(n log m); nothing is loaded.
        """
        self._settle()
        read = read_to_their_ends(*self._given(None))
        if total(self._records_behind(self.table)[read]) >= max_rows:
            return None
        return frozenset(self.table.split_ids[slot] for slot in np.flatnonzero(read))

    def _given(
        self, max_rows: int | None, *, holds_rows: bool = False
    ) -> tuple[SplitTable, EventTimeIndex, PlanningRules, PlanConditions]:
        """Return what the next plan is a function of, as `plan_micro_batch` takes it."""
        before = self.table if self._generators is None else self._generators.raised(self.table)
        marked = None if self._generators is None else self._generators.idle(self.table.split_ids)
        idle = self.idle_clock.idle(self.table, self._drains_from_us, marked)
        unscanned = self._among(self.unscanned) if self.unscanned else None
        conditions = PlanConditions(
            max_rows=max_rows,
            group_limit_us=self._group_limit_us,
            source_us=self._source_us,
            horizon_us=self.horizon_us,
            idle=idle if unscanned is None else idle & ~unscanned,
            complete=self._among(self.complete),
            unscanned=unscanned,
            no_more_splits=self._no_more_splits,
            draining=self._drains_from_us is not None,
            holds_rows=holds_rows,
        )
        return before, self.index, self.rules, conditions

    def _waits_for_rows(self, min_rows: int) -> bool:
        """Return whether there are too few rows, and more may come. Beyond a horizon more are known to exist."""
        has_all = self._no_more_splits and self.complete.issuperset(self.table.split_ids)
        if self._drains_from_us is not None or self.horizon_us < MAX_WATERMARK or has_all:
            return False
        return 0 < total(self.unread()) < min_rows

    def has_news(self, plan: MicroBatchPlan) -> bool:
        """Return whether a plan changes anything for Spark. A split that is paused is no news. O(n)."""
        after, before = plan.after, self.table
        return bool(
            (after.positions > before.positions).any()
            or plan.late.any()
            or plan.outside > 0
            or after.combined != self._announced.combined
            or after.split_ids != self._announced.split_ids
            or any(
                ((after.statuses == left) != (before.statuses == left)).any()
                for left in (SplitStatus.IDLE, SplitStatus.FINISHED)
            )
        )

    def commit(self, plan: MicroBatchPlan) -> list[str]:
        """Accept the last plan, and return the ids of the splits that it finished: these leave. O(m + n)."""
        assert plan is self._pending, "only the last plan can be committed, and once"
        self._note(events.PlanCommitted())
        self.last_plan, self._pending = plan, None
        if plan.after.combined > self.table.combined:
            self._stands_since_us = self._planned_us
        self.late = self.late + plan.late
        if self._generators is not None and self._reactive is not None:
            # As the reports of these records would, if they arrive.
            self._generators.mark_active(self.table.split_ids, plan.after.positions > self.table.positions)
        self.table = plan.after
        finished = self._leave_finished()
        self._announced = self.table
        self.index.forget_before(self.table.positions)
        # A read limit may have left more records.
        self._changed = True
        return finished

    # ---- what is known -------------------------------------------------------------------------------------------

    def unread(self) -> Int64Array:
        """Return how many known records of each split are in no committed plan, `int64[n]`. O(n).

        If readers report, and positions have gaps, this is a prediction.
        """
        self._settle()
        return self._records_behind(self.table)

    def _records_behind(self, table: SplitTable) -> Int64Array:
        ends = self.index.ends()
        return ends - table.positions if self._reactive is None else self._reactive.records_in(table, ends)

    def silent_since_us(self, plan: MicroBatchPlan) -> Int64Array:
        """Return since when each split has nothing to read, once the last plan is committed, `int64[n]`. O(n).

        `LONG_AGO_US` for a split that has something to read, or is finished.
        """
        after = plan.after
        is_silent = (after.positions == self.index.ends()) & (after.statuses != SplitStatus.FINISHED)
        return np.where(is_silent, self.idle_clock.caught_up_us, LONG_AGO_US)

    def silent_in_run(self, table: SplitTable) -> frozenset[str]:
        """Return the splits of the table after the last plan that brought nothing in this run, and still count. O(n).

        None of them where runs are not counted. One that never had a record holds nothing, and one that is blocked may
        have some.
        """
        clock = self.idle_clock
        if self._drains_from_us is None or not clock.counts_runs:
            return frozenset()
        waits = clock.silent & (table.statuses == SplitStatus.ACTIVE) & (table.positions > clock.origins)
        silent = [table.split_ids[slot] for slot in np.flatnonzero(waits)]
        return frozenset([split_id for split_id in silent if split_id not in clock.blocked])

    def readable_splits(self) -> int:
        """Return how many splits have something to read. O(n)."""
        return int(np.count_nonzero(self.unread()))

    def nearest_us(self) -> int | None:
        """Return the smallest event time of the next records of all splits; None if nothing is unread. O(n log n).

        Without an index it is the smallest limit with which the source can go on, see `SplitTable.slowest_unread`.
        """
        self._settle()
        ends = self.index.ends()
        if self._reactive is not None:
            # Reports count, also if the plan after them had no news.
            return (self.table if self._pending is None else self._pending.after).slowest_unread(ends)
        return self.index.nearest_time(self.table.positions) if (self.table.positions < ends).any() else None

    def available(self) -> dict[str, tuple[int, int]]:
        """Return the next position of each split, and the end of its known records. O(n).

        Splits that were assigned since the last plan are not in it.
        """
        ends = dict(zip(self.index.split_ids, self.index.ends().tolist(), strict=True))
        at = zip(self.table.split_ids, self.table.positions.tolist(), strict=True)
        return {split_id: (position, ends[split_id]) for split_id, position in at}

    def unreported(self) -> Sequence[str]:
        """Return the splits whose planned records are not all reported; none if there is an index. O(n)."""
        return () if self._reactive is None else self._reactive.splits.unreported()

    def explain(self, now_us: int) -> Explanation:
        """Explain why the watermark stands where it does, after the last plan, at a processing time.

        O(n) once after each event, plan or commit, else O(1).
        """
        self._settle()
        if self._explained is None:
            self._explained = self._explain()
        return replace(self._explained, at_us=now_us)

    def _explain(self) -> Explanation:
        plan, table, late = self.last_plan, self.table, self.late
        if self._pending is not None:
            plan = self._pending
            table, late = plan.after, late + plan.late
        holds_us = table.watermarks
        if plan is not None:
            holds_us = plan.holds_us
            if table.split_ids != plan.after.split_ids:
                held = dict(zip(plan.after.split_ids, holds_us.tolist(), strict=True))
                own = zip(table.split_ids, table.watermarks.tolist(), strict=True)
                holds_us = np.array([held.get(split_id, watermark) for split_id, watermark in own], np.int64)
        bound_us = MAX_WATERMARK if plan is None else plan.bound_us
        drift_us = self.rules.max_drift_us
        next_us = self.index.far_next_times(table.positions, saturating_add(bound_us, drift_us or 0))
        behind = self._records_behind(self.table)
        columns = (holds_us, self.table.positions, behind, self.idle_clock.caught_up_us, late, next_us)
        unreported = frozenset(self.unreported())
        blocked = dict.fromkeys(self.unscanned, WaitsFor.SCAN) | self.idle_clock.blocked
        splits = explain_splits(plan, table, columns, blocked, unreported, self._group_limit_us)
        if silent := self.silent_in_run(table):
            splits = tuple([one._replace(missed_run=True) if one.split_id in silent else one for one in splits])
        return Explanation(
            watermark=table.combined,
            at_us=self._stands_since_us,
            stands_since_us=self._stands_since_us,
            splits=splits,
            bound_us=bound_us,
            horizon_us=self.horizon_us,
            bounds=Bounds(
                self.rules.out_of_orderness_us, drift_us, self.idle_clock.timeout_us, self._max_rows, self._min_rows
            ),
            is_draining=self._drains_from_us is not None,
            reads_at_us=self.reads_at_us,
            probed_us=self.idle_clock.last_probe_us,
            counts_runs=self._drains_from_us is not None and self.idle_clock.counts_runs,
            # Else what was found and is unread holds the watermark.
            upstream=self._writer if self._source_us <= table.combined else None,
        )

    def validate(self) -> None:
        """Assert what always holds; for tests. O(n log n)."""
        table, n = self.table, len(self.table)
        assert list(table.split_ids) == sorted(set(table.split_ids)), table.split_ids
        assert len(table.positions) == len(table.watermarks) == len(table.statuses) == n, table
        assert self.late.shape == (n,), (self.late, n)
        assert (self.late >= 0).all(), self.late
        assert len(self.idle_clock) == n, (len(self.idle_clock), n)
        assert not (table.statuses == SplitStatus.FINISHED).any(), table
        assert set(self.index.split_ids) == {*table.split_ids, *self._joining}, (self.index.split_ids, table.split_ids)
        assert self._joining.keys().isdisjoint(table.split_ids), (self._joining, table.split_ids)
        assert self.abandoned <= self.complete, (self.abandoned, self.complete)
        # Nothing is remembered of what left.
        assert self.complete <= set(self.index.split_ids), (self.complete, self.index.split_ids)
        assert self.unscanned <= set(self.index.split_ids) - self.complete, (self.unscanned, self.complete)
        assert self.idle_clock.split_ids() <= set(self.index.split_ids), (self.idle_clock.split_ids(), table.split_ids)
        if self._generators is not None:
            assert self._generators.split_ids() <= set(table.split_ids), (self._generators.split_ids(), table.split_ids)
        known_end = dict(zip(self.index.split_ids, self.index.ends().tolist(), strict=True))
        for split_id, position in zip(table.split_ids, table.positions.tolist(), strict=True):
            assert position <= known_end[split_id], (split_id, position, known_end[split_id])
        assert table.combined >= self._announced.combined, (table.combined, self._announced.combined)
        if self._reactive is not None:
            self._reactive.splits.check_invariants()
            assert self._reactive.splits.split_ids() <= set(table.split_ids), (table.split_ids, "knows others")

    def _note(self, entry: events.Event | events.PlanCommitted) -> None:
        self._explained = self._to_load = None
        if self._record is not None:
            self._record(entry)

    def _settle(self) -> None:
        """Add the splits that were assigned since the last plan to the table. O(n log n)."""
        if not self._joining:
            return
        positions, origins, times = map(list, zip(*self._joining.values(), strict=True))
        self.table, order = self.table.joined(self._joining, positions)
        self.late = np.append(self.late, np.zeros(len(origins), np.int64))[order]
        self.idle_clock.add(origins, times, order)
        self._joining.clear()
        # The last plan was made without them.
        self._pending = self._explained = None

    def _leave_finished(self) -> list[str]:
        table, keep, finished = self.table.without_finished()
        if not finished:
            return []
        self.table = table
        self.late = self.late[keep]
        self.idle_clock.keep(keep, finished)
        self.index.remove(finished)
        if self._reactive is not None:
            self._reactive.splits.forget(finished)
        if self._generators is not None:
            self._generators.forget(finished)
        self.complete.difference_update(finished)
        self.abandoned.difference_update(finished)
        return finished

    def _among(self, split_ids: Set[str]) -> BoolArray:
        return _are_in(self.table.split_ids, split_ids)


def _are_in(split_ids: Sequence[str], wanted: Set[str]) -> BoolArray:
    if not wanted:
        return np.zeros(len(split_ids), np.bool_)
    return np.fromiter((split_id in wanted for split_id in split_ids), np.bool_, len(split_ids))
