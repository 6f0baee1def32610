"""The state of one stream in Spark's planner process: coordinator, partitions for readers, reports from readers."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from alignment.explain import Explanation
from alignment.sentence import moment
from alignment.shown import log_of
from streaming_source.api import Source, SourceEvent
from streaming_source.coordinator import (
    ReadRules,
    SourceCoordinator,
    SourceState,
    assign_ranges,
    monotonic_us,
    processing_time_us,
    wall_clock_us,
)
from streaming_source.exceptions import OptionError
from streaming_source.monitoring.planner_note import Writer as PlannerNoteWriter
from streaming_source.monitoring.report import NOTE, WHY, WatermarkReport, note_name
from streaming_source.spark.input_partition import AlignedInputPartition
from streaming_source.spark.offsets import LATE_LOG, Offset, OffsetCodec, fixed_options
from streaming_source.spark.planner_log import StandstillWarning, log_lines_of
from streaming_source.spark.watermark_rows import watermark_row_time

if TYPE_CHECKING:
    from alignment.events import RangeReport
    from alignment.recording import Recorder
    from streaming_source.coordinator.group_exchange import GroupExchange
    from streaming_source.coordinator.group_location import GroupLocation
    from streaming_source.coordinator.rules import FrameOptions
    from streaming_source.data_files.journal import Journal
    from streaming_source.gateway import GatewayServer
    from streaming_source.spark.late_log import LateLog
    from streaming_source.spark.report_directory import ReportDirectory
    from streaming_source.spark.rows import RowShaper

_log = log_of(__name__)

_NEW_OBJECTS: Final = 50_000
"""Allocations between two garbage collections in the planner's process; Python's default is 700.

An offset of many splits is many objects without cycles: collecting at the default takes longer than planning.
"""

_LOCK_S: Final = 0.5
"""Seconds that a task's request waits for the planner's lock. After that, a later request gets the answer."""

_SHOWN: Final = 80
"""Characters of a source's description that each line of the log has."""


def start_planner_process() -> None:
    """Let Python collect garbage more seldom in the process in which Spark plans."""
    gc.set_threshold(max(_NEW_OBJECTS, gc.get_threshold()[0]), *gc.get_threshold()[1:])


