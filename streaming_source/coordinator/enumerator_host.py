"""The enumerator in its planner: what it sees of it, and the life of it and of the readers that it knows."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from alignment import events
from alignment.engine import Engine
from alignment.event_time_range import ALL_TIMES, EventTimeRange
from alignment.sentence import named
from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import MAX_WATERMARK
from streaming_source.api import (
    ReaderInfo,
    SourceEvent,
    SplitEnumerator,
    SplitEnumeratorContext,
    SplitsAssignment,
)
from streaming_source.api.split import SplitT
from streaming_source.coordinator.calls import AsyncCalls
from streaming_source.coordinator.rules import ReadRules
from streaming_source.exceptions import SourceError

T = TypeVar("T")
U = TypeVar("U")
CheckpointT = TypeVar("CheckpointT")

Assignments: TypeAlias = dict[int, list[SplitT]]


class AssignmentTracker(Generic[SplitT]):
    """Splits by reader, and by the first checkpoint that has them.

    A checkpoint is a state that Spark was given, its id the state's number. Assignments are *uncheckpointed* until the
    next state is made, and forgotten when the micro-batch that leads to the state is committed.
    """

    def __init__(self) -> None:
        self.uncheckpointed: Assignments[SplitT] = {}
        self.by_checkpoint: dict[int, Assignments[SplitT]] = {}

    def record(self, assignment: Mapping[int, Sequence[SplitT]]) -> None:
        for subtask_id, splits in assignment.items():
            if splits:
                self.uncheckpointed.setdefault(subtask_id, []).extend(splits)

    def on_checkpoint(self, checkpoint_id: int) -> None:
        """A state was made, and has all that was assigned so far. O(1)."""
        self.by_checkpoint[checkpoint_id] = self.uncheckpointed
        self.uncheckpointed = {}

    def on_complete(self, checkpoint_id: int) -> None:
        """The micro-batch that leads to a state is committed: nothing before it comes back. O(states)."""
        for known in [known for known in self.by_checkpoint if known <= checkpoint_id]:
            del self.by_checkpoint[known]

    def take_back(self, subtask_id: int, checkpoint_id: int) -> list[SplitT]:
        """Take from a reader what it was assigned after a state, in the order in which it was. O(states + splits)."""
        later = [self.by_checkpoint[known] for known in sorted(self.by_checkpoint) if known > checkpoint_id]
        return [split for entry in [*later, self.uncheckpointed] for split in entry.pop(subtask_id, [])]

    def forget_after(self, checkpoint_id: int) -> list[int]:
        """Forget the states after one, which are given up; their ids."""
        given_up = sorted(known for known in self.by_checkpoint if known > checkpoint_id)
        for known in given_up:
            del self.by_checkpoint[known]
        return given_up


class EnumeratorHost(SplitEnumeratorContext[SplitT], Generic[SplitT, CheckpointT]):
    """Runs an enumerator as FLIP-27's source coordinator does, for readers that live for one micro-batch each.

    As the enumerator's context it carries out what that wants, and sends what it finds to the engine. The readers that
    it registers stand for the tasks of the next micro-batch. Each requests a split when it is registered and whenever
    it was given some, until the enumerator has no more for it: so all known splits are in work, and hold the watermark.
    Which task reads what of them is decided anew in each micro-batch.

    `enumerator` and `engine` are set once, before any use. `added` are splits assigned since they were last taken;
    `expected` has positions of splits before which there are records, for the planner to take, `known_ends` the last
    known of each. `events` wait for the readers that they were sent to.
    """

    enumerator: SplitEnumerator[SplitT, CheckpointT]
    engine: Engine

    def __init__(
        self,
        parallelism: int,
        schema: pa.Schema,
        rules: ReadRules,
        calls: AsyncCalls,
        clock_us: Callable[[], int],
        *,
        needs_event_times: bool = True,
    ) -> None:
        self._parallelism = parallelism
        self.schema = schema
        self.timestamp_assigner = rules.strategy.timestamp_assigner
        self.out_of_orderness_us = rules.planning.out_of_orderness_us
        self.supports_opaque_blocks = rules.supports_opaque_blocks
        self._rules = rules
        self._needs_event_times = needs_event_times
        self._clock_us = clock_us
        self._is_hosted = self._probes_records = self._is_in_snapshot = False
        self.calls = calls
        self.events: dict[int, list[SourceEvent]] = {}
        self.readers: dict[int, ReaderInfo] = {}
        # Readers that are to request a split, new ones and those that were given some; and those that get no more.
        self.asking: OrderedDict[int, None] = OrderedDict()
        self.without_more: set[int] = set()
        self.tracker: AssignmentTracker[SplitT] = AssignmentTracker()
        self.added: list[SplitT] = []
        self.expected: dict[str, int] = {}
        self.known_ends: dict[str, int] = {}

    def take_engine(self, engine: Engine, *, probes_records: bool) -> None:
        """Send events to this engine from now on. Called once, before any use.

        Where `probes_records` the enumerator's calls look for records of all splits; else they look for splits alone.
        """
        self.engine = engine
        self._is_hosted = True
        self._probes_records = probes_records

    @property
    def event_time_limit_us(self) -> int | None:
        return self._rules.time_limit_at(self._clock_us())

    @property
    def event_time_range(self) -> EventTimeRange:
        return self._rules.planning.times or ALL_TIMES

    @property
    def needs_event_times(self) -> bool:
        return self._needs_event_times

    # ---- readers -------------------------------------------------------------------------------------------------

    def current_parallelism(self) -> int:
        return self._parallelism

    def registered_readers(self) -> Mapping[int, ReaderInfo]:
        return dict(self.readers)

    def assign_splits(self, assignment: SplitsAssignment[SplitT]) -> None:
        # Copied: it may take effect later.
        by_reader = {subtask_id: tuple(splits) for subtask_id, splits in assignment.assignment.items()}
        for subtask_id, splits in by_reader.items():
            self._check_registered(subtask_id, f"cannot assign splits {[split.split_id for split in splits]}")
        self.calls.on_thread(lambda: self._assign(by_reader))

    def signal_no_more_splits(self, subtask_id: int) -> None:
        self.calls.on_thread(lambda: self._end(subtask_id))

    def send_event_to_source_reader(self, subtask_id: int, event: SourceEvent) -> None:
        self._check_registered(subtask_id, f"cannot send a {type(event).__name__}")
        self.calls.on_thread(lambda: self.events.setdefault(subtask_id, []).append(event))

    def take_events(self, subtask_id: int) -> list[SourceEvent]:
        return self.events.pop(subtask_id, [])

    @property
    def no_more_splits(self) -> bool:
        """True if no split will be assigned to any reader."""
        return bool(self.readers) and self.without_more >= self.readers.keys()

    # ---- work ----------------------------------------------------------------------------------------------------

    def call_async(
        self,
        call: Callable[[], T],
        handler: Callable[[T | None, BaseException | None], None],
        *,
        initial_delay_seconds: float = 0.0,
        period_seconds: float | None = None,
        at_each_trigger: bool = False,
    ) -> None:
        def handle(result: Any, error: BaseException | None, began_us: int) -> None:
            handler(result, error)
            if error is None:
                self.engine.apply(events.Probed(began_us, None if self._probes_records else ()))

        self.calls.call(
            call, handle, delay_s=initial_delay_seconds, period_s=period_seconds, at_each_trigger=at_each_trigger
        )

    def run_in_coordinator_thread(self, action: Callable[[], None]) -> None:
        self.calls.post(action)

    def map_on_workers(self, function: Callable[[T], U], items: Iterable[T]) -> list[U]:
        return self.calls.workers.map(function, items)

    # ---- event times ---------------------------------------------------------------------------------------------

    def add_blocks(
        self,
        split_id: str,
        rows: npt.ArrayLike,
        min_us: npt.ArrayLike,
        max_us: npt.ArrayLike,
        earliest_us: npt.ArrayLike | None = None,
    ) -> None:
        # Copied: it may take effect later.
        given = (rows, min_us, max_us, min_us if earliest_us is None else earliest_us)
        count, low, high, earliest = (np.array(column, np.int64, ndmin=1) for column in given)
        for bound in (low, high, earliest):
            bound[bound < self._rules.earliest_us] = NO_TIMESTAMP
        if high.size:
            is_known = (earliest == low).all()
            self._send(events.BlocksIndexed(split_id, count, low, high, None if is_known else earliest))

    def add_opaque_block(self, split_id: str, rows: int, max_us: int) -> None:
        self._send(events.OpaqueBlockIndexed(split_id, rows, max_us))

    def expect_records(self, ends: Mapping[str, int]) -> None:
        given = dict(ends)

        def expect() -> None:
            expected = {split_id: end for split_id, end in given.items() if split_id in self.engine.index}
            self.expected.update(expected)
            self.known_ends.update(expected)

        self.calls.on_thread(expect)

    def complete_split(self, split_id: str) -> None:
        self._send(events.SplitCompleted(split_id))

    def abandon_split(self, split_id: str) -> None:
        self._send(events.SplitAbandoned(split_id))

    def set_horizon(self, event_time_us: int | None) -> None:
        self._send(events.HorizonMoved(MAX_WATERMARK if event_time_us is None else event_time_us))

    def emit_watermark(self, watermark_us: int, writer: str | None = None) -> None:
        self._send(events.SourceWatermarkMoved(watermark_us, writer))

    # ---- life ----------------------------------------------------------------------------------------------------

    def start(self, restored_splits: Sequence[str] = ()) -> None:
        """Start the enumerator and register its readers, the restored splits shared out among them."""
        self.enumerator.start()
        self._register_all(restored_splits)

    def close(self) -> None:
        """Close the enumerator, and do nothing for it any more. What is under way on a worker is not waited for."""
        self.calls.close()
        self.enumerator.close()

    # ---- what readers report -------------------------------------------------------------------------------------

    def request_split(self, subtask_id: int) -> None:
        """A reader requests a split; the enumerator handles that in the next step."""
        self.asking[subtask_id] = None

    def post_source_event(self, subtask_id: int, event: SourceEvent) -> None:
        """A reader sends an event to the enumerator. From any thread; `work`, or the next plan, hands it on."""
        self.calls.post(lambda: self.enumerator.handle_source_event(subtask_id, event))

    def post_reports(self, reports: Sequence[events.RangeReport]) -> None:
        self.calls.post(lambda: self.engine.apply(events.RangesReported(tuple(reports))))

    # ---- steps ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Do what has arrived, and handle the requests for splits of all readers but those that get no more."""
        self.calls.run()
        while self.asking:
            subtask_id, _ = self.asking.popitem(last=False)
            if subtask_id not in self.without_more:
                self.enumerator.handle_split_request(subtask_id)

    def work(self) -> None:
        """Do what has arrived between two plans. An error is raised by the next plan."""
        try:
            self.run()
        except BaseException as error:  # whatever it is, the query must fail with it
            self.calls.fail(error)

    def run_until(self, is_done: Callable[[], bool], timeout_s: float | None = None) -> None:
        """Take steps until something is so, or the time is over."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self.run()
        while not is_done():
            left_s = None if deadline is None else deadline - time.monotonic()
            if left_s is not None and left_s <= 0:
                return
            self.calls.wait(left_s)
            self.run()

    def snapshot(self, checkpoint_id: int) -> CheckpointT:
        """The enumerator's part of a state; from now on all that was assigned so far is in the state."""
        self.tracker.on_checkpoint(checkpoint_id)
        self._is_in_snapshot = True
        try:
            return self.enumerator.snapshot_state(checkpoint_id)
        finally:
            self._is_in_snapshot = False

    def forget_splits(self, split_ids: Iterable[str]) -> None:
        """These were read to their ends, and leave the state."""
        for split_id in split_ids:
            self.expected.pop(split_id, None)
            self.known_ends.pop(split_id, None)

    def complete(self, checkpoint_id: int) -> None:
        self.tracker.on_complete(checkpoint_id)
        self.enumerator.notify_checkpoint_complete(checkpoint_id)

    def go_back(self, checkpoint_id: int, restored_splits: Sequence[str] = ()) -> None:
        """All readers go on from an earlier state, with the splits that it has; the later ones are given up."""
        readers = sorted(self.readers)
        for known in (self.readers, self.without_more, self.events):
            known.clear()
        for subtask_id in readers:
            self.enumerator.add_splits_back(self.tracker.take_back(subtask_id, checkpoint_id), subtask_id)
        for given_up in self.tracker.forget_after(checkpoint_id):
            self.enumerator.notify_checkpoint_aborted(given_up)
        self._register_all(restored_splits)

    # ---- on the coordinator's thread -----------------------------------------------------------------------------

    def _send(self, event: events.Event) -> None:
        # An enumerator that is being made has no engine yet.
        do = self.calls.on_thread if self._is_hosted else self.calls.post
        do(lambda: self.engine.apply(event))

    def _check_registered(self, subtask_id: int, what: str) -> None:
        if subtask_id not in self.readers:
            known = ", ".join(map(str, sorted(self.readers))) or "none"
            raise SourceError(f"{what} to reader {subtask_id}: it is not registered; registered are {known}")

    def _assign(self, by_reader: Mapping[int, Sequence[SplitT]]) -> None:
        splits = [split for reader_splits in by_reader.values() for split in reader_splits]
        ids: dict[str, int] = {}
        for split in splits:
            if split.split_id in ids or split.split_id in self.engine.index:
                raise SourceError(f"split {split.split_id!r} was assigned, and is being read already")
            if split.position < 0 or (split.stop is not None and split.stop < split.position):
                raise SourceError(
                    f"split {split.split_id!r} was assigned at position {split.position} with the stop {split.stop}: a "
                    "position is at least 0, and a stop not before it; see to the splits that the enumerator finds"
                )
            ids[split.split_id] = split.position
        if splits and self._is_in_snapshot:
            raise SourceError(
                f"{type(self.enumerator).__name__}.snapshot_state assigned splits {named(list(ids))}: the micro-batch "
                "that the snapshot belongs to is planned without them, so a restart would lose them; assign splits in "
                "handle_split_request, or in the handler of a call_async"
            )
        if splits:
            origins = tuple([split.origin().position for split in splits])
            self.engine.apply(events.SplitsAssigned(tuple(ids), tuple(ids.values()), origins, self.calls.now_us()))
        self.tracker.record(by_reader)
        self.added += splits
        for subtask_id, reader_splits in by_reader.items():
            if reader_splits:
                self.request_split(subtask_id)

    def _end(self, subtask_id: int) -> None:
        self.without_more.add(subtask_id)
        if self.no_more_splits:
            self.engine.apply(events.NoMoreSplits())

    def _register_all(self, restored_splits: Sequence[str]) -> None:
        readers = self._parallelism
        for subtask_id in range(readers):
            self.readers[subtask_id] = ReaderInfo(
                subtask_id, restored_splits=tuple(restored_splits[subtask_id::readers])
            )
            self.enumerator.add_reader(subtask_id)
            self.request_split(subtask_id)
