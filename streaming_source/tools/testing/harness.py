"""Runs a source from its enumerator to its records, step by step, without Spark."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from itertools import pairwise
from typing import Any

import pyarrow as pa

from alignment.combine import SplitStatus
from alignment.events import RangeReport
from alignment.recording import Recorder
from alignment.strategy import AlignmentParameters, WatermarkStrategy
from alignment.timestamps import NO_TIMESTAMP
from streaming_source.api import Boundedness, Source, SourceReader, SourceReaderContext, SplitRange
from streaming_source.api.serializer import bytes_to_json, json_to_bytes
from streaming_source.coordinator import ReadRules, SourceCoordinator, SourceState, assign_ranges
from streaming_source.coordinator.rules import FrameOptions
from streaming_source.reader import create_reader
from streaming_source.tools.testing.fakes import FakeClock, InlineWorkers
from streaming_source.tools.testing.micro_batch import (
    PATIENCE_S,
    CollectingOutput,
    EmittedRecord,
    ReadBatch,
    ReaderHook,
    check_batch,
    create_inline_reader,
    read_ranges,
    reports_of,
)


@dataclass(eq=False, repr=False)
class SourceHarness:
    """A query over one source, as Spark runs it, on one thread and in time that stands still.

    Each micro-batch is planned (`plan`), read by as many readers as there are (`read`) and committed; `run_batch` does
    all three, and `restart` can come between any two steps. What a micro-batch contains is checked as it is read
    (`check_batch`). Splits travel to their readers pickled, and through a restart as their serializer writes them.

    Parameters
    ----------
    source, strategy
        What to read, and its event times and watermarks.
    readers
        How many read one micro-batch.
    max_rows
        Read limit; None for none.
    clock
        The source's clock, if it has one; work in the background is done when it is due by it.
    exact
        As with the exact watermark: drift is open unless the strategy aligns. If not, as for plain `withWatermark`:
        then it is the bound on out-of-orderness.
    available_now
        Read to the end of what is there, and then no further.
    read_ahead_rows
        How far the planner reads ahead where there is no index.
    min_rows
        The smallest range that is worth a reader of its own.
    threads
        Readers are those of an executor, and fetch on threads. If not, they fetch on the one thread there is.
    reports
        Event times are learnt from what the readers report (`indexing=off`). Called with the reports of each task, it
        says what arrives of them; None where the planner knows event times ahead of reading.
    schema
        Columns that the query reads; None for all that the source has.
    patience_s
        How long a reader may bring nothing of what was planned, by the wall clock.
    recorder
        Writes down what drives the planner's engine, for `alignment.recording.replay`.

    Attributes
    ----------
    state
        After the last micro-batch that was planned.
    batches
        Micro-batches that were committed.
    coordinator
        The planner, for what a test wants to see of it.
    """

    source: Source[Any, Any]
    strategy: WatermarkStrategy
    _: KW_ONLY
    readers: int = 2
    max_rows: int | None = None
    clock: FakeClock = field(default_factory=FakeClock)
    exact: bool = True
    available_now: bool = False
    read_ahead_rows: int = 10_000
    min_rows: int = 1
    threads: bool = False
    reports: Callable[[list[RangeReport]], list[RangeReport]] | None = None
    schema: pa.Schema | None = None
    patience_s: float = PATIENCE_S
    recorder: Recorder | None = None
    state: SourceState[Any, Any] = field(default_factory=SourceState.initial, init=False)
    batches: list[ReadBatch] = field(default_factory=list, init=False)
    _before: SourceState[Any, Any] | None = field(default=None, init=False)
    # Of each task its ranges and events, pickled as they travel to executors: the same when it is repeated.
    _tasks: list[bytes] | None = field(default=None, init=False)
    # Event times that are excused, by split: what had been announced when it joined, or came back from being idle.
    _excused: dict[str, int] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._columns = self.source.schema() if self.schema is None else self.schema
        # The state to which the last micro-batch leads, as it was planned.
        self._planned: SourceState[Any, Any] | None = None
        self.coordinator = self._new_coordinator()

    # ---- steps ---------------------------------------------------------------------------------------------------

    def plan(self) -> bool:
        """Plan the next micro-batch; False if there is nothing to do, or one that was planned is not read yet."""
        if self._before is not None:
            return False
        before, after = self.state, self.coordinator.advance(self.max_rows)
        self.coordinator.validate()
        if after is before:
            return False
        self._before, self.state, self._planned = before, after, after
        return True

    def read(self, hook: ReaderHook | None = None) -> ReadBatch:
        """Read the micro-batch that was planned, one reader after another. May be repeated, as Spark repeats tasks.

        The hook is called before each poll of a reader; it may raise, as a task that fails.
        """
        before, after = self._before, self.state
        assert before is not None, "plan() comes first, and must have found something to do"
        if self._tasks is None:
            self._tasks = self._new_tasks(self.coordinator.ranges(before, after, self.readers, self.min_rows))
        records = tuple(tuple(self._read(number, task, hook)) for number, task in enumerate(self._tasks))
        plan = self.coordinator.runtime.engine.last_plan if self.coordinator.state is after else None
        batch = ReadBatch(
            after.sequence, records, plan.bound_us if plan else None, after.table.combined, plan.rows if plan else None
        )
        self._excuse_splits(before, after)
        # What an offset leaves out must be read after a restart too.
        check_batch(batch, before, self._planned or after, self.strategy, self._excused, foreknown=self.foreknown)
        return batch

    @property
    def foreknown(self) -> bool:
        """True if all event times and numbers of records are known ahead of reading, so that plans are exact."""
        return self.reports is None

    def commit(self, batch: ReadBatch) -> None:
        """The micro-batch is done. As on Spark the enumerator is notified one micro-batch later."""
        if self.batches:
            self.coordinator.notify_committed(self.batches[-1].sequence)
        self.batches.append(batch)
        self._before = self._tasks = None

    def run_batch(self, hook: ReaderHook | None = None) -> ReadBatch | None:
        """Plan, read and commit one micro-batch, or go on with one that was planned; None if there is nothing to do."""
        if self._before is None and not self.plan():
            return None
        batch = self.read(hook)
        self.commit(batch)
        return batch

    def run(self, hook: ReaderHook | None = None) -> list[ReadBatch]:
        """Run micro-batches until there is nothing to do."""
        done = []
        while (batch := self.run_batch(hook)) is not None:
            done.append(batch)
        return done

    def rewind(self) -> None:
        """The micro-batch that was planned is given up, as when Spark could not write it down: `plan` plans anew."""
        assert self._before is not None, "plan() comes first: there is nothing to give up"
        self.state, self._before, self._tasks = self._before, None, None
        self.coordinator.rewind(self.state)

    def restart(self, *, readers: int | None = None, loses_plan: bool = False) -> None:
        """Stop without a word, as a process that is killed, and start again from what Spark has written down.

        Parameters
        ----------
        readers
            How many readers there are from now on; None for as many as before.
        loses_plan
            A micro-batch that was planned and not committed was not written down yet: `plan` plans anew. If not, the
            same one is read.
        """
        self.close()
        self.readers = self.readers if readers is None else readers
        self._tasks = None
        if loses_plan and self._before is not None:
            self.state, self._before = self._before, None
        self.state = self._written_and_read(self.state)
        if self._before is not None:
            self._before = self._written_and_read(self._before)
        self.coordinator = self._new_coordinator()

    def read_at_once(self) -> list[EmittedRecord]:
        """Read all there is in one go, as a batch query does. Of a fresh harness, instead of any other step."""
        assert not self.state.sequence, "a batch query reads a source from its beginning"
        tasks = self._new_tasks(self.coordinator.everything(self.min_rows))
        return [record for number, task in enumerate(tasks) for record in self._read(number, task)]

    def close(self) -> None:
        self.coordinator.close()

    def create_reader(self, context: SourceReaderContext) -> SourceReader[Any]:
        """A reader of the source, with threads or without as this harness reads."""
        if self.threads:
            return create_reader(self.source, context)
        return create_inline_reader(self.source, context, self.patience_s)

    # ---- what came of it -----------------------------------------------------------------------------------------

    @property
    def is_planned(self) -> bool:
        """True if a micro-batch is planned and not committed."""
        return self._before is not None

    @property
    def watermark(self) -> int:
        """The last one announced."""
        return self.state.table.combined

    def records(self) -> dict[str, list[tuple[int, int]]]:
        """Position and event time of every record of the committed micro-batches by split; none came twice."""
        by_split: dict[str, list[tuple[int, int]]] = {}
        for batch in self.batches:
            for record in batch.all_records:
                by_split.setdefault(record.split_id, []).append((record.position, record.time_us))
        for split_id, records in by_split.items():
            records.sort()
            twice = sorted({a for (a, _), (b, _) in pairwise(records) if a == b})
            if twice:
                raise AssertionError(f"split {split_id!r}: the records at {twice} came more than once")
        return by_split

    def _new_coordinator(self) -> SourceCoordinator[Any, Any]:
        coordinator = SourceCoordinator(
            self.source,
            self._rules(),
            self._columns,
            self.clock.now_us,
            readers=self.readers,
            workers=InlineWorkers(self.clock),
            recorder=self.recorder,
        )
        if self.available_now:
            coordinator.drain()
        is_read_again = self._before is not None
        coordinator.restore(self.state, is_read_again=is_read_again, continues_run=is_read_again)
        return coordinator

    def _rules(self) -> ReadRules:
        strategy, bound_us = self.strategy, self.strategy.out_of_orderness_us
        if not self.exact and strategy.alignment is None and bound_us is not None:
            # As by the options of a format, without the exact watermark.
            strategy = replace(strategy, alignment=AlignmentParameters(None, bound_us))
        indexing = "auto" if self.reports is None else "off"
        options = FrameOptions(watermark_rows=self.exact, indexing=indexing, max_rows_per_trigger=self.max_rows)
        by_source, bounded = self.source.emits_watermark, self.source.boundedness is Boundedness.BOUNDED
        rules = ReadRules.of(strategy, options, bounded=bounded, by_source=by_source)
        return replace(rules, read_ahead_rows=self.read_ahead_rows)

    def _new_tasks(self, ranges: Sequence[SplitRange[Any]]) -> list[bytes]:
        events = self.coordinator.host.take_events
        return [
            pickle.dumps((splits, tuple(events(number))))
            for number, splits in enumerate(assign_ranges(ranges, self.readers))
        ]

    def _read(self, subtask_id: int, task: bytes, hook: ReaderHook | None = None) -> list[EmittedRecord]:
        host = self.coordinator.host
        context = SourceReaderContext(
            self._columns,
            subtask_id,
            send_split_request=lambda: host.request_split(subtask_id),
            send_source_event_to_coordinator=lambda event: host.enumerator.handle_source_event(subtask_id, event),
            timestamp_assigner=self.strategy.timestamp_assigner,
        )
        output = CollectingOutput(self.strategy.timestamp_assigner, self._columns)
        ranges, events = pickle.loads(task)
        wait_s = self.patience_s if self.threads else 0
        read_ranges(ranges, events, lambda: self.create_reader(context), output, hook, wait_s)
        records, rules = output.records, self._rules()
        if (limit_us := rules.time_limit_us) is not None:
            valid = range(rules.earliest_us, limit_us)
            records = [one if one.time_us in valid else one._replace(time_us=NO_TIMESTAMP) for one in records]
        if self.reports is not None:
            self.coordinator.host.post_reports(self.reports(reports_of(ranges, records)))
        return records

    def _excuse_splits(self, before: SourceState[Any, Any], after: SourceState[Any, Any]) -> None:
        joined = set(after.table.split_ids) - set(before.table.split_ids)
        statuses = zip(before.table.split_ids, before.table.statuses, strict=True)
        came_back = [split_id for split_id, status in statuses if status == SplitStatus.IDLE]
        self._excused.update(dict.fromkeys((*joined, *came_back), before.table.combined))

    def _written_and_read(self, state: SourceState[Any, Any]) -> SourceState[Any, Any]:
        """As it comes back from an offset."""
        state = state.as_written(self.source)
        write = self.source.split_serializer
        splits = tuple(
            write.deserialize(write.version, json_to_bytes(bytes_to_json(write.serialize(split))))
            for split in state.splits
        )
        lost = [split for split, read in zip(state.splits, splits, strict=True) if read.position != split.position]
        assert not lost, f"the serializer of splits loses positions: {lost}"
        checkpoint, keep = state.checkpoint, self.source.enumerator_checkpoint_serializer
        if checkpoint is not None:
            written = bytes_to_json(keep.serialize(checkpoint))
            checkpoint = keep.deserialize(keep.version, json_to_bytes(written))
        return replace(state, splits=splits, checkpoint=checkpoint)
