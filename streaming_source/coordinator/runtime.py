"""What a coordinator works with from one restore to the next: an enumerator, and all that is made for it."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import numpy as np
import pyarrow as pa

from alignment.engine import Engine
from alignment.events import RangeReport, RangesReported, Restored
from alignment.index import EventTimeIndex, EventTimeLoader
from alignment.strategy import WatermarkStrategy
from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import MAX_WATERMARK, Int64Array
from streaming_source.api import Source, SourceEvent, SplitRange, SupportsEventTimeIndex
from streaming_source.api.split import SplitT
from streaming_source.coordinator.enumerator_host import EnumeratorHost
from streaming_source.coordinator.event_times import EventTimeProvider, IndexedTimes
from streaming_source.coordinator.state import ReadRules, SourceState
from streaming_source.coordinator.threads import AsyncCalls, Workers
from streaming_source.exceptions import OptionError

if TYPE_CHECKING:
    from alignment.plan.by_reports import ReactivePlanner
    from alignment.recording import Recorder
    from alignment.split_generators import GeneratorState, SplitGenerators

__all__ = ["SourceRuntime", "assign_ranges"]

_ALL_ROWS: Final = 2**62

CheckpointT = TypeVar("CheckpointT")


@dataclass(frozen=True, slots=True)
class SourceRuntime(Generic[SplitT, CheckpointT]):
    """An enumerator in its place: its host, the engine, and where event times of unread records come from.

    `generators` say the watermarks of splits, where no bound gives them. Where it `reads_on` readers report, and a
    watermark needs all records before it: what was not reported is read again for it.
    """

    host: EnumeratorHost[SplitT, CheckpointT]
    event_times: EventTimeProvider[SplitT]
    engine: Engine
    generators: SplitGenerators | None = None
    reads_on: bool = False

    @classmethod
    def of(
        cls,
        source: Source[SplitT, CheckpointT],
        checkpoint: CheckpointT | None,
        rules: ReadRules,
        schema: pa.Schema,
        readers: int,
        workers: Workers,
        now_us: Callable[[], int],
        time_limit_us: Callable[[], int | None],
        recorder: Recorder | None = None,
    ) -> SourceRuntime[SplitT, CheckpointT]:
        """Make it for a source, as it starts from a checkpoint or afresh. Nothing is looked at yet.

        `time_limit_us` says from when on event times are invalid now; None for no limit. An `OptionError` if the source
        has an index, or records that end its splits, and is to be read by reports.
        """
        host: EnumeratorHost[SplitT, CheckpointT] = EnumeratorHost(readers, schema, rules, AsyncCalls(workers, now_us))
        if checkpoint is None:
            host.enumerator = source.create_enumerator(host)
        else:
            host.enumerator = source.restore_enumerator(host, checkpoint)
        event_times = _event_times_of(source, host, rules)
        index = _index_of(event_times, rules.earliest_us, recorder)
        generators = _generators_of(event_times, index, rules)
        engine = _engine_of(index, generators, rules, recorder)
        host.take_engine(engine, time_limit_us, probes_records=isinstance(event_times, IndexedTimes))
        return cls(host, event_times, engine, generators, rules.reports and generators is not None)

    def ranges(
        self,
        start: SourceState[SplitT, CheckpointT],
        end: SourceState[SplitT, CheckpointT],
        readers: int,
        min_rows: int,
    ) -> list[SplitRange[SplitT]]:
        """What to read between two states, cut so that it can be shared by `readers`."""
        before = start.by_id()
        pairs = [(before.get(split_id) or split.origin(), split) for split_id, split in end.by_id().items()]
        if self.reads_on:
            seen_to = self.seen_to(end)
            pairs = [(begun.at(seen_to.get(begun.split_id, begun.position)), ended) for begun, ended in pairs]
        pairs = [(begun, ended) for begun, ended in pairs if ended.position > begun.position]
        if self.reads_on:
            # A watermark needs the records in their order: a split has one reader.
            return [part for begun, ended in pairs for part in self.event_times.ranges(begun, ended, _ALL_ROWS)]
        rows = sum(ended.position - begun.position for begun, ended in pairs)
        rows_per_range = max(min_rows, _share(rows, readers))
        return [part for begun, ended in pairs for part in self.event_times.ranges(begun, ended, rows_per_range)]

    def seen_to(self, end: SourceState[SplitT, CheckpointT]) -> dict[str, int]:
        """Positions of splits from which a micro-batch reads, where these are before the ones at which it begins.

        What was not reported when the state `end` was planned is read again, so that no watermark is lost.
        """
        states = zip(end.splits, end.generators, strict=True) if end.generators else ()
        known = [(split.split_id, state.position) for split, state in states if state is not None]
        return {split_id: position for split_id, position in known if position is not None}

    def resumed_generators(
        self, start: SourceState[SplitT, CheckpointT], end: SourceState[SplitT, CheckpointT]
    ) -> dict[str, tuple[int, GeneratorState | None]]:
        """What readers need to say the watermarks of what they read between two states; empty where they do not.

        By split id from which position on records are emitted, and what a generator goes on from.
        """
        if not self.reads_on:
            return {}
        before = start.by_id()
        states = end.generators or [None] * len(end.splits)
        return {
            split.split_id: ((before.get(split.split_id) or split.origin()).position, state)
            for split, state in zip(end.splits, states, strict=True)
        }

    def begin_from(self, state: SourceState[SplitT, CheckpointT]) -> None:
        """Let the splits of a state be in work; those that it finished leave."""
        origins = np.array([split.origin().position for split in state.splits], np.int64)
        restored = Restored(state.table, origins, state.late, state.silent_since_us, self.host.calls.now_us())
        self.engine.apply(restored)
        if self.generators is not None and state.generators:
            self.generators.restore([split.split_id for split in state.splits], state.generators)
        self.event_times.restore_splits(state)
        self.event_times.finish_splits(state.finished())

    def go_back(self, state: SourceState[SplitT, CheckpointT]) -> None:
        """Give back what was assigned since an earlier state, and plan on from that."""
        self.host.added.clear()
        self.begin_from(state)
        self.host.go_back(state.sequence, [split.split_id for split in state.unfinished()])

    def assign_waiting(self) -> None:
        """Let splits that wait join until something before the horizon can be read."""
        engine = self.engine
        while engine.horizon_us < MAX_WATERMARK:
            nearest_us = engine.nearest_us()
            readable = engine.readable_splits()
            if not self.event_times.assign_waiting(readable, MAX_WATERMARK if nearest_us is None else nearest_us):
                return
            self.take_added()

    def take_added(self) -> None:
        """Let event times be found of the splits that were assigned."""
        if added := self.host.take_added():
            self.event_times.add_splits(added)

    def whole_splits(self, readers: int, min_rows: int) -> list[SplitRange[SplitT]]:
        """All that a fresh source has that ends, found by its enumerator alone. Call this only."""
        self.host.start()
        self.host.run_until(lambda: not self.host.calls.awaits_first)
        splits = [split for split in self.host.added if split.stop is None or split.stop > split.position]
        sizes = [(split.stop or split.position + 1) - split.position for split in splits]
        rows_per_range = max(min_rows, _share(sum(sizes), readers))
        return [
            part
            for split, rows in zip(splits, sizes, strict=True)
            for part in (
                SplitRange.evenly(split, split.stop, rows_per_range)
                if split.is_divisible and split.stop is not None
                else [SplitRange(split, rows)]
            )
        ]

    # ---- what readers say ----------------------------------------------------------------------------------------

    def take_reports(self, reports: Sequence[RangeReport]) -> None:
        self.host.calls.post(partial(self.engine.apply, RangesReported(tuple(reports))))

    def take_event(self, subtask_id: int, event: SourceEvent) -> None:
        """A reader sends an event to the enumerator. From any thread; `work`, or the next plan, hands it on."""
        self.host.calls.post(partial(self.host.handle_source_event, subtask_id, event))

    def work(self) -> None:
        """Let the enumerator do what has arrived, between two plans. An error is raised by the next plan."""
        try:
            self.host.run()
        except BaseException as error:  # whatever it is, the query must hear of it
            self.host.calls.fail(error)


def _event_times_of(
    source: Source[SplitT, Any], host: EnumeratorHost[SplitT, Any], rules: ReadRules
) -> EventTimeProvider[SplitT]:
    """Where the event times of a source come from, by what its enumerator is and what the user decided."""
    enumerator = host.enumerator
    if isinstance(enumerator, SupportsEventTimeIndex):
        if rules.reports:
            raise OptionError(
                f"option indexing = 'off': {source.name} has an index of its own, and what is read next is chosen by "
                "it; leave the option out"
            )
        return _indexed_times_of(source, enumerator, host.schema, rules.strategy)
    # These are imported here and not above: they bring the readers with them, which a planner with an index never runs.
    if not rules.reports:
        from streaming_source.coordinator.event_times.read_ahead import ReadAheadTimes

        return ReadAheadTimes(
            source,
            host,
            rules.read_ahead_rows,
            max_drift_us=rules.planning.max_drift_us,
            allow_unaligned=rules.allow_unaligned,
            columns=rules.strategy.generator_columns,
            hears=rules.strategy.uses_source_watermarks,
        )
    if source.end_of_stream is not None:
        raise OptionError(
            f"option indexing = 'off': {source.name} has records that end their splits (Source.end_of_stream), which "
            "are only found where a split is read in order; leave the option out"
        )
    from streaming_source.coordinator.event_times.reported import ReportedTimes

    return ReportedTimes(source, host)


def _indexed_times_of(
    source: Source[SplitT, Any],
    enumerator: SupportsEventTimeIndex[SplitT],
    schema: pa.Schema,
    strategy: WatermarkStrategy,
) -> IndexedTimes[SplitT]:
    if strategy.uses_source_watermarks:
        raise OptionError(
            f"WatermarkStrategy.from_source_watermarks(): {source.name} has an index of event times, and emits no "
            "watermarks; use for_bounded_out_of_orderness(...), or for_generator(...) for a rule of your own"
        )
    columns = strategy.generator_columns
    if not columns:
        return IndexedTimes(enumerator)
    # Here and not above: it brings the readers with it.
    from streaming_source.coordinator.event_times.ahead_reader import read_range

    assigner = strategy.timestamp_assigner
    return IndexedTimes(enumerator, lambda split: read_range(source, split, schema, assigner, columns))


def _index_of(event_times: EventTimeProvider[Any], earliest_us: int, recorder: Recorder | None) -> EventTimeIndex:
    """An index that loads event times where they come from."""

    def load_valid(split_id: str, start: int, stop: int) -> Int64Array:
        times = event_times.event_times(split_id, start, stop)
        return times if earliest_us == NO_TIMESTAMP else np.where(times < earliest_us, NO_TIMESTAMP, times)

    load: EventTimeLoader = load_valid
    locate = event_times.locate
    if recorder is not None:
        load, locate = recorder.loading(load), locate and recorder.locating(locate)
    return EventTimeIndex(load, cached_times=event_times.cached_times, locate=locate)


def _generators_of(
    event_times: EventTimeProvider[Any], index: EventTimeIndex, rules: ReadRules
) -> SplitGenerators | None:
    """What says the watermarks, where no bound gives them."""
    strategy = rules.strategy
    if not strategy.makes_own_watermarks:
        return None
    # Here and not above: most queries have a bound.
    from alignment.split_generators import SourceWatermarks, UserGenerators

    interval_us = strategy.auto_watermark_interval_us
    if strategy.uses_source_watermarks:
        return SourceWatermarks(interval_us, event_times.said_before)
    needs_columns = bool(strategy.generator_columns)

    def load(split_id: str, start: int, stop: int) -> Iterator[tuple[pa.RecordBatch | None, Int64Array]]:
        if not needs_columns:
            yield None, index.times_between(split_id, start, stop)
            return
        for block in event_times.blocks(split_id, start, stop):
            times = index.valid(block.times)
            yield block.records, np.where(times < rules.earliest_us, NO_TIMESTAMP, times)

    return UserGenerators(strategy.create_watermark_generator, interval_us, load)


def _engine_of(
    index: EventTimeIndex, generators: SplitGenerators | None, rules: ReadRules, recorder: Recorder | None
) -> Engine:
    strategy = rules.strategy
    if recorder is not None:
        recorder.start(
            rules.planning, strategy.idle_timeout_us, by_reports=rules.reports, generates=generators is not None
        )
        if generators is not None:
            generators.record = recorder.write
    reactive: ReactivePlanner | None = None
    if rules.reports:
        # Here and not above: most queries plan by an index.
        from alignment.plan.by_reports import ReactivePlanner

        reactive = ReactivePlanner(rules.planning)
    return Engine(
        rules.planning,
        index,
        idle_timeout_us=strategy.idle_timeout_us,
        reactive=reactive,
        generators=generators,
        record=None if recorder is None else recorder.write,
    )


def _share(rows: int, readers: int) -> int:
    """The size of ranges of which there are at least as many as readers, if there are as many rows."""
    share = -(-rows // readers)
    return share if -(-rows // max(share, 1)) >= readers else max(rows // readers, 1)


def assign_ranges(
    ranges: Sequence[SplitRange[SplitT]], readers: int, max_rows: int | None = None
) -> list[list[SplitT]]:
    """Give ranges to at most `readers` readers so that each has about as many records; no reader is left empty.

    Largest range first, each to the reader that has least: within 4/3 of the best. O(n log n). Equal input gives equal
    output. Ranges of one split stay in their order within a reader. With `max_rows` no reader of divisible splits has
    more records than that, and there are as many readers as that takes.
    """
    if max_rows is not None:
        ranges = [part for whole in ranges for part in _cut(whole, max_rows)]
    loads = [(0, reader) for reader in range(min(readers, len(ranges)))]
    assigned: list[list[int]] = [[] for _ in loads]
    for number in sorted(range(len(ranges)), key=lambda n: (-ranges[n].rows, n)):
        rows, reader = heapq.heappop(loads)
        if max_rows is not None and rows and rows + ranges[number].rows > max_rows:
            heapq.heappush(loads, (rows, reader))
            rows, reader = 0, len(assigned)
            assigned.append([])
        assigned[reader].append(number)
        heapq.heappush(loads, (rows + ranges[number].rows, reader))
    return [[ranges[number].split for number in sorted(numbers)] for numbers in assigned]


def _cut(whole: SplitRange[SplitT], max_rows: int) -> list[SplitRange[SplitT]]:
    split = whole.split
    if whole.rows <= max_rows or not split.is_divisible or split.stop is None:
        return [whole]
    return SplitRange.evenly(split, split.stop, max_rows)