class StreamPlanning:
    """Offsets and partitions of one stream. It stays in the planner process that creates it, and is never pickled.

    The coordinator is for one thread at a time: callers must hold `_lock`. Callers are Spark's thread and the
    gateway's, so that readers get answers to their events while they read.
    """

    def __init__(self, source: Source[Any, Any], rules: ReadRules, schema: pa.Schema, shaper: RowShaper) -> None:
        self._options = options = shaper.options
        self._tasks = options.tasks
        self._min_rows_per_reader = options.min_rows_per_reader
        self._time_limit_us = rules.time_limit_us
        self._codec = OffsetCodec(source, fixed_options(source, rules, schema, shaper.event_time))
        self._source, self._source_name = source, source.name
        self._lock = threading.RLock()
        self._coordinator: SourceCoordinator[Any, Any] = SourceCoordinator(
            source,
            rules,
            schema,
            processing_time_us,
            readers=self._tasks,
            group=_group_exchange(source, rules, options.alignment_location),
            recorder=_recorder(options.event_log, source),
            clock_us=wall_clock_us,
        )
        warn_after_us = options.warn_after(rules.strategy.idle_timeout_us)
        self._standstill = StandstillWarning(warn_after_us, self._explain, processing_time_us)
        log_lines_of(_named(source))
        self._has_events = source.source_event_serializer is not None
        self._reports = _report_directory(source, options.report_location) if rules.options.reports else None
        by_port = self._has_events or (rules.options.reports and self._reports is None)
        self._gateway = self._new_gateway(source) if by_port else None
        self._late_journal = _late_journal(source, options)
        self._late_log_made: LateLog | None = None
        # By sequence number, the last two states returned: partitions() needs both.
        self._recent: dict[int, SourceState[Any, Any]] = {}
        # Made with the first offset, which may name it.
        self._note: PlannerNoteWriter | None = None

    def join_group(self) -> None:
        """Spark has started the query, and plans none of its sources before this was called for each of them."""
        with self._lock:
            self._coordinator.join_group()

    def drain(self) -> None:
        with self._lock:
            self._coordinator.drain()

    def initial_offset(self) -> Offset:
        """Return where a query starts that has no offset; it names the note, for a query that finds nothing."""
        with self._lock, self._noting({}) as note:
            return {**self._codec.encode(SourceState.initial()), WHY: {NOTE: note.name}}

    def latest_offset(self, start: Offset, max_rows: int | None, *, once: bool = False) -> Offset:
        """Return the end of the next micro-batch, or only one if it runs `once`; `start` itself if there is no work."""
        with self._lock, self._noting(start) as note:
            coordinator = self._coordinator
            self._go_on_from(start, once=once)
            before = coordinator.state
            after = coordinator.advance(max_rows)
            if after is before:
                after = coordinator.keep_start()
            self._standstill.check(processing_time_us())
            if after is before:
                if coordinator.is_draining:
                    note.end_run()
                return start
            self._recent = {before.sequence: before, after.sequence: after}
            self._standstill.begin_batch()
            return self._written(after, start, note.name)

    def partitions(self, start: Offset, end: Offset) -> Sequence[AlignedInputPartition]:
        """Return what to read between two offsets; it depends on the offsets alone."""
        with self._lock, self._noting(end) as note:
            before, after = self._state_of(start), self._state_of(end)
            coordinator = self._coordinator
            is_read_again = not coordinator.restored
            if is_read_again:
                # The micro-batch has records if it moved a split.
                moved = any(now.position > then.position for then, now in after.since(before)) or any(after.left_out)
                coordinator.restore(after, is_read_again=moved, continues_run=True)
                self._give_up_late_after(end)
            if after.routed > before.routed and (late_log := self._late_log(end)) is not None:
                late_log.write(before, after)
            row_us = watermark_row_time(after.table.combined) if self._options.watermark_rows else None
            limit_us = self._time_limit_us if after.time_limit_us is None else after.time_limit_us
            ranges = coordinator.ranges(before, after, self._tasks, self._min_rows_per_reader)
            if is_read_again and self._has_events:
                # Readers may wait for answers, and Spark requests no offset before they are done.
                coordinator.start()
            shares = assign_ranges(ranges, self._tasks, self._options.max_records_per_partition)
            gateway = self._gateway.start() if shares and self._gateway is not None else None
            report_run = None
            if shares and self._reports is not None:
                self._reports.expect()
                report_run = self._reports.run_id
            if not shares and row_us is not None:
                shares = [[]]
            runtime = coordinator.runtime
            host, generators = runtime.host, after.generators_since(before) if runtime.reads_on else {}
            return [
                AlignedInputPartition(
                    tuple(splits),
                    before.table.combined,
                    self._late_handling(before, after),
                    watermark_row_us=None if subtask_id else row_us,
                    subtask_id=subtask_id,
                    batch=after.sequence,
                    # A partition without splits creates no reader: its events wait.
                    events=tuple(host.take_events(subtask_id)) if splits and host.events else (),
                    time_limit_us=limit_us,
                    generators={i: generators[i] for split in splits if (i := split.split_id) in generators},
                    gateway=gateway,
                    report_run=report_run,
                    note=note.name,
                )
                for subtask_id, splits in enumerate(shares)
            ]

    def committed(self, end: Offset) -> None:
        with self._lock:
            self._coordinator.notify_committed(end["n"])

    def report(self) -> Offset | None:
        """Return the watermark, its cause, and the progress of each split in work; see `WatermarkReport.to_json`."""
        with self._lock:
            # Spark calls this in each trigger, after the call for an offset.
            self._coordinator.end_batch()
            explanation = self._coordinator.explain()
            if explanation is None:
                return None
            report = WatermarkReport(self._source_name, self._coordinator.state.sequence, explanation)
            written = report.to_json()
            if self._note is not None:
                self._note.report(report, written)
            # Marks sources for which Spark's row count includes the watermark row.
            return {**written, "watermarkRows": True} if self._options.watermark_rows else written

    def close(self) -> None:
        if self._gateway is not None:
            self._gateway.close()
        with self._lock:
            self._standstill.close()
            self._coordinator.close()
            if self._note is not None:
                self._note.close()
            if self._reports is not None:
                self._reports.close()

    # ---- GatewayListener: messages of tasks, on the gateway's threads ------------------------------------------------

    def on_reports(self, reports: Sequence[RangeReport]) -> None:
        self._coordinator.host.post_reports(reports)

    def on_event(self, subtask_id: int, event: SourceEvent) -> None:
        self._coordinator.host.post_source_event(subtask_id, event)
        if self._lock.acquire(timeout=_LOCK_S):
            try:
                self._coordinator.host.work()
            finally:
                self._lock.release()

    def take_events(self, subtask_id: int) -> list[SourceEvent]:
        if not self._lock.acquire(timeout=_LOCK_S):
            return []
        try:
            return self._coordinator.host.take_events(subtask_id)
        finally:
            self._lock.release()

    def _go_on_from(self, start: Offset, *, once: bool) -> None:
        """Bring the coordinator to an offset, with what readers have reported since."""
        coordinator = self._coordinator
        self._standstill.end_batch()
        if once and not coordinator.is_draining:
            coordinator.drain(is_one_batch=True)
        if not coordinator.restored:
            coordinator.restore(self._state_of(start))
            self._give_up_late_after(start)
        elif start["n"] != coordinator.state.sequence:
            coordinator.rewind(self._state_of(start))
        if self._reports is not None and (reports := self._reports.take()):
            self.on_reports(reports)

    def _written(self, state: SourceState[Any, Any], start: Offset, note: str) -> Offset:
        """Return the offset of a state after that of `start`, with the reasons, and the names of note and late log."""
        offset = self._codec.encode(state, self._coordinator.explain())
        offset[WHY][NOTE] = note
        # Offsets have the id of the late log from the first micro-batch that may route.
        if LATE_LOG in start or self._options.late == "route":
            offset[LATE_LOG] = start.get(LATE_LOG) or _new_late_log()
        return offset

    def _new_gateway(self, source: Source[Any, Any]) -> GatewayServer:
        # Imported here: few queries have a gateway.
        from streaming_source.gateway import GatewayServer

        options, serializer = self._options, source.source_event_serializer
        host, port = options.gateway_host or "127.0.0.1", options.gateway_port
        pem = (options.gateway_certificate, options.gateway_key)
        certificate, key = (None if name is None else Path(name) for name in pem)
        return GatewayServer(self, serializer, host=host, port=port, certificate=certificate, key=key)

    def _late_handling(self, before: SourceState[Any, Any], after: SourceState[Any, Any]) -> str:
        """Return how late records between two offsets are handled; only the offsets decide whether they are routed.

        The query that reads the routed records follows the offsets too, and the option may have changed since.
        """
        if after.routed > before.routed:
            return "drop"
        return "keep" if self._options.late == "route" else self._options.late

    @contextmanager
    def _noting(self, offset: Offset) -> Iterator[PlannerNoteWriter]:
        """Leave the error of a call in the planner's note; an offset may have the name of the last run's."""
        known = note_name(offset)
        if self._note is None or known not in (None, self._note.known):
            if self._note is not None:
                self._note.close()
            self._note = PlannerNoteWriter(known, f"{self._source_name} {self._source.identity}")
            self._note.close_at_sigterm()
            if (earlier := self._note.earlier) is not None:
                _log.warning(
                    "the checkpoint has no offset: this query starts anew, at micro-batch 0. Another query over the "
                    "same data ended on this machine at %s. If that was this one its checkpoint was deleted, and a "
                    "sink that knows the numbers of micro-batches (files, Delta) skips those that it has: give it an "
                    "empty directory, or bring the checkpoint back",
                    moment(earlier.at_us),
                )
        try:
            yield self._note
        except Exception as error:
            self._note.fail(error)
            raise

    def _explain(self) -> Explanation | None:
        """Return the cause of the watermark; None while the planner is busy. May be called from any thread."""
        if not self._lock.acquire(timeout=_LOCK_S):
            return None
        try:
            return self._coordinator.explain()
        finally:
            self._lock.release()

    def _late_log(self, offset: Offset) -> LateLog | None:
        """Return the late log that an offset refers to; None for an offset without a late log."""
        log_id = offset.get(LATE_LOG)
        if log_id is None:
            return None
        if self._late_journal is None:
            raise OptionError(
                "option lateLocation is missing: a micro-batch that is read again was planned with late = route, and "
                "its late records must be written down there; give lateLocation as it was, with any late"
            )
        if self._late_log_made is None:
            from streaming_source.spark.late_log import LateLog

            self._late_log_made = LateLog(self._late_journal, log_id, self._codec)
        return self._late_log_made

    def _give_up_late_after(self, offset: Offset) -> None:
        """After a restart, remove the late-log entries of micro-batches whose offsets Spark has not kept."""
        if self._late_journal is not None and (late_log := self._late_log(offset)) is not None:
            late_log.remove_after(offset["n"])

    def _state_of(self, offset: Offset) -> SourceState[Any, Any]:
        # A checkpoint of another source may hold any JSON value.
        known = self._recent.get(offset.get("n", -1)) if isinstance(offset, dict) else None
        return self._codec.decode(offset) if known is None else known


