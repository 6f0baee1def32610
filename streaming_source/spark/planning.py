"""What Spark's planner process holds of one query: the coordinator, and the way back from its readers."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from streaming_source.api import Source
from streaming_source.coordinator import (
    ReadRules,
    SourceCoordinator,
    SourceState,
    assign_ranges,
    monotonic_us,
    processing_time_us,
    wall_clock_us,
)
from streaming_source.coordinator.standstill import StandstillWarning
from streaming_source.exceptions import OptionError
from streaming_source.monitoring.report import WatermarkReport
from streaming_source.spark.fixed_options import fixed_options
from streaming_source.spark.logs import log_lines_of
from streaming_source.spark.offsets import Offset, OffsetCodec
from streaming_source.spark.options import FrameOptions
from streaming_source.spark.partitions import AlignedInputPartition
from streaming_source.spark.watermark_rows import watermark_row_time

if TYPE_CHECKING:
    from alignment.recording import Recorder
    from streaming_source.coordinator.group_exchange import GroupExchange
    from streaming_source.spark.channel import PlannerChannel

__all__ = ["StreamPlanning"]


class StreamPlanning:
    """Offsets and partitions of one stream. Made where it is used: it does not travel.

    The coordinator is for one thread at a time: whoever lets it work holds a lock. Beside Spark's own thread that is
    the gateway, so that readers get answers to their events while they read.

    Parameters
    ----------
    source, rules, schema, options
        What to read, and how.
    readers
        Tasks a micro-batch.
    """

    def __init__(
        self, source: Source[Any, Any], rules: ReadRules, schema: pa.Schema, options: FrameOptions, readers: int
    ) -> None:
        self._options = options
        self._readers = readers
        self._codec = OffsetCodec(source, fixed_options(rules, schema))
        self._source_name = source.name
        self._turn = threading.RLock()
        self._coordinator: SourceCoordinator[Any, Any] = SourceCoordinator(
            source,
            rules,
            schema,
            processing_time_us,
            readers=readers,
            meeting=_meeting(rules, source.name),
            recorder=_recorder(options.event_log, source),
            clock_us=wall_clock_us,
        )
        warn_after_us = options.warn_after(rules.strategy.idle_timeout_us)
        self._standstill = StandstillWarning(warn_after_us, self._coordinator.explain)
        log_lines_of(f"{source.name} {self._codec.source_id}")
        self._has_events = source.source_event_serializer is not None
        self._channel: PlannerChannel | None = None
        if rules.reports or self._has_events:
            # Here and not above: few queries have a gateway.
            from streaming_source.spark.channel import PlannerChannel

            self._channel = PlannerChannel(self._coordinator, source.source_event_serializer, options, self._turn)
        # Of the states handed out last: partitions() asks for two of them.
        self._recent: dict[int, SourceState[Any, Any]] = {}
        # When the last micro-batch was planned; the first one does not wait for more.
        self._planned_at: float | None = None

    def drain(self) -> None:
        """From now on plan to the end of what is there, and no further."""
        with self._turn:
            self._coordinator.drain()

    def latest_offset(self, start: Offset, max_rows: int | None) -> Offset:
        """The end of the next micro-batch; `start` itself when there is nothing to do."""
        with self._turn:
            coordinator = self._coordinator
            if not coordinator.restored:
                coordinator.restore(self._state_of(start))
            elif start["n"] != coordinator.state.sequence:
                coordinator.rewind(self._state_of(start))
            if self._waits_for_more():
                return start
            before = coordinator.state
            after = coordinator.advance(max_rows)
            self._standstill.look(processing_time_us())
            if after is before:
                return start
            self._recent = {before.sequence: before, after.sequence: after}
            self._planned_at = time.monotonic()
            return self._codec.encode(after, coordinator.explain())

    def partitions(self, start: Offset, end: Offset) -> Sequence[AlignedInputPartition]:
        """What to read between two offsets, from them alone."""
        with self._turn:
            begun, ended = self._state_of(start), self._state_of(end)
            coordinator = self._coordinator
            is_read_again = not coordinator.restored
            if is_read_again:
                coordinator.restore(ended)
            row_us = watermark_row_time(ended.table.combined) if self._options.watermark_rows else None
            ranges = coordinator.ranges(begun, ended, self._readers, self._options.min_rows_per_reader)
            if is_read_again and self._has_events:
                # Its readers may wait for answers, and no offset is asked for before they are done.
                coordinator.start()
            shares = assign_ranges(ranges, self._readers, self._options.max_rows_per_reader)
            gateway = self._channel.address() if shares and self._channel is not None else None
            if not shares and row_us is not None:
                shares = [[]]
            generators = coordinator.runtime.resumed_generators(begun, ended)
            return [
                AlignedInputPartition(
                    tuple(splits),
                    begun.table.combined,
                    self._becomes_of_late(begun, ended),
                    watermark_row_us=None if subtask_id else row_us,
                    subtask_id=subtask_id,
                    batch=ended.sequence,
                    # Without something to read no reader is made: its events wait.
                    events=tuple(coordinator.runtime.take_events(subtask_id)) if splits else (),
                    time_limit_us=ended.time_limit_us,
                    generators={i: generators[i] for split in splits if (i := split.split_id) in generators},
                    gateway=gateway,
                )
                for subtask_id, splits in enumerate(shares)
            ]

    def committed(self, end: Offset) -> None:
        """A micro-batch is done."""
        with self._turn:
            self._coordinator.notify_committed(end["n"])

    def report(self) -> Offset | None:
        """Where the watermark stands and why, and how far each split in work is; see `WatermarkReport.to_json`."""
        with self._turn:
            explanation = self._coordinator.explain()
            if explanation is None:
                return None
            report = WatermarkReport(self._source_name, self._coordinator.state.sequence, explanation).to_json()
            # Without it nobody knows of which sources Spark counts a row that is no record.
            return {**report, "watermarkRows": True} if self._options.watermark_rows else report

    def close(self) -> None:
        """End discovery, and listen no more."""
        if self._channel is not None:
            self._channel.close()
        with self._turn:
            self._coordinator.close()

    def _becomes_of_late(self, begun: SourceState[Any, Any], ended: SourceState[Any, Any]) -> str:
        """What becomes of late records between two offsets; these alone say whether they are routed.

        The query that reads the routed ones looks at the offsets too, and the option may have changed since.
        """
        if ended.routed > begun.routed:
            return "drop"
        return "keep" if self._options.late == "route" else self._options.late

    def _waits_for_more(self) -> bool:
        """Whether there are too few records for a micro-batch, and the time for waiting is not over."""
        options = self._options
        if options.min_rows is None or self._planned_at is None or self._coordinator.is_draining:
            return False
        if time.monotonic() - self._planned_at >= options.max_delay_us / 1e6:
            return False
        return self._coordinator.unread_rows() < options.min_rows

    def _state_of(self, offset: Offset) -> SourceState[Any, Any]:
        # A checkpoint of another source may hold anything.
        known = self._recent.get(offset.get("n", -1)) if isinstance(offset, dict) else None
        return self._codec.decode(offset) if known is None else known


def _meeting(rules: ReadRules, name: str) -> GroupExchange | None:
    alignment = rules.strategy.alignment
    if rules.group is None or alignment is None:
        return None
    from streaming_source.coordinator.group_exchange import GroupExchange

    return GroupExchange(
        _meeting_place(), rules.group, alignment.max_drift_us, alignment.update_interval_us, monotonic_us, name=name
    )


def _meeting_place() -> Path:
    """A file that all planners of one application find, and no other's."""
    folder = _local_folder()
    if folder is None:
        raise OptionError(
            "option alignmentGroup: SPARK_LOCAL_DIRS is not set in Spark's planner process, so the sources of the "
            "group have no place to meet; without alignmentGroup, maxDrift holds together the splits of one source"
        )
    return folder / "watermark-alignment.sqlite"


def _recorder(folder: str | None, source: Source[Any, Any]) -> Recorder | None:
    if folder is None:
        return None
    # Here and not above: hardly a query has a log, and importing it takes time in each planner process.
    from alignment.recording import Recorder

    # Each planner process writes a log of its own.
    return Recorder(Path(folder) / f"{source.name}-{os.getpid()}.jsonl")


def _local_folder() -> Path | None:
    """The application's own on the driver's host, which Spark removes with it; None where Spark does not say."""
    folders = os.environ.get("SPARK_LOCAL_DIRS")
    return Path(folders.split(",")[0]) if folders else None
