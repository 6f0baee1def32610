"""From one state of a source to the next: what Spark calls `latestOffset` and `partitions`, without Spark."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from alignment.combine import SplitStatus
from alignment.durations import format_duration
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
_LOOK_S: Final = 1.0
"""How long a trigger that finds nothing waits for another look."""
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
        Processing time in microseconds since the epoch, monotonic: only idleness is measured with it.
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
        # When it was said that what is there is all there is (AvailableNow); None as long as more may come.
        self._drains_from_us: int | None = None
        self._announce_again = self._started = self._warned = False
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
        if alignment is not None and not self.is_draining:
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
        self._drains_from_us = self._now_us()
        if self._started:
            self.hosted.calls.end()
            self.hosted.foresight.drain()

    def start(self) -> None:
        """Start discovery and wait for its first result."""
        at_work = self.hosted
        if self.is_draining:
            at_work.foresight.drain()
        self._take_over()
        self.host.start(self._in_work.table.split_ids)
        self.host.run_until(lambda: not at_work.calls.awaits_first)
        self._in_work.take_changes(at_work)
        at_work.foresight.start()
        at_work.context.changed = self._started = True
        if self.is_draining:
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

        Where looking is cheap, it is looked for in this very call whether there is something to do. A source without an
        index that is being drained is waited for: what has not been seen of it may be there.

        Parameters
        ----------
        max_rows
            Read limit, at least 1; None for none.
        """
        has_looked = not self._started
        if not self._started:
            self.start()
        at_work = self.hosted
        while True:
            at_work.host.run()
            self._in_work.take_changes(at_work)
            if self.is_draining:
                at_work.foresight.look_on()
            is_due = at_work.context.changed or self._in_work.idle_clock.is_due(at_work.context.observed_us)
            if is_due and (not self.is_draining or at_work.foresight.is_settled) and self._plan(max_rows):
                return self.state
            if not self.is_draining:
                if has_looked:
                    return self.state
                self._look_for_more()
                has_looked = True
                continue
            if at_work.foresight.is_at_rest:
                self._warn_of_unread()
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
        return self._drains_from_us is not None

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
        return self.hosted.ranges(start, end, readers, min_rows)

    def everything(self, min_rows: int) -> list[SplitRange[SplitT]]:
        """What to read of a fresh source in one go, for a batch read: all there is now. Call `restore` and this only.

        A bounded source without an index is not looked ahead in: its splits have their ends in themselves.
        """
        self.drain()
        if self._source.boundedness is Boundedness.BOUNDED and not isinstance(self.hosted.foresight, OwnIndex):
            return self.hosted.whole_splits()
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
            group_limit_us=MAX_WATERMARK if self.is_draining else self._group.limit_us(),
            horizon_us=at_work.context.horizon_us,
            idle=self._idle(),
            complete=np.fromiter((split_id in at_work.context.complete for split_id in ids), np.bool_, len(ids)),
            no_more_splits=at_work.context.no_more_splits,
            draining=self.is_draining,
        )
        advance = self._generators.advance if own_generator else None
        plan = at_work.foresight.plan(self._in_work.table, at_work.index, self._rules.planning, conditions, advance)
        if not self.is_draining:
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

    def _look_for_more(self) -> None:
        """Whether something is there that was not seen yet, as far as that can be said soon."""
        at_work = self.hosted
        at_work.calls.refresh(_LOOK_S)
        if at_work.context.expected:
            at_work.foresight.look_again(at_work.context.expected)
            at_work.context.expected.clear()
            at_work.host.run_until(at_work.foresight.has_looked_again, _LOOK_S)

    def _warn_of_unread(self) -> None:
        """The run ends (AvailableNow): say once what it leaves unread, and why."""
        table = self._in_work.table
        unread = self.hosted.index.ends() - table.positions
        if self._warned or not unread.any():
            return
        self._warned = True
        waits_for = (table.statuses == SplitStatus.ACTIVE) & (unread == 0)
        slowest = [table.split_ids[i] for i in np.argsort(table.watermarks, kind="stable") if waits_for[i]][:1]
        drift_us, idle_us = self._rules.planning.max_drift_us, self._rules.strategy.idle_timeout_us
        _log.warning(
            "this run ends with %d records unread, in %d splits: %s. They are later than the watermark of split %r by "
            "more than %s (maxDrift, or else maxOutOfOrderness), and that split may still get earlier ones. A later "
            "run reads them when it has got some%s. To read all in each run raise maxDrift, give neither of the two "
            "options, or use the exact watermark",
            unread.sum(),
            np.count_nonzero(unread),
            _most(table.split_ids, unread),
            *(slowest or ["?"]),
            format_duration(drift_us or 0),
            "" if idle_us is None else f", or has had nothing to read for idleTimeout, {format_duration(idle_us)}",
        )

    def _look_again(self) -> None:
        self.hosted.context.changed = True

    def _idle(self) -> npt.NDArray[np.bool_]:
        table, clock = self._in_work.table, self._in_work.idle_clock
        split_ids, observed_us = table.split_ids, self.hosted.foresight.observed_us(table.split_ids)
        if self._drains_from_us is None:
            idle = clock.idle(observed_us)
        else:
            # A snapshot says nothing of the time that passes while it is read. Of a split that never had a record
            # nobody knows when it will: a run that ends does not wait for it.
            is_new = (table.positions == self._in_work.origins) & (np.asarray(observed_us) > MIN_WATERMARK)
            idle = clock.idle(np.minimum(observed_us, self._drains_from_us)) | is_new
            idle |= table.statuses == SplitStatus.IDLE
        held_back = self.host.enumerator.held_back()
        if held_back:
            idle &= np.array([split_id not in held_back for split_id in split_ids], np.bool_)
        return idle

    def _hand_out(self, plan: MicroBatchPlan) -> None:
        at_work = self.hosted
        ids, positions = plan.after.split_ids, plan.after.positions
        self._in_work.late = self._in_work.late + plan.late
        if plan.late.any():
            late, message = plan.late, "%d late records, at or below the watermark already announced, in %d splits: %s"
            _log.warning(message, late.sum(), np.count_nonzero(late), _most(ids, late))
        splits = at_work.foresight.hand_out(ids, positions.tolist())
        table = replace(plan.after, positions=np.array([split.position for split in splits], np.int64))
        sequence = self.state.sequence + 1
        is_silent = (positions == at_work.index.ends()) & (plan.after.statuses != SplitStatus.FINISHED)
        silent_since_us = self._in_work.idle_clock.silent_since(is_silent)
        checkpoint = self.host.snapshot(sequence)
        self.state = SourceState(sequence, splits, table, self._in_work.late, silent_since_us, checkpoint)
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
        if len(state.table) and not self.is_draining:
            # The others may be asked before this source, which until then is where it was (FLINK-40505).
            self._group.tell(slowest_counting(state.table), None)

    def _take_over(self) -> None:
        """Let the splits of the state be in work."""
        self._in_work.take_over(self.state, self.hosted)
        self._leave_finished()

    def _leave_finished(self) -> None:
        self._generators.forget(self._in_work.leave_finished(self.hosted))


def _most(split_ids: Sequence[str], counts: npt.NDArray[np.int64]) -> dict[str, int]:
    """The splits that have most, and how many."""
    return {split_ids[i]: int(counts[i]) for i in np.argsort(-counts, kind="stable")[:_NAMED] if counts[i]}