def _named(source: Source[Any, Any]) -> str:
    """The source by its format and what it reads, shortened in its middle if it is long."""
    reads = source.identity
    if len(reads) > _SHOWN:
        reads = f"{reads[: _SHOWN // 4]}...{reads[3 - _SHOWN * 3 // 4 :]}"
    return f"{source.name} {reads}"


def _group_exchange(source: Source[Any, Any], rules: ReadRules, location: str | None) -> GroupExchange | None:
    alignment = rules.strategy.alignment
    if rules.group is None or alignment is None:
        return None
    # Imported here: few queries have an alignment group.
    from streaming_source.coordinator.group_exchange import GroupExchange

    return GroupExchange(
        _group_file() if location is None else _group_directory(source, location),
        rules.group,
        alignment.max_drift_us,
        alignment.update_interval_us,
        monotonic_us,
        name=_named(source),
        in_one_query=rules.in_one_query,
        follows=rules.options.watermark_rows,
    )


def _group_file() -> GroupLocation:
    """Return a file that only the planners of this application share: Spark removes its folder with the application."""
    folders = os.environ.get("SPARK_LOCAL_DIRS")
    if not folders:
        raise OptionError(
            "option alignmentGroup: SPARK_LOCAL_DIRS is not set in Spark's planner process, so the sources of the "
            "group have no directory in common; name one with option alignmentLocation, a path or the URI of an object "
            "store that all of them may write to, or leave alignmentGroup out: maxDrift holds together the splits of "
            "one source"
        )
    from streaming_source.coordinator.group_location import GroupFile

    return GroupFile(Path(folders.split(",")[0]) / "watermark-alignment.sqlite")


