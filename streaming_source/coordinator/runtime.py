"""All that a coordinator makes anew with each restore: an enumerator, an engine, and where event times come from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import pyarrow as pa

from alignment.engine import Engine
from alignment.index import EventTimeIndex
from alignment.shown import log_of
from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import Int64Array
from streaming_source.api import Boundedness, Source, SplitEnumerator, SplitEnumeratorContext, SupportsEventTimeIndex
from streaming_source.api.enumerator import SupportsScan
from streaming_source.api.split import SplitT
from streaming_source.coordinator.enumerator_host import EnumeratorHost
from streaming_source.coordinator.event_times import EventTimeProvider, IndexedTimes
from streaming_source.coordinator.rules import ReadRules
from streaming_source.exceptions import OptionError

if TYPE_CHECKING:
    from alignment.plan.by_reports import ReactivePlanner
    from alignment.recording import Recorder
    from alignment.split_generators import SplitGenerators

_log = log_of(__name__)

CheckpointT = TypeVar("CheckpointT")


@dataclass(eq=False, frozen=True)
class EndedEnumerator(SplitEnumerator[SplitT, CheckpointT]):
    """Has no split, and keeps the checkpoint of the source's own enumerator.

    So a restart after the end of a source neither lists nor opens it: what was read may have been deleted.
    """

    context: SplitEnumeratorContext[SplitT]
    checkpoint: CheckpointT
    name: str

    def start(self) -> None:
        """Log that nothing is discovered any more."""
        _log.warning(
            "%s: this bounded source was read to its end by an earlier run. What has come since is not part of this "
            "query, and is not read; to read it use a new checkpointLocation, with or without bounded",
            self.name,
        )

    def handle_split_request(self, subtask_id: int, requester_hostname: str | None = None) -> None:
        self.context.signal_no_more_splits(subtask_id)

    def add_splits_back(self, splits: Sequence[SplitT], subtask_id: int) -> None:
        """It has given none."""

    def snapshot_state(self, checkpoint_id: int) -> CheckpointT:
        return self.checkpoint


@dataclass(frozen=True, slots=True)
class SourceRuntime(Generic[SplitT, CheckpointT]):
    """An enumerator in its place: its host, the engine, and where event times of unread records come from.

    `generators` give the watermarks of splits, where no bound does. Where it `reads_on` readers report, and a
    watermark needs all records before it: what was not reported is read again for it.
    """

    name: str
    host: EnumeratorHost[SplitT, CheckpointT]
    event_times: EventTimeProvider[SplitT]
    engine: Engine
    generators: SplitGenerators | None = None
    reads_on: bool = False

    @classmethod
    def of(
        cls,
        source: Source[SplitT, CheckpointT],
        host: EnumeratorHost[SplitT, CheckpointT],
        checkpoint: CheckpointT | None,
        rules: ReadRules,
        recorder: Recorder | None,
        *,
        has_ended: bool = False,
    ) -> SourceRuntime[SplitT, CheckpointT]:
        """Make it for a source, as it starts from a checkpoint or afresh. Nothing is listed or read yet.

        If it is bounded and `has_ended`, its own enumerator is not started, unless that has to clean up: nothing is
        listed or opened any more.

        An `OptionError` if the source has an index, or records that end its splits, and is to be read by reports.
        """
        if checkpoint is None:
            host.enumerator = source.create_enumerator(host)
        else:
            # Made in any case: it refuses a checkpoint that does not fit the options.
            host.enumerator = enumerator = source.restore_enumerator(host, checkpoint)
            if has_ended and source.boundedness is Boundedness.BOUNDED and not enumerator.cleans_up:
                enumerator.close()
                host.enumerator = EndedEnumerator(host, checkpoint, source.name)
        event_times = _event_times_of(source, host, rules)
        index = event_times.create_index(rules, recorder)
        generators = _generators_of(event_times, index, rules)
        engine = _engine_of(index, generators, rules, recorder)
        host.take_engine(engine, probes_records=isinstance(event_times, IndexedTimes))
        return cls(source.name, host, event_times, engine, generators, rules.options.reports and generators is not None)


def _event_times_of(
    source: Source[SplitT, Any], host: EnumeratorHost[SplitT, Any], rules: ReadRules
) -> EventTimeProvider[SplitT]:
    """Return the provider of event times, by the kind of the enumerator and the user's options."""
    enumerator = host.enumerator
    if isinstance(enumerator, SupportsEventTimeIndex):
        if rules.options.reports:
            raise OptionError(
                f"option indexing = 'off': {source.name} has an index of its own, and what is read next is chosen by "
                "it; leave the option out"
            )
        # Where a record may be late that is known already, or another source waits for this one, the whole scan counts.
        waits_for_all = rules.planning.lateness != "none" or rules.group is not None
        if isinstance(enumerator, SupportsScan) and enumerator.may_scan:
            # Imported here: most files have statistics.
            from streaming_source.coordinator.event_times.scanned import ScannedTimes

            in_parts = not waits_for_all
            return ScannedTimes(source, enumerator, host.schema, rules.strategy, host, in_parts=in_parts)
        return IndexedTimes(source, enumerator, host.schema, rules.strategy)
    # These are imported here and not above: they bring the readers with them, which a planner with an index never runs.
    if not rules.options.reports:
        from streaming_source.coordinator.event_times.read_ahead import ReadAheadTimes

        return ReadAheadTimes(source, host, rules)
    if source.end_of_stream is not None:
        raise OptionError(
            f"option indexing = 'off': {source.name} has records that end their splits (Source.end_of_stream), which "
            "are only found where a split is read in order; leave the option out"
        )
    from streaming_source.coordinator.event_times.reported import ReportedTimes

    return ReportedTimes(source, host)


def _generators_of(
    event_times: EventTimeProvider[Any], index: EventTimeIndex, rules: ReadRules
) -> SplitGenerators | None:
    """Return what gives the watermarks, where no bound does."""
    strategy = rules.strategy
    if not strategy.makes_own_watermarks or rules.planning.by_source:
        return None
    # Here and not above: most queries have a bound.
    from alignment.split_generators import SourceWatermarks, UserGenerators

    interval_us = strategy.auto_watermark_interval_us
    if strategy.uses_source_watermarks:
        return SourceWatermarks(interval_us, event_times.emitted_before)
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
        # Here and not above: most queries write no log of events.
        from alignment.recording import EngineStarted

        generates, reports = generators is not None, rules.options.reports
        recorder.start(EngineStarted(rules.planning, strategy.idle_timeout_us, reports, generates, rules.counts_runs))
        if generators is not None:
            generators.record = recorder.write
    reactive: ReactivePlanner | None = None
    if rules.options.reports:
        # Here and not above: most queries plan by an index.
        from alignment.plan.by_reports import ReactivePlanner

        reactive = ReactivePlanner(rules.planning)
    return Engine(
        rules.planning,
        index,
        idle_timeout_us=strategy.idle_timeout_us,
        counts_runs=rules.counts_runs,
        reactive=reactive,
        generators=generators,
        record=None if recorder is None else recorder.write,
    )
