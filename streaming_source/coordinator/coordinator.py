"""From one state of a source to the next: what Spark calls `latestOffset` and `partitions`, without Spark."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from alignment.combine import SplitStatus
from alignment.index import EventTimeIndex
from alignment.planner import MicroBatchPlan, PlanningRules, SplitTable, plan_micro_batch
from alignment.strategy import WatermarkStrategy
from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import MIN_WATERMARK, WatermarkGenerator
from streaming_source.api import Source, SourceSplit, SplitEnumerator, SplitRange
from streaming_source.coordinator.context import CoordinatorContext
from streaming_source.coordinator.generators import LatestWatermark
from streaming_source.coordinator.state import SourceState

__all__ = ["ReadRules", "SourceCoordinator"]

_log = logging.getLogger(__name__)

SplitT = TypeVar("SplitT", bound=SourceSplit)
CheckpointT = TypeVar("CheckpointT")


@dataclass(frozen=True, slots=True)
class ReadRules:
    """How a source is read, whatever it is.

    Attributes
    ----------
    strategy
        Event times, watermarks, idleness, alignment.
    planning
        What the planner makes of it.
    time_limit_us
        Event times from here on are invalid, or None.
    announces
        The watermark is announced by rows, so that Spark's own watermark follows it.
    """

    strategy: WatermarkStrategy
    planning: PlanningRules
    time_limit_us: int | None = None
    announces: bool = False


class SourceCoordinator(Generic[SplitT, CheckpointT]):
    """Hosts the enumerator of one source and plans micro-batch after micro-batch.

    Parameters
    ----------
    source, rules
        What to read, and how.
    schema
        The columns that the query reads, in the source's types.
    now_us
        Processing time in microseconds, monotonic: only idleness is measured with it.

    Notes
    -----
    `state` is the last state handed out. The table that the next plan starts from is derived from it: splits that the
    last micro-batch finished have left it, and splits discovered since have joined it.
    """

    def __init__(
        self,
        source: Source[SplitT, CheckpointT],
        rules: ReadRules,
        schema: pa.Schema,
        now_us: Callable[[], int],
    ) -> None:
        self._source = source
        self._rules = rules
        self._now_us = now_us
        self._index = EventTimeIndex(self._load_times)
        self._context: CoordinatorContext[SplitT] = CoordinatorContext(
            rules.strategy.timestamp_assigner, schema, self._index, rules.time_limit_us, now_us
        )
        self._generators: dict[str, WatermarkGenerator] = {}
        self._enumerator: SplitEnumerator[SplitT, CheckpointT]
        self._restored = self._started = self._draining = False
        self._announce_again = False
        self.state: SourceState[SplitT, CheckpointT] = SourceState.initial()
        self._table = SplitTable.empty()
        self._late = np.empty(0, np.int64)
        self._caught_up_us = np.empty(0, np.int64)
        self._idle_deadline_us: int | None = None

    # ---- life ----------------------------------------------------------------------------------------------------

    @property
    def restored(self) -> bool:
        """Whether `restore` was called."""
        return self._restored

    def restore(self, state: SourceState[SplitT, CheckpointT]) -> None:
        """Begin from a state: the one of an offset, or `SourceState.initial()`. Nothing is looked at yet."""
        self.state = state
        # At a restart Spark remembers the watermark of the query but not of each of its sources, and takes the minimum:
        # a source that says nothing again would hold the others back for ever.
        self._announce_again = self._rules.announces and state.table.combined != MIN_WATERMARK
        if state.checkpoint is None:
            self._enumerator = self._source.create_enumerator(self._context)
        else:
            self._enumerator = self._source.restore_enumerator(self._context, state.checkpoint)
        self._restored = True

    def drain(self) -> None:
        """From now on behave as if nothing new came in, and read to the end of what is there (AvailableNow)."""
        self._draining = True

    def start(self) -> None:
        """Start discovery and wait for its first result."""
        state = self.state
        for split in state.splits:
            self._index.add_split(split.split_id, split.position)
        self._table, self._late = state.table, state.late
        self._caught_up_us = np.where(state.table.statuses == SplitStatus.IDLE, MIN_WATERMARK, self._now_us())
        self._enumerator.restore_splits(state.splits)
        self._leave_finished()
        self._enumerator.start()
        self._context.run_handlers(wait_for_first=True)
        self._context.changed = self._started = True
        if self._draining:
            self._context.close()

    def close(self) -> None:
        """End discovery."""
        self._context.close()
        if self._restored:
            self._enumerator.close()

    # ---- planning ------------------------------------------------------------------------------------------------

    def advance(self, max_rows: int | None = None) -> SourceState[SplitT, CheckpointT]:
        """Plan the next micro-batch and return the state after it; the same object when there is nothing to do.

        Costs a few microseconds when nothing has changed since the last call.

        Parameters
        ----------
        max_rows
            Read limit, at least 1; None for none.
        """
        if not self._started:
            self.start()
        elif not self._draining:
            self._context.run_handlers()
        due = self._idle_deadline_us is not None and (self._context.observed_us or 0) >= self._idle_deadline_us
        if not self._context.changed and not due:
            return self.state
        self._context.changed = False
        self._take_added()
        plan = self._plan(max_rows)
        self._track_idleness(plan)
        if self._is_news(plan):
            self._hand_out(plan)
            # There may be more than this plan was allowed to take.
            self._context.changed = True
        return self.state

    def available(self) -> dict[str, tuple[int, int]]:
        """Of each split in work: its next position, and the position after the last record known to be there."""
        ends = self._index.ends() if self._started else self._table.positions
        columns = zip(self._table.split_ids, self._table.positions.tolist(), ends.tolist(), strict=False)
        return {split_id: (position, end) for split_id, position, end in columns}

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
        return [part for begun, ended in pairs for part in self._enumerator.ranges(begun, ended, rows_per_range)]

    def notify_committed(self) -> None:
        """The batch before the last one is committed."""
        if self._started:
            self._enumerator.notify_checkpoint_complete()

    # ---- inside --------------------------------------------------------------------------------------------------

    def _load_times(self, split_id: str, start: int, stop: int) -> npt.NDArray[np.int64]:
        times = self._enumerator.event_times(split_id, start, stop)
        limit_us = self._rules.time_limit_us
        return times if limit_us is None else np.where(times < limit_us, times, NO_TIMESTAMP)

    def _plan(self, max_rows: int | None) -> MicroBatchPlan:
        ids = self._table.split_ids
        strategy = self._rules.strategy
        own_generator = strategy.generates_watermarks and strategy.out_of_orderness_us is None
        return plan_micro_batch(
            self._table,
            self._index,
            self._rules.planning,
            max_rows=max_rows,
            idle=self._idle(),
            complete=np.fromiter((split_id in self._context.complete for split_id in ids), np.bool_, len(ids)),
            no_more_splits=self._context.no_more_splits,
            draining=self._draining,
            advance=self._generate if own_generator else None,
        )

    def _idle(self) -> npt.NDArray[np.bool_]:
        """Splits whose last record was read at least the idle timeout ago, as far as has been looked."""
        timeout_us = self._rules.strategy.idle_timeout_us
        if timeout_us is None:
            return np.zeros(len(self._table), np.bool_)
        if self._draining:
            # A snapshot says nothing of the time that passes while it is read.
            return np.asarray(self._table.statuses == SplitStatus.IDLE)
        return np.asarray(self._caught_up_us <= (self._context.observed_us or 0) - timeout_us)

    def _track_idleness(self, plan: MicroBatchPlan) -> None:
        """Restart the idle clock of every split that has, or just had, something to read."""
        unread = self._table.positions < self._index.ends()
        now_us = self._now_us()
        self._caught_up_us = np.where(unread, now_us, self._caught_up_us)
        waiting = self._caught_up_us[(plan.after.statuses == SplitStatus.ACTIVE) & ~unread]
        timeout_us = self._rules.strategy.idle_timeout_us
        self._idle_deadline_us = None
        if timeout_us is not None and waiting.size and not self._draining:
            self._idle_deadline_us = int(waiting.min()) + timeout_us
        elif timeout_us is not None and (unread & (plan.after.statuses == SplitStatus.ACTIVE)).any():
            self._idle_deadline_us = now_us + timeout_us

    def _is_news(self, plan: MicroBatchPlan) -> bool:
        """Whether the state after the plan differs in anything that Spark must know. Who is paused is no news."""
        known = tuple(
            i
            for i, s in zip(self.state.table.split_ids, self.state.table.statuses, strict=True)
            if s != SplitStatus.FINISHED
        )
        leaves = (SplitStatus.IDLE, SplitStatus.FINISHED)
        return bool(
            self._announce_again
            or plan.rows > 0
            or plan.after.combined != self.state.table.combined
            or known != plan.after.split_ids
            or any(((plan.after.statuses == s) != (self._table.statuses == s)).any() for s in leaves)
        )

    def _hand_out(self, plan: MicroBatchPlan) -> None:
        ids = plan.after.split_ids
        self._late = self._late + plan.late
        if plan.late.any():
            counts = {ids[i]: int(plan.late[i]) for i in np.flatnonzero(plan.late)}
            _log.warning("late records, at or below the watermark already announced, by split: %s", counts)
        positions = plan.after.positions.tolist()
        splits = tuple(self._enumerator.split_at(i, position) for i, position in zip(ids, positions, strict=True))
        checkpoint = self._enumerator.snapshot_state()
        self.state = SourceState(self.state.sequence + 1, splits, plan.after, self._late, checkpoint)
        self._announce_again = False
        self._table = plan.after
        self._leave_finished()
        self._index.forget_before(self._table.positions)

    def _take_added(self) -> None:
        """Let the splits that were discovered since the last plan join the table."""
        added = self._context.added
        if not added:
            return
        table = self._table
        ids = np.array([*table.split_ids, *(split.split_id for split in added)], dtype=object)
        order = np.argsort(ids, kind="stable")
        n = len(added)
        self._table = SplitTable(
            tuple(ids[order]),
            np.append(table.positions, [split.position for split in added])[order],
            np.append(table.watermarks, np.full(n, MIN_WATERMARK))[order],
            np.append(table.statuses, np.full(n, SplitStatus.ACTIVE, np.int8))[order],
            table.combined,
        )
        self._late = np.append(self._late, np.zeros(n, np.int64))[order]
        self._caught_up_us = np.append(self._caught_up_us, np.full(n, self._now_us()))[order]
        added.clear()

    def _leave_finished(self) -> None:
        """Let finished splits leave the table: the state that says so was handed out."""
        table = self._table
        gone = table.statuses == SplitStatus.FINISHED
        if not gone.any():
            return
        finished = [table.split_ids[slot] for slot in np.flatnonzero(gone)]
        self._index.remove(finished)
        for split_id in finished:
            self._enumerator.finish_split(split_id)
            self._context.complete.discard(split_id)
            self._generators.pop(split_id, None)
        keep = np.flatnonzero(~gone)
        self._table = SplitTable(
            tuple(table.split_ids[slot] for slot in keep),
            table.positions[keep],
            table.watermarks[keep],
            table.statuses[keep],
            table.combined,
        )
        self._late, self._caught_up_us = self._late[keep], self._caught_up_us[keep]

    def _generate(self, split_id: str, times: npt.NDArray[np.int64]) -> int:
        """Watermark of the user's own generator after these event times."""
        generator = self._generators.get(split_id)
        if generator is None:
            generator = self._generators[split_id] = self._rules.strategy.create_watermark_generator()
        output = LatestWatermark()
        generator.on_batch(times, output)
        generator.on_periodic_emit(output)
        return output.watermark
