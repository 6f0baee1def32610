"""From one state of a source to the next: what Spark calls `latestOffset` and `partitions`, without Spark."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from alignment.combine import SplitStatus
from alignment.index import EventTimeIndex
from alignment.planner import MicroBatchPlan, plan_micro_batch
from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import MAX_WATERMARK, MIN_WATERMARK
from streaming_source.api import Boundedness, Source, SourceEvent, SourceSplit, SplitRange, SupportsEventTimeIndex
from streaming_source.coordinator.calls import AsyncCalls
from streaming_source.coordinator.context import CoordinatorContext
from streaming_source.coordinator.generators import SplitGenerators
from streaming_source.coordinator.group import GroupSeat
from streaming_source.coordinator.host import EnumeratorHost
from streaming_source.coordinator.look_ahead import LookAhead
from streaming_source.coordinator.meeting import GroupMeeting
from streaming_source.coordinator.members import SplitsInWork, has_news, without_finished
from streaming_source.coordinator.rules import ReadRules
from streaming_source.coordinator.state import SourceState
from streaming_source.coordinator.workers import WorkerPool, Workers
from streaming_source.exceptions import SourceError

__all__ = ["SourceCoordinator"]

_log = logging.getLogger(__name__)

_FIRST_LOOKS_S: Final = 2.0

SplitT = TypeVar("SplitT", bound=SourceSplit)
CheckpointT = TypeVar("CheckpointT")


class SourceCoordinator(Generic[SplitT, CheckpointT]):
    """Plans micro-batch after micro-batch of one source, from what its enumerator finds.

    Parameters
    ----------
    source, rules
        What to read, and how.
    schema
        The columns that the query reads, in the source's types.
    now_us
        Processing time in microseconds, monotonic: only idleness is measured with it.
    readers
        How many read one micro-batch, at least 1.
    workers
        Do what must not keep the planner waiting; by default threads. Closed with this.
    meeting
        Of the alignment group whose other members are other sources; None if there is none. Left when this is closed.

    Notes
    -----
    `state` is the last state handed out. The table that the next plan starts from is derived from it: splits that the
    last micro-batch finished have left it, and splits assigned since have joined it. Its positions are those of the
    index, which for a source without an index of its own are numbers of records.
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
        meeting: GroupMeeting | None = None,
    ) -> None:
        self._source = source
        self._rules = rules
        self._schema = schema
        self._now_us = now_us
        self._readers = readers
        self._workers = WorkerPool() if workers is None else workers
        self._group = GroupSeat(meeting)
        self._draining = self._announce_again = self._started = False
        self._host: EnumeratorHost[SplitT, CheckpointT] | None = None
        self._look_ahead: LookAhead[SplitT] | None = None
        self._in_work = SplitsInWork(rules.strategy.idle_timeout_us, now_us)
        self.state: SourceState[SplitT, CheckpointT] = SourceState.initial()
        self.last_plan: MicroBatchPlan | None = None
        self._generators = SplitGenerators(rules.strategy)

    # ---- life ----------------------------------------------------------------------------------------------------

    @property
    def restored(self) -> bool:
        """Whether `restore` was called."""
        return self._host is not None

    @property
    def host(self) -> EnumeratorHost[SplitT, CheckpointT]:
        """The enumerator and its readers; there after `restore`."""
        assert self._host is not None, "restore() comes first"
        return self._host

    def restore(self, state: SourceState[SplitT, CheckpointT]) -> None:
        """Begin from a state: the one of an offset, or `SourceState.initial()`. Nothing is looked at yet.

        Raises
        ------
        SourceError
            If planning has begun.
        """
        if self._started:
            raise SourceError(
                f"cannot restore state {state.sequence}: planning has begun, and stands at state "
                f"{self.state.sequence}; go on from an earlier state with rewind()"
            )
        self._calls = AsyncCalls(self._workers, self._now_us)
        self._context: CoordinatorContext[SplitT] = CoordinatorContext(
            self._readers,
            self._rules.strategy.timestamp_assigner,
            self._schema,
            self._calls,
            self._workers,
            self._rules.strategy.out_of_orderness_us,
            can_ask=self._rules.planning.out_of_orderness_us is not None and not self._rules.planning.perfect,
        )
        if state.checkpoint is None:
            enumerator = self._source.create_enumerator(self._context)
        else:
            enumerator = self._source.restore_enumerator(self._context, state.checkpoint)
        self._host = EnumeratorHost(enumerator, self._context, self._calls)
        if isinstance(enumerator, SupportsEventTimeIndex):
            self._ahead: SupportsEventTimeIndex[SplitT] = enumerator
            self._index = EventTimeIndex(self._load_times, locate=enumerator.first_later)
        else:
            self._ahead = self._look_ahead = LookAhead(
                self._source, self._context, self._calls, self._workers, self._now_us, self._rules.look_ahead_rows
            )
            # All times are in memory already: nothing is to be gained by keeping them twice.
            self._index = EventTimeIndex(self._load_times, cached_times=0)
        self._context.take_index(self._index, self._rules.time_limit_us)
        self._started = False
        self._begin_from(state)

    def rewind(self, state: SourceState[SplitT, CheckpointT]) -> None:
        """Plan on from an earlier state than the last one: what was handed out since was not taken."""
        _log.warning("planning goes on from state %d instead of %d", state.sequence, self.state.sequence)
        if self._look_ahead is None or not self._started:
            # What an index of the source's own told of the records since is forgotten: it must be found anew.
            self.host.close()
            self._started = False
            self.restore(state)
            return
        self._index.remove(self._index.split_ids)
        self._context.complete.clear()
        self._context.added.clear()
        in_work, _, _ = without_finished(state.table)
        self.host.go_back(state.sequence, in_work.split_ids)
        self._begin_from(state)
        self._take_over()
        self._context.changed = True

    def drain(self) -> None:
        """From now on behave as if nothing new came in, and read to the end of what is there (AvailableNow)."""
        self._draining = True
        if self._started:
            self._calls.end()
            if self._look_ahead is not None:
                self._look_ahead.drain()

    def start(self) -> None:
        """Start discovery and wait for its first result."""
        if self._draining and self._look_ahead is not None:
            self._look_ahead.drain()
        self._take_over()
        self.host.start(self._in_work.table.split_ids)
        self.host.run_until(lambda: not self._calls.awaits_first)
        self._context.changed = self._started = True
        alignment = self._rules.strategy.alignment
        if alignment is not None:
            self._group.start(self._calls, alignment.update_interval_us / 1e6, self._look_again)
        if self._draining:
            self._calls.end()
        elif self._look_ahead is not None:
            # Not needed, but the first micro-batch had better not be an empty one.
            self._take_added()
            self.host.run_until(self._look_ahead.has_looked_at_all, _FIRST_LOOKS_S)

    def close(self) -> None:
        """End discovery."""
        self._group.leave()
        try:
            if self._look_ahead is not None:
                self._look_ahead.close()
            if self._host is not None:
                self._host.close()
        finally:
            self._workers.close()

    # ---- planning ------------------------------------------------------------------------------------------------

    def advance(self, max_rows: int | None = None) -> SourceState[SplitT, CheckpointT]:
        """Plan the next micro-batch and return the state after it; the same object when there is nothing to do.

        Costs a few microseconds when nothing has changed since the last call. A source without an index that is being
        drained is waited for: what has not been seen of it may be there.

        Parameters
        ----------
        max_rows
            Read limit, at least 1; None for none.
        """
        if not self._started:
            self.start()
        waits_for = self._look_ahead if self._draining else None
        while True:
            self.host.run()
            self._take_added()
            if self._draining:
                self._ahead.look_on()
            is_due = self._context.changed or self._in_work.idle_clock.is_due(self._context.observed_us)
            if is_due and (waits_for is None or waits_for.is_settled) and self._plan(max_rows):
                return self.state
            if waits_for is None or waits_for.is_at_rest:
                return self.state
            self._calls.wait()

    def unread_rows(self) -> int:
        """Records that are known to be there, and in no micro-batch yet. Takes in what has been found. O(n)."""
        if not self._started:
            self.start()
        self.host.run()
        self._take_added()
        return int((self._index.ends() - self._in_work.table.positions).sum())

    @property
    def is_draining(self) -> bool:
        """Whether `drain` was called."""
        return self._draining

    def available(self) -> dict[str, tuple[int, int]]:
        """Of each split in work: its next position, and the position after the last record known to be there."""
        at = {
            i: (n, n)
            for i, n in zip(self._in_work.table.split_ids, self._in_work.table.positions.tolist(), strict=True)
        }
        if self._started:
            ends = zip(self._index.split_ids, self._index.ends().tolist(), strict=True)
            at = {i: (at[i][0], end) for i, end in ends if i in at}
        if self._started and self._look_ahead is not None:
            position_at = self._look_ahead.position_at
            at = {i: (position_at(i, number), position_at(i, end)) for i, (number, end) in at.items()}
        return at

    def ranges(
        self,
        start: SourceState[SplitT, CheckpointT],
        end: SourceState[SplitT, CheckpointT],
        readers: int,
        min_rows: int,
    ) -> list[SplitRange[SplitT]]:
        """What to read between two states, cut so that it can be shared by `readers`. Works without `start`."""
        if end.sequence == self.state.sequence:
            # The micro-batch that is read now announces the watermark of `end`.
            self._announce_again = False
        before = start.by_id()
        pairs = [(before.get(split.split_id) or split.origin(), split) for split in end.splits]
        pairs = [(begun, ended) for begun, ended in pairs if ended.position > begun.position]
        rows = sum(ended.position - begun.position for begun, ended in pairs)
        rows_per_range = max(min_rows, -(-rows // readers))
        return [part for begun, ended in pairs for part in self._ahead.ranges(begun, ended, rows_per_range)]

    def everything(self, min_rows: int) -> list[SplitRange[SplitT]]:
        """What to read of a fresh source in one go, for a batch read: all there is now. Call `restore` and this only.

        A bounded source without an index is not looked ahead in: its splits have their ends in themselves.
        """
        self.drain()
        if self._look_ahead is not None and self._source.boundedness is Boundedness.BOUNDED:
            self.host.start()
            self.host.run_until(lambda: not self._calls.awaits_first)
            splits = [split for split in self._context.added if split.stop is None or split.stop > split.position]
            return [SplitRange(split, (split.stop or split.position + 1) - split.position) for split in splits]
        found = []
        while (before := self.state) is not self.advance():
            found += self.ranges(before, self.state, self._readers, min_rows)
        return found

    def take_events(self, subtask_id: int) -> list[SourceEvent]:
        """Events from the enumerator to a reader that were not taken yet."""
        return self._context.take_events(subtask_id)

    def metrics(self) -> dict[str, float]:
        """What the enumerator counts."""
        return self._context.metric_group.values()

    def notify_committed(self, sequence: int) -> None:
        """The micro-batch that leads to the state of this number is committed."""
        if self._started:
            self.host.complete(sequence)

    # ---- inside: plans -------------------------------------------------------------------------------------------

    def _load_times(self, split_id: str, start: int, stop: int) -> npt.NDArray[np.int64]:
        times = self._ahead.event_times(split_id, start, stop)
        limit_us = self._rules.time_limit_us
        return times if limit_us is None else np.where(times < limit_us, times, NO_TIMESTAMP)

    def _plan(self, max_rows: int | None) -> bool:
        """Plan, and hand the state out if there is news in it; whether there is."""
        self._assign_waiting()
        self._context.changed = False
        ids = self._in_work.table.split_ids
        strategy = self._rules.strategy
        own_generator = strategy.generates_watermarks and strategy.out_of_orderness_us is None
        plan = plan_micro_batch(
            self._in_work.table,
            self._index,
            self._rules.planning,
            max_rows=max_rows,
            # A run that only reads what is there (AvailableNow) goes alone.
            group_limit_us=MAX_WATERMARK if self._draining else self._group.limit_us(),
            horizon_us=self._context.horizon_us,
            idle=self._idle(),
            complete=np.fromiter((split_id in self._context.complete for split_id in ids), np.bool_, len(ids)),
            no_more_splits=self._context.no_more_splits,
            draining=self._draining,
            advance=self._generators.advance if own_generator else None,
        )
        # A snapshot says nothing of the time that passes while it is read.
        if not self._draining:
            ends, left = self._index.ends(), plan.after.positions
            nearest = partial(self._index.nearest_time, left) if (left < ends).any() else None
            self._group.tell(plan.slowest_us, nearest)
            unread = self._in_work.table.positions < ends
            self._in_work.idle_clock.track(unread, plan.after.statuses, self._context.observed_us)
        is_news = plan.rows > 0 or has_news(self.state.table, self._in_work.table, plan.after)
        if not is_news and not self._announce_again:
            return False
        self._hand_out(plan)
        # There may be more than this plan was allowed to take.
        self._context.changed = True
        return True

    def _look_again(self) -> None:
        self._context.changed = True

    def _idle(self) -> npt.NDArray[np.bool_]:
        if self._draining:
            return np.asarray(self._in_work.table.statuses == SplitStatus.IDLE)
        if self._look_ahead is not None:
            return self._in_work.idle_clock.idle(self._look_ahead.observed_us(self._in_work.table.split_ids))
        idle = self._in_work.idle_clock.idle(self._context.observed_us or 0)
        held_back = self._ahead.held_back()
        if held_back:
            idle &= np.array([split_id not in held_back for split_id in self._in_work.table.split_ids], np.bool_)
        return idle

    def _hand_out(self, plan: MicroBatchPlan) -> None:
        ids, positions = plan.after.split_ids, plan.after.positions.tolist()
        self._in_work.late = self._in_work.late + plan.late
        if plan.late.any():
            counts = {ids[i]: int(plan.late[i]) for i in np.flatnonzero(plan.late)}
            _log.warning("late records, at or below the watermark already announced, by split: %s", counts)
        splits = tuple(self._ahead.split_at(i, position) for i, position in zip(ids, positions, strict=True))
        table = plan.after
        if self._look_ahead is not None:
            self._look_ahead.hand_out(ids, positions)
            table = replace(table, positions=np.array([split.position for split in splits], np.int64))
        sequence = self.state.sequence + 1
        self.state = SourceState(sequence, splits, table, self._in_work.late, self.host.snapshot(sequence))
        self.last_plan = plan
        self._announce_again = False
        self._in_work.table = plan.after
        self._leave_finished()
        self._index.forget_before(self._in_work.table.positions)

    # ---- inside: the table ---------------------------------------------------------------------------------------

    def _begin_from(self, state: SourceState[SplitT, CheckpointT]) -> None:
        self.state = state
        # At a restart Spark remembers the watermark of the query but not of each of its sources, and takes the minimum:
        # a source that says nothing again would hold the others back for ever.
        self._announce_again = self._rules.announces and state.table.combined != MIN_WATERMARK
        self._generators = SplitGenerators(self._rules.strategy)

    def _take_over(self) -> None:
        """Let the splits of the state be in work."""
        state = self.state
        for split in state.splits:
            self._index.add_split(split.split_id, split.position)
        self._in_work.begin(state.table, state.late)
        statuses = zip(state.splits, state.table.statuses, strict=True)
        in_work = [split for split, status in statuses if status != SplitStatus.FINISHED]
        self._ahead.restore_splits(state.splits if self._look_ahead is None else in_work)
        self._leave_finished()

    def _take_added(self) -> None:
        """Let the splits that were assigned since the last plan join the table."""
        added = self._context.added
        if added:
            self._in_work.join(added)
            if self._look_ahead is not None:
                self._look_ahead.add_splits(added)
            added.clear()

    def _assign_waiting(self) -> None:
        """Let splits that wait join the table until something before the horizon can be read."""
        while self._context.horizon_us < MAX_WATERMARK:
            readable = int((self._in_work.table.positions < self._index.ends()).sum())
            if not self._ahead.assign_waiting(readable, self._index.nearest_time(self._in_work.table.positions)):
                return
            self._take_added()

    def _leave_finished(self) -> None:
        """Let finished splits leave the table: the state that says so was handed out."""
        finished = self._in_work.leave_finished()
        if finished:
            self._index.remove(finished)
            for split_id in finished:
                self._ahead.finish_split(split_id)
                self._context.complete.discard(split_id)
            self._generators.forget(finished)
