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
from alignment.planner import MicroBatchPlan, PlanConditions
from alignment.watermarks import MAX_WATERMARK, MIN_WATERMARK
from streaming_source.api import Boundedness, Source, SourceSplit, SplitRange
from streaming_source.coordinator.foresight import OwnIndex
from streaming_source.coordinator.generators import SplitGenerators
from streaming_source.coordinator.group import GroupSeat
from streaming_source.coordinator.host import EnumeratorHost
from streaming_source.coordinator.hosting import HostedSource
from streaming_source.coordinator.meeting import GroupMeeting
from streaming_source.coordinator.members import SplitsInWork, has_news, slowest_counting
from streaming_source.coordinator.rules import ReadRules
from streaming_source.coordinator.state import SourceState
from streaming_source.coordinator.workers import WorkerPool, Workers
from streaming_source.exceptions import SourceError

__all__ = ["SourceCoordinator"]

_log = logging.getLogger(__name__)

_FIRST_LOOKS_S: Final = 2.0
_NAMED: Final = 10
"""Splits that a message names at most."""

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
        self._hosted: HostedSource[SplitT, CheckpointT] | None = None
        self._in_work = SplitsInWork(rules.strategy.idle_timeout_us, now_us)
        self.state: SourceState[SplitT, CheckpointT] = SourceState.initial()
        self.last_plan: MicroBatchPlan | None = None
        self._generators = SplitGenerators(rules.strategy)

    # ---- life ----------------------------------------------------------------------------------------------------

    @property
    def restored(self) -> bool:
        """Whether `restore` was called."""
        return self._hosted is not None

    @property
    def hosted(self) -> HostedSource[SplitT, CheckpointT]:
        """The enumerator, and all around it; there after `restore`."""
        assert self._hosted is not None, "restore() comes first"
        return self._hosted

    @property
    def host(self) -> EnumeratorHost[SplitT, CheckpointT]:
        """The enumerator and its readers; there after `restore`."""
        return self.hosted.host

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
        self._hosted = HostedSource.of(
            self._source, state.checkpoint, self._rules, self._schema, self._readers, self._workers, self._now_us
        )
        self._started = False
        self._begin_from(state)
        alignment = self._rules.strategy.alignment
        if alignment is not None and not self._draining:
            self._group.start(self.hosted.calls, alignment.update_interval_us / 1e6, self._look_again)

    def rewind(self, state: SourceState[SplitT, CheckpointT]) -> None:
        """Plan on from an earlier state than the last one: what was handed out since was not taken."""
        at_work = self.hosted
        _log.warning("planning goes on from state %d instead of %d", state.sequence, self.state.sequence)
        if not (at_work.foresight.goes_back and self._started):
            # What the enumerator told of the records since is forgotten: it must be found anew.
            self.host.close()
            self._started = False
            self.restore(state)
            return
        at_work.go_back(state)
        self._begin_from(state)
        self._take_over()
        at_work.context.changed = True

    def drain(self) -> None:
        """From now on behave as if nothing new came in, and read to the end of what is there (AvailableNow)."""
        self._draining = True
        if self._started:
            self.hosted.calls.end()
            self.hosted.foresight.drain()

    def start(self) -> None:
        """Start discovery and wait for its first result."""
        at_work = self.hosted
        if self._draining:
            at_work.foresight.drain()
        self._take_over()
        self.host.start(self._in_work.table.split_ids)
        self.host.run_until(lambda: not at_work.calls.awaits_first)
        self._in_work.take_changes(at_work)
        at_work.foresight.start()
        at_work.context.changed = self._started = True
        if self._draining:
            at_work.calls.end()
        else:
            # Not needed, but the first micro-batch had better not be an empty one.
            self.host.run_until(at_work.foresight.has_looked_at_all, _FIRST_LOOKS_S)

    def close(self) -> None:
        """End discovery."""
        self._group.leave()
        try:
            if self._hosted is not None:
                self._hosted.foresight.close()
                self._hosted.host.close()
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
        at_work = self.hosted
        while True:
            at_work.host.run()
            self._in_work.take_changes(at_work)
            if self._draining:
                at_work.foresight.look_on()
            is_due = at_work.context.changed or self._in_work.idle_clock.is_due(at_work.context.observed_us)
            if is_due and (not self._draining or at_work.foresight.is_settled) and self._plan(max_rows):
                return self.state
            if not self._draining or at_work.foresight.is_at_rest:
                return self.state
            at_work.calls.wait()

    def unread_rows(self) -> int:
        """Records that are known to be there, and in no micro-batch yet. Takes in what has been found. O(n)."""
        if not self._started:
            self.start()
        at_work = self.hosted
        self.host.run()
        self._in_work.take_changes(at_work)
        return int((at_work.index.ends() - self._in_work.table.positions).sum())

    @property
    def is_draining(self) -> bool:
        """Whether `drain` was called."""
        return self._draining

    def available(self) -> dict[str, tuple[int, int]]:
        """Of each split in work: its next position, and the position after the last record known to be there."""
        return self._in_work.available(self.hosted if self._started else None)

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
        # In all other cases discovery looks in the background.
        lost = () if self._started and not self._draining else self.host.enumerator.lost_splits()
        ranges = self.hosted.ranges(start, end, readers, min_rows)
        return [part for part in ranges if part.split.split_id not in lost]

    def everything(self, min_rows: int) -> list[SplitRange[SplitT]]:
        """What to read of a fresh source in one go, for a batch read: all there is now. Call `restore` and this only.

        A bounded source without an index is not looked ahead in: its splits have their ends in themselves.
        """
        self.drain()
        if self._source.boundedness is Boundedness.BOUNDED and not isinstance(self.hosted.foresight, OwnIndex):
            return self.hosted.whole_splits(self._readers, min_rows)
        found = []
        while (before := self.state) is not self.advance():
            found += self.ranges(before, self.state, self._readers, min_rows)
        return found

    def metrics(self) -> dict[str, float]:
        """What the enumerator counts."""
        return self.hosted.context.metric_group.values()

    def notify_committed(self, sequence: int) -> None:
        """The micro-batch that leads to the state of this number is committed."""
        if self._started:
            self.host.complete(sequence)

    # ---- inside: plans -------------------------------------------------------------------------------------------

    def _plan(self, max_rows: int | None) -> bool:
        """Plan, and hand the state out if there is news in it; whether there is."""
        at_work = self.hosted
        self._in_work.assign_waiting(at_work)
        at_work.context.changed = False
        ids = self._in_work.table.split_ids
        strategy = self._rules.strategy
        own_generator = strategy.generates_watermarks and strategy.out_of_orderness_us is None
        conditions = PlanConditions(
            max_rows=max_rows,
            # A run that only reads what is there (AvailableNow) goes alone.
            group_limit_us=MAX_WATERMARK if self._draining else self._group.limit_us(),
            horizon_us=at_work.context.horizon_us,
            idle=self._idle(),
            complete=np.fromiter((split_id in at_work.context.complete for split_id in ids), np.bool_, len(ids)),
            no_more_splits=at_work.context.no_more_splits,
            draining=self._draining,
        )
        advance = self._generators.advance if own_generator else None
        plan = at_work.foresight.plan(self._in_work.table, at_work.index, self._rules.planning, conditions, advance)
        # A snapshot says nothing of the time that passes while it is read.
        if not self._draining:
            self._group.tell(plan.slowest_us, partial(at_work.foresight.nearest_us, at_work.index, plan.after))
            unread = self._in_work.table.positions < at_work.index.ends()
            self._in_work.idle_clock.track(unread, plan.after.statuses, at_work.context.observed_us)
        is_news = plan.rows > 0 or plan.late.any() or has_news(self.state.table, self._in_work.table, plan.after)
        if not is_news and not self._announce_again:
            return False
        self._hand_out(plan)
        # There may be more than this plan was allowed to take.
        at_work.context.changed = True
        return True

    def _look_again(self) -> None:
        self.hosted.context.changed = True

    def _idle(self) -> npt.NDArray[np.bool_]:
        if self._draining:
            return np.asarray(self._in_work.table.statuses == SplitStatus.IDLE)
        split_ids, foresight = self._in_work.table.split_ids, self.hosted.foresight
        idle = self._in_work.idle_clock.idle(foresight.observed_us(split_ids))
        held_back = self.host.enumerator.held_back()
        if held_back:
            idle &= np.array([split_id not in held_back for split_id in split_ids], np.bool_)
        return idle

    def _hand_out(self, plan: MicroBatchPlan) -> None:
        at_work = self.hosted
        ids, positions = plan.after.split_ids, plan.after.positions.tolist()
        self._in_work.late = self._in_work.late + plan.late
        if plan.late.any():
            late, message = plan.late, "%d late records, at or below the watermark already announced, in %d splits: %s"
            most = {ids[i]: int(late[i]) for i in np.argsort(-late, kind="stable")[:_NAMED] if late[i]}
            _log.warning(message, late.sum(), np.count_nonzero(late), most)
        splits = at_work.foresight.hand_out(ids, positions)
        table = replace(plan.after, positions=np.array([split.position for split in splits], np.int64))
        sequence = self.state.sequence + 1
        self.state = SourceState(sequence, splits, table, self._in_work.late, self.host.snapshot(sequence))
        self.last_plan = plan
        self._announce_again = False
        self._in_work.table = plan.after
        self._leave_finished()
        at_work.index.forget_before(self._in_work.table.positions)

    # ---- inside: the table ---------------------------------------------------------------------------------------

    def _begin_from(self, state: SourceState[SplitT, CheckpointT]) -> None:
        self.state = state
        # At a restart Spark remembers the watermark of the query but not of each of its sources, and takes the minimum:
        # a source that says nothing again would hold the others back for ever.
        self._announce_again = self._rules.announces and state.table.combined != MIN_WATERMARK
        self._generators = SplitGenerators(self._rules.strategy)
        if len(state.table) and not self._draining:
            # The others may be asked before this source, which until then is where it was (FLINK-40505).
            self._group.tell(slowest_counting(state.table), None)

    def _take_over(self) -> None:
        """Let the splits of the state be in work."""
        self._in_work.take_over(self.state, self.hosted)
        self._leave_finished()

    def _leave_finished(self) -> None:
        self._generators.forget(self._in_work.leave_finished(self.hosted))
