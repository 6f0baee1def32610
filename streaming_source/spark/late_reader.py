"""The late records of another query: those that it routed, by its own offsets.

Which records are late is decided by where a query stood when it read them, and no second query would stand there. So
this one decides nothing. It reads the offsets of the micro-batches that the other one has committed, and of each the
ranges of the splits that had late records: those between the same two offsets, under the same watermark. The offsets
count the routed records, and what is not there any more, or is not as many, is an error.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from streaming_source.api import Source
from streaming_source.coordinator import ReadRules, SourceCoordinator, SourceState, processing_time_us
from streaming_source.exceptions import DataLossError, OffsetError
from streaming_source.monitoring.micro_batch import OffsetLog
from streaming_source.spark.offsets import Offset, OffsetCodec
from streaming_source.spark.planning import AlignedInputPartition
from streaming_source.spark.readers import read_splits
from streaming_source.spark.rows import RowShaper

__all__ = ["LateStreamReader"]

_log = logging.getLogger(__name__)

_VERSION: Final = 1
_CHEAP_S: Final = 0.02
_REST: Final = 9
"""A look that took longer, and found nothing, is not repeated for so many times as long."""


@dataclass(frozen=True)
class LateInputPartition(AlignedInputPartition):
    """The late records of one micro-batch of the query, and how many there must be."""

    rows: int = 0


@dataclass(eq=False)
class LateStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows a query that has `late=route`, from its micro-batch `first` on, over its own source.

    An offset says of which query, up to which micro-batch, and how many.
    """

    source: Source[Any, Any]
    rules: ReadRules
    schema: pa.Schema
    shaper: RowShaper
    checkpoint: str
    first: int | None
    _last: int | None = field(default=None, init=False)
    _looks_at: float = field(default=0.0, init=False)
    _warned: bool = field(default=False, init=False)
    # Made where it is used: Spark pickles this between processes.
    _coordinator: SourceCoordinator[Any, Any] | None = field(default=None, init=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_coordinator": None}

    # ---- in the planner ------------------------------------------------------------------------------------------

    def initialOffset(self) -> Offset:
        first = self.first or 0
        return {"v": _VERSION, "query": None, "batch": first - 1, "routed": None if first else 0}

    def prepareForTriggerAvailableNow(self) -> None:
        """Read up to what the query has committed now."""
        self._last = max(OffsetLog(self.checkpoint).committed(), default=-1)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Behind the last micro-batch that routed records; `start` itself where none has since."""
        if (began := time.monotonic()) < self._looks_at:
            return start
        end = self._behind(start)
        took_s = time.monotonic() - began
        if end is start and took_s > _CHEAP_S:
            self._looks_at = began + _REST * took_s
        return end

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """One for each micro-batch of the query that routed records, from its offsets alone."""
        if start == end:
            return []
        log = OffsetLog(self.checkpoint)
        self._check_query(log, end)
        parts = []
        # From one before the first: each is read from where the one before it ended.
        known = [batch for batch in (-1, *log.batches()) if start["batch"] <= batch <= end["batch"]]
        begun: SourceState[Any, Any] | None = None
        for previous, batch in pairwise([-2, *known]):
            ended: SourceState[Any, Any] | None = None
            # Spark may remove old offsets meanwhile; whether any were needed shows in the count.
            with suppress(DataLossError):
                ended = self._state(log, batch)
            if batch == previous + 1 and begun is not None and ended is not None and ended.routed > begun.routed:
                parts.append(self._partition(begun, ended, batch))
            begun = ended
        routed = self._state(log, start["batch"]).routed if start["routed"] is None else start["routed"]
        lost = end["routed"] - routed - sum(part.rows for part in parts)
        if lost:
            raise DataLossError(
                f"late_records: {lost} late records were routed in micro-batches behind {start['batch']} of which "
                f"{log.checkpoint} has no offsets any more. Spark keeps those of the latest 100 "
                "(spark.sql.streaming.minBatchesToRetain): raise that, or run this query more often. To go on without "
                "them, use a new checkpointLocation for this query and late_records(..., "
                f"from_batch={min(log.batches()) + 1})"
            )
        return parts

    def stop(self) -> None:
        if self._coordinator is not None:
            self._coordinator.close()

    def _behind(self, start: Offset) -> Offset:
        log = OffsetLog(self.checkpoint)
        if start["query"] is not None:
            self._check_query(log, start)
        query, last = log.query_id(), max(log.committed(), default=-1) if self._last is None else self._last
        if query is None and not self._warned:
            self._warned = True
            _log.warning("late_records: no query has written into %s yet; this one waits for it", log.checkpoint)
        if query is None or last <= start["batch"]:
            return start
        routed = self._state(log, last).routed
        return start if routed == start["routed"] else {"v": _VERSION, "query": query, "batch": last, "routed": routed}

    def _check_query(self, log: OffsetLog, offset: Offset) -> None:
        query = log.query_id()
        if offset["query"] != query:
            raise OffsetError(
                f"late_records: the records so far are of query {offset['query']}, and {log.checkpoint} is of query "
                f"{query} now: use a new checkpointLocation for the query of the late records, too"
            )

    def _partition(self, begun: SourceState[Any, Any], ended: SourceState[Any, Any], batch: int) -> LateInputPartition:
        if self._coordinator is None:
            self._coordinator = SourceCoordinator(self.source, self.rules, self.schema, processing_time_us)
            self._coordinator.restore(ended)
        late_before = dict(zip(begun.table.split_ids, begun.late.tolist(), strict=True))
        late = zip(ended.table.split_ids, ended.late.tolist(), strict=True)
        grown = {split_id for split_id, count in late if count > late_before.get(split_id, 0)}
        ranges = self._coordinator.ranges(begun, ended, 1, 1)
        splits = tuple(part.split for part in ranges if part.split.split_id in grown)
        rows = ended.routed - begun.routed
        limit_us = self.rules.time_limit_us if ended.time_limit_us is None else ended.time_limit_us
        return LateInputPartition(splits, begun.table.combined, "only", batch=batch, time_limit_us=limit_us, rows=rows)

    def _state(self, log: OffsetLog, batch: int) -> SourceState[Any, Any]:
        """The state of this source after a micro-batch of the query."""
        if batch < 0:
            return SourceState.initial()
        codec = OffsetCodec(self.source)
        offsets = log.read(batch).offsets
        ours = [offset for offset in offsets if codec.is_of_source(offset)]
        if len(ours) == 1:
            return codec.decode(ours[0])
        if not ours and None in offsets:
            return SourceState.initial()
        raise OffsetError(
            f"late_records: the query of {log.checkpoint} reads this source {len(ours)} times; it must be once: give "
            "the checkpointLocation of the query that reads this very frame, with the same options"
        )

    # ---- on an executor ------------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, LateInputPartition)
        rows = 0
        for batch in read_splits(self.source, self.schema, self.shaper, partition):
            rows += batch.num_rows
            yield batch
        if rows != partition.rows:
            raise DataLossError(
                f"late_records: micro-batch {partition.batch} of the query of {self.checkpoint} routed "
                f"{partition.rows} late records, and {rows} of them are there now: what it read was changed or removed "
                "since. To go on behind it, use a new checkpointLocation for this query and late_records(..., "
                f"from_batch={partition.batch + 1})"
            )
