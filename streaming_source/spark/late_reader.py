"""The late records that another query routed, by that query's late log.

Which records are late depends on the watermark of a query when it read them, and a second query over the same source
would have another watermark. So this query decides nothing: from the entries of the late log it plans the ranges that
the other query read, under the same watermark. The other query's checkpoint has which of its micro-batches are
committed, and how many records they have routed in all. Missing records, or another number of them, are an error.
"""

from __future__ import annotations

import json
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, NamedTuple
from uuid import uuid4

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from alignment.shown import log_of
from streaming_source.api import Source
from streaming_source.checkpoint.offset_log import OffsetLog
from streaming_source.coordinator import ReadRules, SourceCoordinator, SourceState, processing_time_us
from streaming_source.data_files.journal import Journal
from streaming_source.exceptions import DataLossError, OffsetError, plainly
from streaming_source.monitoring.report import WHY
from streaming_source.spark.before_4_2 import ReadLimit, SupportsTriggerAvailableNow
from streaming_source.spark.input_partition import AlignedInputPartition
from streaming_source.spark.late_log import EntryName, LateEntry, LateLog
from streaming_source.spark.offsets import LATE_LOG, Offset, OffsetCodec
from streaming_source.spark.readers import read_splits
from streaming_source.spark.rows import RowShaper

_log = log_of(__name__)

NOTE_COLUMN: Final = "_repair"
"""Column that a frame for repairs has after the others: null, but for one row of each micro-batch, the note.

It is JSON: the `id` of the query of the late records; the `query` that routed them, with its `batch` that is committed
and the `offsets` of its sources there; and the watermark `closed_us` by which its windows were emitted up to there.
"""

_VERSION: Final = 2
_MOST: Final = 1_000
"""Micro-batches of the other query whose late records one micro-batch reads, at most."""
_TRIALS: Final = 5
"""Attempts to read the newest offsets: Spark may remove a listed file before it is read."""
_CHEAP_S: Final = 0.02
_REST: Final = 9
"""A look that took longer than `_CHEAP_S` and found nothing is not repeated for `_REST` times its duration."""


@dataclass(frozen=True)
class LateRange(AlignedInputPartition):
    """The late records of one micro-batch of the query, and how many there must be.

    No record that this or an earlier micro-batch reads is in micro-batch `later` of the query, or after it.
    """

    rows: int = 0
    later: int = 0


@dataclass(frozen=True)
class LateInputPartition(InputPartition):
    """The late records that one task reads."""

    ranges: tuple[LateRange, ...]
    note: str | None = None
    # PySpark's own field, which its `__repr__` shows.
    value: Any = None


class _Committed(NamedTuple):
    """A committed micro-batch of the query (-1 for none), the source's offset after it, and that offset's state.

    `offsets` are those of all sources, if they are JSON. Windows that end at or before `closed_us` were emitted up to
    there.
    """

    batch: int
    offset: Offset
    state: SourceState[Any, Any]
    offsets: Sequence[Offset] = ()
    closed_us: int = 0


