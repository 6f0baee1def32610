"""From one state of a source to the next: `latestOffset` and `partitions` of Spark's reader, without Spark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Final, Generic, TypeVar, cast

import numpy as np
import pyarrow as pa

from alignment import events
from alignment.combine import SplitStatus
from alignment.explain import Explanation, LastBatch
from alignment.plan import MicroBatchPlan
from alignment.shown import log_of
from alignment.watermarks import LONG_AGO_US, MAX_WATERMARK, MIN_WATERMARK
from streaming_source.api import Boundedness, Source, SplitRange
from streaming_source.api.split import SplitT
from streaming_source.coordinator.calls import AsyncCalls, WorkerPool, Workers
from streaming_source.coordinator.enumerator_host import EnumeratorHost
from streaming_source.coordinator.event_times import IndexedTimes, RecordNumber
from streaming_source.coordinator.planner_warnings import PlannerWarnings, check_no_overlap
from streaming_source.coordinator.ranges import ranges_between, whole_splits
from streaming_source.coordinator.rules import ReadRules
from streaming_source.coordinator.runtime import SourceRuntime
from streaming_source.coordinator.source_explanation import with_source
from streaming_source.coordinator.state import Run, SourceState
from streaming_source.exceptions import SourceError

if TYPE_CHECKING:
    from alignment.groups import Lookahead
    from alignment.recording import Recorder
    from streaming_source.coordinator.group_exchange import GroupExchange

_log = log_of(__name__)

_FIRST_RECORDS_S: Final = 2.0
_DISCOVERY_S: Final = 1.0
"""Seconds that a trigger that finds nothing to read waits for a discovery."""
_LOOKAHEAD_S: Final = 2.0
"""Seconds that the last plan of a run waits for more records, if other sources of the query plan by what it reports."""
_SHOWN: Final = 200
"""Characters of what a source reads, in an explanation."""

CheckpointT = TypeVar("CheckpointT")


class SourceCoordinator(Generic[SplitT, CheckpointT]):
    """Plans micro-batch after micro-batch of one source, from what its enumerator finds.

    `state` is the last state that Spark was given. The engine's table, from which the next plan starts, is derived from
    it: splits that the last micro-batch finished have left it, and splits assigned since have joined it. Its positions
    are those of the index, which for a source without an index of its own are numbers of records.

    `now_us` is processing time in microseconds since the epoch, which is monotonic, for idleness; `clock_us` is the
    wall clock, for `maxFutureSkew`, by default the same. `readers`, at least 1, is how many read a micro-batch. The
    `workers`, by default threads, run calls for which the planner must not wait; they are closed with this. The `group`
    exchanges reports with the other sources of an alignment group, and is left when this is closed; None for a source
    without one. The `recorder` records what drives the engine.
    """

    def __init__(
        self,
        source: Source[SplitT, CheckpointT],
        rules: ReadRules,
        schema: pa.Schema,
        now_us: Callable[[], int],
        *,
        readers: int = 1,
        workers: Workers | None = None,
        group: GroupExchange | None = None,
        recorder: Recorder | None = None,
        clock_us: Callable[[], int] | None = None,
    ) -> None:
        self._source = source
        self._rules = rules
        self._schema = schema
        self._now_us = now_us
        self._clock_us = now_us if clock_us is None else clock_us
        self._readers = readers
        self._workers = WorkerPool() if workers is None else workers
        self._group = group
        self._recorder = recorder
        # When the last micro-batch with records was planned; the first one does not wait for more.
        self._read_us: int | None = None
        # What a batch reads at most: all that a stream had read in this state.
        self._read_at: SourceState[SplitT, CheckpointT] | None = None
        self._announce_again = self._announces_end = self._started = False
        self._run = Run(rules.counts_runs)
        self._runtime: SourceRuntime[SplitT, CheckpointT] | None = None
        self._batch: LastBatch | None = None
        self._warnings = PlannerWarnings(rules)
        # The state after which a discovery found nothing.
        self._discovered_at: SourceState[SplitT, CheckpointT] | None = None
        self.state: SourceState[SplitT, CheckpointT] = SourceState.initial()

    # ---- life ----------------------------------------------------------------------------------------------------

    @property
    def restored(self) -> bool:
        return self._runtime is not None

    @property
    def runtime(self) -> SourceRuntime[SplitT, CheckpointT]:
        """The enumerator, and what is made for it; it exists after `restore`."""
        if self._runtime is None:
            raise SourceError(
                f"the planner of {self._source.name} has no enumerator yet: call restore() first, with the state of an "
                "offset or SourceState.initial()"
            )
        return self._runtime

    @property
    def host(self) -> EnumeratorHost[SplitT, CheckpointT]:
        """The enumerator and its readers; it exists after `restore`."""
        return self.runtime.host

    def restore(
        self,
        state: SourceState[SplitT, CheckpointT],
        *,
        is_read_again: bool = False,
        continues_run: bool = False,
    ) -> None:
        """Begin from a state: that of an offset, or `SourceState.initial()`. Discovery does not start yet.

        A source that has ended is not discovered again, unless the micro-batch before the state `is_read_again`. One
        that was not committed `continues_run`: the run that planned it has not ended.

        Once planning has started it goes on from an earlier state with `rewind` alone.
        """
        if self._started:
            raise SourceError(
                f"cannot restore state {state.sequence}: planning has started, and is at state "
                f"{self.state.sequence}; go on from an earlier state with rewind()"
            )
        calls = AsyncCalls(self._workers, self._now_us)
        # Late records count from the first announced watermark on, and a recorded log is played with other settings.
        needs_event_times = self._rules.needs_event_times or state.sequence > 0 or self._recorder is not None
        host: EnumeratorHost[SplitT, CheckpointT] = EnumeratorHost(
            self._readers, self._schema, self._rules, calls, self._clock_us, needs_event_times=needs_event_times
        )
        self._warnings.of_clock(state, self._clock_us())
        self._run.goes_on |= continues_run
        has_ended = state.has_ended and not is_read_again
        self._runtime = SourceRuntime.of(
            self._source, host, state.checkpoint, self._rules, self._recorder, has_ended=has_ended
        )
        self._begin_from(state)
        if self._group is not None and not self.is_draining:
            self._group.start(self.host.calls)

    def rewind(self, state: SourceState[SplitT, CheckpointT]) -> None:
        """Go on from an earlier state than the last one: Spark has not used the states since."""
        runtime = self.runtime
        _log.warning("planning goes on from state %d instead of %d", state.sequence, self.state.sequence)
        if not (runtime.event_times.goes_back and self._started):
            # Records that the enumerator added before have left the index: a new enumerator must find them again.
            runtime.event_times.close()
            self.host.close()
            self._started = False
            self.restore(state)
            return
        self._begin_from(state)
        self.host.added.clear()
        self._put_in_work(state)
        self.host.go_back(state.sequence, [split.split_id for split in state.unfinished()])

    def join_group(self) -> None:
        """Let the other sources of the query know of this one, before the first of them plans."""
        if self._group is not None:
            self._group.join()

    def drain(self, *, is_one_batch: bool = False) -> None:
        """From now on read only present records, to their end (AvailableNow), or in one micro-batch (once)."""
        self._run.drains_from_us, self._run.is_one_batch = self._now_us(), is_one_batch
        if self._group is not None:
            self._group.drain()
        if self._started:
            self.host.calls.end()
            self._drain_engine()

    def start(self, max_rows: int | None = None) -> None:
        """Start discovery and wait for its first result; a first plan without a limit on rows needs all of it."""
        runtime, calls = self.runtime, self.host.calls
        if self.is_draining:
            self._drain_engine()
        self._put_in_work(self.state)
        if self._rules.options.max_future_skew_us is None:
            # With `maxFutureSkew` the limit moves with each plan.
            self._limit_times()
        runtime.event_times.before_discovery(max_rows)
        self.host.start(runtime.engine.table.split_ids)
        self.host.run_until(lambda: not calls.awaits_first)
        self._take_added()
        runtime.event_times.start()
        self._started = True
        if self.is_draining:
            calls.end()
        else:
            # So that the first micro-batch is not an empty one.
            self.host.run_until(runtime.event_times.is_warm, _FIRST_RECORDS_S)

    def close(self) -> None:
        if self._group is not None:
            self._group.leave()
        try:
            if self._runtime is not None:
                self._runtime.event_times.close()
                self._runtime.host.close()
        finally:
            self._workers.close()

    @cached_property
    def _reads(self) -> str:
        # Once: a source may look at its store for it.
        return self._source.identity[:_SHOWN]

    # ---- planning ------------------------------------------------------------------------------------------------

    def advance(self, max_rows: int | None = None) -> SourceState[SplitT, CheckpointT]:
        """Plan the next micro-batch and return the state after it; the same object when there is nothing to do.

        If a discovery is cheap, this call makes one when there is nothing to do. When a source without an index is
        drained, this waits until it has read ahead to its end.
        """
        self.end_batch()
        with nullcontext() if self._group is None else self._group.call():
            return self._advance(max_rows)

    def _advance(self, max_rows: int | None) -> SourceState[SplitT, CheckpointT]:
        has_discovered = not self._started
        if not self._started:
            self.start(max_rows)
        engine, event_times = self.runtime.engine, self.runtime.event_times
        while True:
            self.host.run()
            self._take_added()
            if self.is_draining:
                if event_times.index is not None:
                    event_times.index.extend_snapshot()
            elif engine.emits_at_us <= (now_us := self._now_us()):
                engine.apply(events.EmitPeriodElapsed(now_us))
            self._block_splits()
            if self._is_due and (not self.is_draining or event_times.is_settled) and self._plan(max_rows):
                if event_times.loads_ahead:
                    # While Spark reads this micro-batch.
                    event_times.load_ahead(engine.times_to_load(max_rows))
                return self.state
            if not self.is_draining:
                if engine.unscanned and event_times.loads_ahead:
                    self.host.calls.wait()
                    continue
                if has_discovered:
                    return self.state
                self._discover_more()
                has_discovered = True
            elif event_times.is_at_rest and not event_times.probe_last(engine.table.holders()):
                if self._ends_trigger(max_rows):
                    return self.state
            else:
                self.host.calls.wait()

    def keep_start(self) -> SourceState[SplitT, CheckpointT]:
        """Return a state that has where the source starts, after a micro-batch without records if need be.

        Spark commits the first micro-batch of a query, whether there is anything to read or not. So the first start of
        a query decides, and not the first one that finds something.
        """
        if self.state.checkpoint is None:
            self._plan(None, goes_on=True)
        return self.state

    @property
    def _is_due(self) -> bool:
        """True if there may be something to plan."""
        is_due = self.runtime.engine.is_due or self._announces_end or self._ends_wait()
        return is_due or (self._group is not None and self._group.may_go_on)

    def _ends_trigger(self, max_rows: int | None) -> bool:
        """Return whether a run (AvailableNow) that has nothing to plan has done so in this trigger, or for good."""
        if self._group is None or not self._group.membership.holds(self.runtime.engine.nearest_us()):
            self._warnings.of_unread(self.runtime.engine)
            self._end_run(max_rows)
            return True
        if self._group.wait_for_others():
            # A run ends when no source has anything to do: so this one plans a micro-batch without records.
            self._plan(max_rows, goes_on=True)
            return True
        return False

    def _end_run(self, max_rows: int | None) -> None:
        """Leave in the state that this run has ended, by a micro-batch without records, where runs are counted."""
        self._run.has_ended, state, engine = True, self.state, self.runtime.engine
        # One split alone lets nobody wait.
        may_wait = len(engine.table) > 1 and (engine.table.statuses == SplitStatus.ACTIVE).any()
        is_news = self._run.state_at(engine.table, engine) != state.run
        if (may_wait or (self._rules.in_one_query and state.sequence)) and is_news:
            self._warnings.of_silent(engine, self._now_us())
            self._plan(max_rows, goes_on=True)

    def end_batch(self) -> None:
        """Record that the last micro-batch is done: Spark has called for the next one, or reported progress. O(1)."""
        if self._batch is not None and self._batch.done_us is None:
            self._batch = replace(self._batch, done_us=self._now_us())

    @property
    def is_draining(self) -> bool:
        return self._run.drains_from_us is not None

    def explain(self) -> Explanation | None:
        """Explain why the watermark stands where it does, in positions of the source; None before the start. O(n)."""
        if not self._started:
            return None
        self._take_added()
        explanation = self.runtime.engine.explain(self._now_us())
        waits_for = None
        if self._group is not None and explanation.waits_for_group:
            waits_for = self._group.slowest_at(explanation.at_us)
        known = {"group": waits_for, "batch": self._batch, "reads": self._reads}
        return with_source(explanation, self.runtime, self.state, self._warnings.outlying, self._rules, **known)

    def ranges(
        self,
        start: SourceState[SplitT, CheckpointT],
        end: SourceState[SplitT, CheckpointT],
        readers: int,
        min_rows: int,
    ) -> Sequence[SplitRange[SplitT]]:
        """Return what to read between two states, cut into ranges for `readers`. Works without `start`."""
        if end.sequence == self.state.sequence:
            # The micro-batch that is read now announces the watermark of `end`.
            self._announce_again = False
        # While planning goes on, discovery finds lost splits in the background.
        lost = () if self._started and not self.is_draining else self.host.enumerator.lost_splits()
        ranges = ranges_between(self.runtime, start, end, readers, min_rows, read_at=self._read_at)
        left = [part for part in ranges if part.split.split_id not in lost] if lost else ranges
        return self.host.enumerator.ranges_to_read(left)

    def everything(self, min_rows: int, at: SourceState[SplitT, CheckpointT] | None = None) -> list[SplitRange[SplitT]]:
        """Return all present records of a fresh source, for a batch read. Call only `restore` before.

        If `at` is given they are those that a stream had read in that state, and the source is that of
        `Source.for_batch_at`. A bounded source without an index is not read ahead: readers find the ends of its splits.
        """
        self._read_at = at
        self.drain()
        if self._source.boundedness is Boundedness.BOUNDED and not isinstance(self.runtime.event_times, IndexedTimes):
            self.host.start()
            self.host.run_until(lambda: not self.host.calls.awaits_first)
            return whole_splits(self.runtime, self.host.added, self._readers, min_rows, read_at=at)
        found: list[SplitRange[SplitT]] = []
        while (before := self.state) is not self.advance():
            found += self.ranges(before, self.state, self._readers, min_rows)
        return found

    def validate(self) -> None:
        """Assert invariants between two plans, for tests: nothing is kept of a split that left. O(n)."""
        if not self._started:
            return
        self.runtime.engine.validate()
        in_work = set(self.runtime.engine.index.split_ids)
        # The last ranges of splits that the last micro-batch finished are not cut yet.
        known = in_work.union(self.state.finished())
        remembered = {
            "the planner": self.runtime.event_times.split_ids() - known,
            "the enumerator's host": {*self.host.expected, *self.host.known_ends} - in_work,
            "the state": {split.split_id for split in self.state.splits} - known,
        }
        assert not any(remembered.values()), f"splits that left are remembered: {remembered}"

    def notify_committed(self, sequence: int) -> None:
        if self._started:
            self.host.complete(sequence)

    # ---- inside: plans -------------------------------------------------------------------------------------------

    def _plan(self, max_rows: int | None, *, goes_on: bool = False) -> bool:
        """Plan, commit the plan if it has news or the run `goes_on`, and return whether it was committed."""
        engine, group, limit_us = self.runtime.engine, self._group, None
        if self._rules.options.max_future_skew_us is not None:
            limit_us = self._limit_times()
        self._assign_waiting(max_rows)
        # What is read ahead is planned as it becomes known: its rest holds the watermark alone.
        awaits_scan = engine.unscanned and self.runtime.event_times.loads_ahead
        if awaits_scan and engine.awaits_scan(max_rows, self._rules.options.min_rows_per_trigger):
            return False
        for event in () if group is None else group.start_plan():
            engine.apply(event)
        self.runtime.event_times.before_plan()
        now_us, min_rows, waits_until_us = self._now_us(), self._rules.options.min_rows_per_trigger, LONG_AGO_US
        if min_rows is not None and self._read_us is not None and self._may_wait_for_rows():
            waits_until_us = self._read_us + self._rules.options.max_trigger_delay_us
        if wanted := self._rules.planning.times:
            check_no_overlap(engine.index, wanted, self.runtime.event_times)
        if self.runtime.event_times.loads_ahead:
            self.runtime.event_times.load_ahead(engine.times_to_load(max_rows))
        with self.runtime.event_times.planning():
            plan = engine.plan(now_us, max_rows, min_rows=min_rows, waits_until_us=waits_until_us)
        if awaits_scan and plan.awaits_scan:
            return False
        lets_others_plan = group is not None and group.membership.lets_others_plan
        nearest_us = engine.nearest_us() if lets_others_plan else None
        if nearest_us is not None or (lets_others_plan and self.is_draining):
            # A micro-batch, maybe without records, so that Spark goes on to the next trigger, in which this source
            # reads, or follows the others.
            goes_on = nearest_us is not None or engine.status_after(plan) is SplitStatus.IDLE
        is_news = goes_on or self._announce_again or self._announces_end or engine.has_news(plan)
        if is_news:
            if plan.rows:
                self._read_us = now_us
            if max_rows is not None:
                self._warnings.of_waiting(plan, max_rows)
            self._commit(plan, limit_us, now_us)
        if group is not None:
            self._end_plan(group, plan, max_rows)
        return is_news

    def _limit_times(self) -> int | None:
        """Make the engine take later event times as invalid, and return from which one on."""
        limit_us = self.host.event_time_limit_us
        if limit_us is not None:
            self.runtime.engine.apply(events.TimeLimitMoved(limit_us))
        return limit_us

    def _end_plan(self, group: GroupExchange, plan: MicroBatchPlan, max_rows: int | None) -> None:
        """Report how far the source is after a plan to the other sources of its group."""
        # Imported here: few sources are in a group.
        from alignment.group_events import Progress

        engine, status = self.runtime.engine, self.runtime.engine.status_after(plan)
        # First, since it may find more records.
        needs_lookahead = group.membership.needs_lookahead and self._rules.options.min_rows_per_trigger is None
        lookahead = self._look_ahead(max_rows) if needs_lookahead else None
        nearest_us = engine.nearest_us()
        # A source that has read all records of a run does not count in the group.
        has_ended = self.is_draining and nearest_us is None and self.runtime.event_times.is_at_rest
        watermark = None if has_ended else plan.slowest_us
        group.end_plan(Progress(watermark, nearest_us, lookahead, status, plan.after.combined))

    def _look_ahead(self, max_rows: int | None) -> Lookahead | None:
        """Return how far the next plan gets, for the other sources of the query."""
        event_times = self.runtime.event_times
        if self.is_draining and not event_times.is_at_rest:
            # All known records are planned: the next ones decide how far the others may go.
            self.host.run_until(lambda: event_times.is_settled or event_times.is_at_rest, _LOOKAHEAD_S)
            self._take_added()
        knows_all = event_times.is_settled or event_times.is_at_rest
        return self.runtime.engine.lookahead(max_rows, knows_all=knows_all)

    def _may_wait_for_rows(self) -> bool:
        """Return whether rows may wait for more: no other source waits for this one, and all present rows are known."""
        is_waited_for = self._group is not None and self._group.membership.is_waited_for
        return not is_waited_for and self.runtime.event_times.knows_all

    def _ends_wait(self) -> bool:
        """Return whether rows that waited for more are read now."""
        reads_at_us = self.runtime.engine.reads_at_us
        if reads_at_us == MAX_WATERMARK:
            return False
        return self._now_us() >= reads_at_us or not self._may_wait_for_rows()

    def _assign_waiting(self, max_rows: int | None) -> None:
        """Assign splits that wait: as many as can be in work, and more if `max_rows` admits their records."""
        engine, index = self.runtime.engine, self.runtime.event_times.index
        while engine.horizon_us < MAX_WATERMARK and index is not None:
            if max_rows is not None:
                finishing = engine.read_to_their_ends(max_rows)
                if finishing is None:
                    return
                index.expect_finished(finishing)
            nearest_us = engine.nearest_us()
            readable = engine.readable_splits()
            if not index.assign_waiting(readable, MAX_WATERMARK if nearest_us is None else nearest_us):
                return
            self._take_added()

    def _take_added(self) -> None:
        """Let the provider find event times of newly assigned splits."""
        added, self.host.added = self.host.added, []
        if added:
            self.runtime.event_times.add_splits(added)

    def _block_splits(self) -> None:
        enumerator, engine = self.host.enumerator, self.runtime.engine
        found = enumerator.blocked_splits(), enumerator.unreachable_splits(), enumerator.unindexed_splits()
        if not any(found):
            return
        in_work = [frozenset([split_id for split_id in split_ids if split_id in engine.index]) for split_ids in found]
        event = events.SplitsBlocked(*in_work)
        # Triggers come every few milliseconds: the event is logged only if it changes something.
        if not event.waits_for().items() <= engine.idle_clock.blocked.items():
            engine.apply(event)

    def _discover_more(self) -> None:
        """Discover new records, for a second at most."""
        host, event_times, engine = self.host, self.runtime.event_times, self.runtime.engine
        host.calls.refresh(_DISCOVERY_S, rests=self._discovered_at is self.state, is_due=lambda: engine.is_due)
        self._discovered_at = self.state
        if host.expected:
            is_found = event_times.find_expected(host.expected)
            host.expected.clear()
            host.run_until(is_found, _DISCOVERY_S)

    def _commit(self, plan: MicroBatchPlan, time_limit_us: int | None, now_us: int) -> None:
        runtime, engine = self.runtime, self.runtime.engine
        ids = plan.after.split_ids
        if (index := runtime.event_times.index) is not None and plan.late.any():
            index.count_late({ids[slot]: int(plan.late[slot]) for slot in np.flatnonzero(plan.late)})
        self._warnings.of_plan(plan, engine, runtime.event_times, now_us, drains=self.is_draining)
        numbers = cast("list[RecordNumber]", plan.after.positions.tolist())
        splits = runtime.event_times.commit_plan(ids, numbers)
        self._run.take(plan.rows)
        table = plan.after.without_positions()
        sequence, late_so_far = self.state.sequence + 1, engine.late + plan.late
        checkpoint = self.host.snapshot(sequence)
        silent_since_us = engine.silent_since_us(plan)
        generators = () if runtime.generators is None else runtime.generators.states(plan.after, time_limit_us)
        routed = self.state.routed + (int(plan.late.sum()) if self._rules.options.late == "route" else 0)
        self._begin_batch(plan.rows, now_us)
        has_ended = table.combined == MAX_WATERMARK > self.state.table.combined
        self._announces_end = self._rules.ends_twice and has_ended
        self.state = SourceState(
            sequence=sequence,
            splits=splits,
            table=table,
            late=late_so_far,
            silent_since_us=silent_since_us,
            checkpoint=checkpoint,
            routed=routed,
            outside=self.state.outside + plan.outside,
            generators=generators,
            time_limit_us=time_limit_us,
            empty_since_us=LONG_AGO_US if table.combined == MAX_WATERMARK else engine.idle_clock.empty_since_us,
            run=self._run.state_at(plan.after, engine),
        )
        self._announce_again = False
        finished = engine.commit(plan)
        self._warnings.outlying.forget(finished)
        self._forget_splits(finished)

    def _begin_batch(self, rows: int, now_us: int) -> None:
        before, share = self._batch, None
        if before is not None and before.done_us is not None and now_us > before.planned_us:
            share = (before.done_us - before.planned_us) / (now_us - before.planned_us)
        self._batch = LastBatch(now_us, rows, share=share)

    # ---- inside: life --------------------------------------------------------------------------------------------

    def _begin_from(self, state: SourceState[SplitT, CheckpointT]) -> None:
        self.state = state
        # At a restart Spark remembers the watermark of the query but not of each of its sources, and takes the minimum:
        # a source that announces nothing again would hold the others back for ever.
        self._announce_again = self._rules.options.watermark_rows and state.table.combined != MIN_WATERMARK
        # Records that were read and not reported are read again, for the watermark.
        self._announce_again |= any(one is not None and one.position is not None for one in state.generators)
        if self._group is not None and state.sequence:
            self._group.resume(state.table.slowest_counting(), state.table.combined)

    def _put_in_work(self, state: SourceState[SplitT, CheckpointT]) -> None:
        """Put the splits of a state in work, without those that it finished."""
        runtime = self.runtime
        positions = np.array([split.position for split in state.splits], np.int64)
        origins = np.array([split.origin().position for split in state.splits], np.int64)
        table = state.table.at(positions)
        runtime.engine.apply(
            events.Restored(
                table=table,
                origins=origins,
                late=state.late,
                silent_since_us=state.silent_since_us,
                at_us=self._now_us(),
                empty_since_us=state.empty_since_us,
                **self._run.known_of_last(state.run, table.split_ids),
            )
        )
        if runtime.generators is not None and state.generators:
            known = dict(zip(state.table.split_ids, state.generators, strict=True))
            left = [split.split_id for split in state.unfinished()]
            runtime.generators.restore(left, [known[split_id] for split_id in left], state.time_limit_us)
        # Those that the last micro-batch finished, too: they leave it next.
        self.host.enumerator.restore_splits(state.splits)
        runtime.event_times.restore_splits(state)
        self._forget_splits(state.finished())

    def _forget_splits(self, split_ids: Sequence[str]) -> None:
        self.runtime.event_times.finish_splits(split_ids)
        self.host.forget_splits(split_ids)

    def _drain_engine(self) -> None:
        from_us = self._run.drains_from_us
        assert from_us is not None
        self.runtime.engine.apply(events.DrainStarted(from_us))
        self.runtime.event_times.drain(from_us)