def _group_directory(source: Source[Any, Any], location: str) -> GroupLocation:
    from streaming_source.data_files.journal import Journal
    from streaming_source.spark.group_directory import GroupDirectory

    directory = GroupDirectory(Journal.root_of(source, location), monotonic_us, wall_clock_us)
    directory.check()
    return directory


def _report_directory(source: Source[Any, Any], location: str | None) -> ReportDirectory | None:
    if location is None:
        return None
    from streaming_source.spark.report_directory import ReportDirectory, report_journal

    return ReportDirectory(report_journal(source, location))


def _late_journal(source: Source[Any, Any], options: FrameOptions) -> Journal | None:
    if options.late_location is None:
        return None
    from streaming_source.data_files.journal import Journal

    journal = Journal(Journal.root_of(source, options.late_location), "lateLocation")
    if options.late == "route":
        journal.check()
    return journal


def _new_late_log() -> str:
    # Imported here: few queries route late records.
    from streaming_source.spark.late_log import new_log_id

    return new_log_id()


def _recorder(folder: str | None, source: Source[Any, Any]) -> Recorder | None:
    if folder is None:
        return None
    # Imported here: few queries record a log, and the import takes time in each planner process.
    from alignment.recording import Recorder

    # Each planner process writes a log of its own.
    return Recorder(Path(folder) / f"{source.name}-{os.getpid()}.jsonl")