@dataclass(eq=False)
class LateStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows a query that has `late=route`, from its micro-batch `first` on, over its own source.

    An offset has the query, a micro-batch of it that was committed, the id of the late log, the state `n` of the source
    up to which it was read, how many records were routed up to that state, and the id of this `reader`, which alone has
    the entries. `more` means that entries were left.

    With a `repair_delay_us` late records wait until the query has emitted all windows in which they can be: those that
    end up to so long after the watermark at which they were late. The offset then has the note of `NOTE_COLUMN`.
    """

    source: Source[Any, Any]
    rules: ReadRules
    schema: pa.Schema
    shaper: RowShaper
    checkpoint: str
    location: str = field(repr=False)
    first: int | None
    repair_delay_us: int | None = None
    _target: _Committed | None = field(default=None, init=False)
    _looks_at: float = field(default=0.0, init=False)
    _warned: bool = field(default=False, init=False)
    _id: str = field(default_factory=lambda: uuid4().hex[:12], init=False)
    # Created on first use in each process: Spark pickles the reader between processes.
    _coordinator: SourceCoordinator[Any, Any] | None = field(default=None, init=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_target": None, "_coordinator": None}

    # ---- in the planner ------------------------------------------------------------------------------------------

    def initialOffset(self) -> Offset:
        begin = {"n": 0, "routed": 0} if self.first is None else {"n": None, "routed": None}
        return {"v": _VERSION, "query": None, "batch": (self.first or 0) - 1, "log": None, **begin}

    @plainly
    def prepareForTriggerAvailableNow(self) -> None:
        """Stop at the micro-batch that the query has committed last at this moment."""
        self._target = self._newest(OffsetLog(self.checkpoint))

    @plainly
    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Return the offset after the last micro-batch that routed records; `start` itself if none has since."""
        if (began := time.monotonic()) < self._looks_at:
            return start
        end = self._behind(start)
        took_s = time.monotonic() - began
        if end is start and took_s > _CHEAP_S:
            self._looks_at = began + _REST * took_s
        return end

    @plainly
    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Distribute the entries of the late log between two offsets to the tasks."""
        if start == end:
            return []
        log = OffsetLog(self.checkpoint)
        self._check_query(log, end)
        (begin, routed), (stop, routed_in_all) = self._routed_at(log, start), self._routed_at(log, end)
        late_log = self._late_log(end)
        if late_log is not None and "reader" in end:
            # An offset that goes on without a reader is one of `from_batch`, or of an earlier version.
            late_log.give_to(end["reader"], takes_it=start["query"] is not None and "reader" not in start)
        entries = [] if late_log is None else late_log.read(late_log.names(begin, stop))
        if (found := sum(entry.rows for entry in entries)) != routed_in_all - routed:
            raise self._lost(log, start, late_log, routed_in_all - routed, found)
        ranges = [self._range(log, entry, end["batch"] + 1) for entry in entries]
        tasks = min(self.shaper.options.tasks, len(ranges))
        cuts = [task * len(ranges) // tasks for task in range(tasks + 1)] if ranges else []
        # Not where the offset is one that only became durable.
        notes = [json.dumps(end["note"])] if ranges and "note" in end else []
        shares = [tuple(ranges[first:behind]) for first, behind in pairwise(cuts)]
        return [LateInputPartition(share, *notes[task : task + 1]) for task, share in enumerate(shares)]

    @plainly
    def commit(self, end: Offset) -> None:
        """Remove the entries that were read: Spark has committed this query's results of them."""
        late_log = self._late_log(end)
        if late_log is not None and end.get("n") is not None:
            late_log.remove_to(end["n"])

    def stop(self) -> None:
        if self._coordinator is not None:
            self._coordinator.close()

    def _behind(self, start: Offset) -> Offset:
        log = OffsetLog(self.checkpoint)
        if start["query"] is not None:
            self._check_query(log, start)
        query = log.query_id()
        if query is None and not self._warned:
            self._warned = True
            _log.warning("late_records: no query has written into %s yet; this one waits for it", log.checkpoint)
        last = max(log.committed(), default=-1) if self._target is None else self._target.batch
        if query is None or (last <= start["batch"] and "more" not in start):
            return start
        begin, routed = self._routed_at(log, start)
        if start.get("n") is None:
            # Returned at once to become durable: Spark removes the offsets that it was looked up in.
            return {"v": _VERSION, "query": query, "batch": start["batch"], "log": None, "n": begin, "routed": routed}
        last, offset, state, offsets, closed_us = self._newest(log) if self._target is None else self._target
        if state.sequence < begin:
            raise OffsetError(
                f"late_records: late records up to state {begin} of the source were read, and {log.checkpoint} is at "
                f"state {state.sequence}: it was set back. Use a new checkpointLocation for this query, too"
            )
        if state.routed == routed:
            return start
        reader = start.get("reader") or start.get("note", {}).get("id") or self._id
        end = {"v": _VERSION, "query": query, "batch": last, "log": offset.get(LATE_LOG), "reader": reader}
        late_log = self._late_log(end)
        names = [] if late_log is None else late_log.names(begin, state.sequence)
        count = min(len(names), _MOST)
        if self.repair_delay_us is not None and late_log is not None:
            if not names:
                raise self._lost(log, start, late_log, state.routed - routed, 0)
            count = min(count, self._closed(late_log, names, closed_us))
            if not count:
                return start
            note = {"id": reader, "query": query, "batch": last}
            read_to = [{name: value for name, value in one.items() if name != WHY} for one in offsets]
            end["note"] = {**note, "closed_us": closed_us, "offsets": read_to}
        if len(names) > count:
            last_read = names[count - 1]
            return {**end, "n": last_read.sequence, "routed": last_read.routed, "more": True}
        return {**end, "n": state.sequence, "routed": state.routed}

    def _lost(self, log: OffsetLog, start: Offset, late_log: LateLog | None, routed: int, found: int) -> DataLossError:
        return DataLossError(
            f"late_records: {routed} late records were routed after micro-batch {start['batch']}, and the late log in "
            f"{late_log or self.location} has {found}: entries were removed, another query has read them, or "
            "lateLocation is not that of the query; restore them. To go on without them, use a new checkpointLocation "
            f"for this query and late_records(..., from_batch={min(log.batches(), default=0) + 1})"
        )

    def _closed(self, late_log: LateLog, names: Sequence[EntryName], closed_us: int) -> int:
        """Return of how many first entries all windows were emitted, by the watermarks at which records were late."""
        assert self.repair_delay_us is not None
        return bisect_right(
            names,
            closed_us - self.repair_delay_us,
            key=lambda name: late_log.read([name])[0].start.table.combined,
        )

    def _newest(self, log: OffsetLog) -> _Committed:
        """The last micro-batch that is committed."""
        for trial in range(_TRIALS):
            last = max(log.committed(), default=-1)
            try:
                if last < 0:
                    return _Committed(last, *self._state(log, last))
                logged = log.read(last)
                offsets = [offset for offset in logged.parsed() if isinstance(offset, dict)]
                return _Committed(last, *self._state(log, last), offsets, logged.watermark_us)
            except DataLossError:
                if trial == _TRIALS - 1:
                    raise
        raise AssertionError

    def _routed_at(self, log: OffsetLog, offset: Offset) -> tuple[int, int]:
        """Return the state of the source at an offset, and how many records were routed up to that state."""
        if offset.get("n") is not None:
            return offset["n"], offset["routed"]
        # An offset of an earlier version, or one that `from_batch` gave.
        _, state = self._state(log, offset["batch"])
        return state.sequence, state.routed

    def _late_log(self, offset: Offset) -> LateLog | None:
        if (log_id := offset.get("log")) is None:
            return None
        journal = Journal(Journal.root_of(self.source, self.location), "lateLocation")
        return LateLog(journal, log_id, OffsetCodec(self.source))

    def _check_query(self, log: OffsetLog, offset: Offset) -> None:
        query = log.query_id()
        if offset["query"] != query:
            raise OffsetError(
                f"late_records: the records so far are of query {offset['query']}, and {log.checkpoint} is of query "
                f"{query} now: use a new checkpointLocation for the query of the late records, too"
            )

    def _range(self, log: OffsetLog, entry: LateEntry, later: int) -> LateRange:
        start, end = entry
        if self._coordinator is None:
            self._coordinator = SourceCoordinator(self.source, self.rules, self.schema, processing_time_us)
            # As a micro-batch that is read again: else a bounded source that has ended opens no files any more.
            self._coordinator.restore(self._newest(log).state, is_read_again=True)
        splits = tuple(part.split for part in self._coordinator.ranges(start, end, 1, 1))
        limit_us = self.rules.time_limit_us if end.time_limit_us is None else end.time_limit_us
        return LateRange(
            splits,
            start.table.combined,
            "only",
            batch=end.sequence,
            time_limit_us=limit_us,
            rows=entry.rows,
            later=later,
        )

    def _state(self, log: OffsetLog, batch: int) -> tuple[Offset, SourceState[Any, Any]]:
        """Return the offset of this source after a micro-batch of the query, and that offset's state."""
        codec = OffsetCodec(self.source)
        found = None if batch < 0 else codec.logged(log, batch, "late_records")
        return ({}, SourceState.initial()) if found is None else (found, codec.decode(found))

    # ---- on an executor ------------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, LateInputPartition)
        if self.repair_delay_us is None:
            for part in partition.ranges:
                yield from self._read(part)
            return
        if partition.note is not None:
            nulls = [pa.nulls(1, field.type) for field in self.shaper.schema]
            yield pa.RecordBatch.from_arrays([*nulls, pa.array([partition.note])], schema=self._schema_with_note)
        for part in partition.ranges:
            for batch in self._read(part):
                columns = [*batch.columns, pa.nulls(batch.num_rows, pa.string())]
                yield pa.RecordBatch.from_arrays(columns, schema=self._schema_with_note)

    @property
    def _schema_with_note(self) -> pa.Schema:
        schema: pa.Schema = self.shaper.schema.append(pa.field(NOTE_COLUMN, pa.string()))
        return schema

    def _read(self, part: LateRange) -> Iterator[pa.RecordBatch]:
        rows = 0
        for batch in read_splits(self.source, self.schema, self.shaper, part):
            rows += batch.num_rows
            yield batch
        if rows != part.rows:
            raise DataLossError(
                f"late_records: the query of {self.checkpoint} routed {part.rows} late records in state {part.batch} "
                f"of its source, and {rows} of them are there now: what it read was changed or removed since; restore "
                "it. To go on after what was routed so far, use a new checkpointLocation for this query and "
                f"late_records(..., from_batch={part.later})"
            )
