"""Spark's Kafka source: the range of offsets of each micro-batch and partition, and the times of its records."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from alignment.column_paths import exact_path, top_level_column
from alignment.watermarks import Int64Array
from streaming_source.api import KeptClients, SplitsAddition
from streaming_source.checkpoint.offset_log import CommittedBatch
from streaming_source.checkpoint.source_offsets import parse_kafka_offset, parsed
from streaming_source.connectors.kafka import KafkaSource
from streaming_source.connectors.kafka.admin import KafkaAdmin
from streaming_source.connectors.kafka.config import KAFKA_OPTIONS
from streaming_source.connectors.kafka.records import MessageColumns
from streaming_source.connectors.kafka.split import KafkaSplit
from streaming_source.connectors.kafka.split_reader import KafkaSplitReader
from streaming_source.connectors.kafka.subscription import EARLIEST, LATEST, Partition
from streaming_source.exceptions import CheckpointError, OptionError
from streaming_source.tools.auditing.sources.base import Asked, AuditedSource, LostRows, SplitRead, TimeBlock, loaded

_SERVERS: Final = "kafka.bootstrap.servers"
_TIMESTAMP: Final = "timestamp"
_ISOLATION: Final = "kafka.isolation.level"
_COMMITTED: Final = "read_committed"
_NO_LONGER_THERE: Final = "no longer there"
_COMPACTED: Final = "compaction has taken them, if they are no marks of transactions"
_ABORTED: Final = (
    "they are of transactions that were aborted, which the query has read or not by its option, which no checkpoint "
    f"keeps: give -o {_ISOLATION}={_COMMITTED} if it had that, else -o {_ISOLATION}=read_uncommitted"
)
_AT_ONCE: Final = 1 << 20
"""Offsets of a partition that are read together, across micro-batches."""

Offsets = Mapping[Partition, int]


class KafkaTopics(AuditedSource):
    """Topics that Spark read with its own source. A split is a partition.

    The event time is the record's timestamp, or a field of its value, such as `value.ts`, with options `valueFormat`
    and `valueSchema` of `aligned_kafka`. Records that retention or compaction has taken are lost, by their offsets.
    Those of aborted transactions are lost too, unless the options say whether the query read them.

    Options are those of `aligned_kafka`: `kafka.bootstrap.servers` and other client settings, which no checkpoint has.
    """

    kind = "kafka"

    def __init__(self, asked: Asked) -> None:
        checkpoint, number, event_time, options = asked.checkpoint, asked.number, asked.event_time, asked.options
        self._checkpoint, self._number = checkpoint, number
        topics = sorted({part.topic for batch in checkpoint.batches for part in _offsets(batch.ends[number])})
        self.name = ", ".join(topics)
        if not any(name.lower() == _SERVERS for name in options):
            raise OptionError(
                f"source {number} reads {self.name} from Kafka, and the checkpoint does not keep its brokers; "
                f"give them with -o {_SERVERS}=HOST:PORT"
            )
        given = {"brokerTimeout": "30 seconds", **options, "subscribe": ",".join(topics)}
        named = [name for name in given if name.lower() == _ISOLATION]
        self._isolation = given.pop(named[0]) if named else None
        self._source, self._all = (
            KafkaSource.from_options(KAFKA_OPTIONS.parse({**given, _ISOLATION: level})).in_zone(event_time.zone_name)
            for level in (_COMMITTED, "read_uncommitted")
        )
        self._clients = KeptClients()
        schema = self._source.schema()
        self.time = exact_path(schema, event_time.column or _TIMESTAMP)
        self._assigner = replace(event_time, column=self.time).assigner()
        column = top_level_column(self.time, schema.names)
        if column not in schema.names:
            raise OptionError(
                f"time = {self.time!r}: records of Kafka have no such column; give --time timestamp, or a field of the "
                "value with -o valueFormat=json -o valueSchema=... as in --time value.ts"
            )
        self._columns = MessageColumns(pa.schema([schema.field(column)]), self._source.values)

    def reads(self, batches: Sequence[CommittedBatch], purged_until: str | None) -> Iterator[SplitRead]:
        """Yield each range of offsets that is not empty, partition by partition."""
        initial = self._initial()
        first = _offsets(purged_until) if purged_until is not None else initial
        last = _offsets(batches[-1].ends[self._number]) if batches else first
        # A partition that was found later begins at 0: Spark reads it from its first record on.
        begins = {part: first.get(part, 0) for part in last}
        self._look_at(sorted(last))
        for part in sorted(last):
            if (before := begins[part] - initial.get(part, 0)) > 0:
                yield SplitRead(None, str(part), part.topic, partial(iter, [LostRows(before, _NO_LONGER_THERE)]))
            yield from self._reads_of(part, begins[part], batches)

    def _initial(self) -> Offsets:
        """Return the offsets at which the query began, which the source logs before its first micro-batch."""
        name = f"sources/{self._checkpoint.source_folders[self._number]}/0"
        data = self._checkpoint.log.bytes_of(name)
        try:
            if data is None:
                raise ValueError("it is missing")
            # A byte that old releases of Spark need, the version, and JSON.
            return _offsets(data[data.index(b"{") :].decode())
        except ValueError as error:
            raise CheckpointError(
                f"{self._checkpoint.path}/{name}, where the query began, cannot be read ({error}); restore it from a "
                "copy of the checkpoint"
            ) from None

    def _look_at(self, parts: Sequence[Partition]) -> None:
        """Keep what the brokers have of partitions, without those that are gone, and which topics are compacted."""
        admin = KafkaAdmin(self._source.client, self._source.retry_policy())
        self._kept, self._stable = (
            {part: offset for part, offset in admin.offsets(dict.fromkeys(parts, end)).items() if offset is not None}
            for end in (EARLIEST, LATEST)
        )
        self._compacted = admin.compacted({part.topic for part in parts})

    def _reads_of(self, part: Partition, begin: int, batches: Sequence[CommittedBatch]) -> Iterator[SplitRead]:
        kept = self._kept.get(part)
        ranges: list[tuple[CommittedBatch, int, int]] = []
        for batch in batches:
            end = _offsets(batch.ends[self._number]).get(part, begin)
            if end > begin:
                ranges.append((batch, begin, end))
            begin = max(begin, end)
        portion: _Portion | None = None
        for number, (batch, start, end) in enumerate(ranges):
            first = end if kept is None else min(max(start, kept), end)
            if portion is None or first >= portion.stop:
                stop = next((e for _, _, e in ranges[number:] if e - first >= _AT_ONCE), ranges[-1][2])
                # Lost records are not read, only counted.
                portion = _Portion(partial(self._read, part, max(first, stop if kept is None else kept), stop), stop)
            yield SplitRead(batch, str(part), part.topic, partial(portion.blocks, start, first, end))

    def _read(self, part: Partition, start: int, stop: int) -> _Records:
        """Return the records of a range."""
        stable = self._stable.get(part, stop)
        # What the query read of a transaction that is still open it has read without waiting for its end.
        is_committed = self._isolation == _COMMITTED and stop <= stable
        found, aborted = self._times_of(self._source, part, start, min(stop, stable)), np.empty(0, np.int64)
        gaps = _without(np.arange(start, max(start, stop)), found.offsets)
        if len(gaps):
            every = self._times_of(self._all, part, start, stop)
            gaps = _without(gaps, every.offsets)
            if self._isolation is None and stop <= stable:
                aborted = _without(every.offsets, found.offsets)
            elif not is_committed:
                found = every
        lost = {_ABORTED: aborted, _COMPACTED: gaps if part.topic in self._compacted else gaps[:0]}
        return found._replace(lost=lost)

    def _times_of(self, source: KafkaSource, part: Partition, start: int, stop: int) -> _Records:
        """Return offsets and event times of a range under the isolation level of a source."""
        reader = KafkaSplitReader(
            source.client,
            self._clients,
            None,
            self._columns,
            fail_on_data_loss=True,
            poll_timeout_s=self._source.seconds("poll_timeout"),
        )
        offsets, times = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        try:
            reader.handle_splits_changes(SplitsAddition((KafkaSplit(part.topic, part.number, start, start, stop),)))
            is_finished = start >= stop
            while not is_finished:
                fetched = reader.fetch()
                while fetched.next_split() is not None:
                    while (block := fetched.next_record_from_split()) is not None:
                        at = block.positions
                        count = block.batch.num_rows
                        offsets.append(np.arange(at, at + count) if isinstance(at, int) else np.asarray(at))
                        times.append(self._assigner.extract(block.batch, block.source_timestamps).values)
                is_finished = bool(fetched.finished_splits)
        finally:
            reader.close()
        return _Records(np.concatenate(offsets), np.concatenate(times), {})


class _Records(NamedTuple):
    """Offsets and event times; and the offsets of lost records, by the reason."""

    offsets: Int64Array
    times: Int64Array
    lost: Mapping[str, Int64Array]


@dataclass(slots=True)
class _Portion:
    """Consecutive records of a partition, read once for all micro-batches that contain them."""

    read: partial[_Records]
    stop: int
    lock: threading.Lock = field(default_factory=threading.Lock)
    records: _Records | None = None

    def blocks(self, start: int, kept: int, end: int) -> Iterator[TimeBlock | LostRows]:
        """Yield the event times of a range of offsets, of which those before `kept` are gone."""
        yield LostRows(kept - start, _NO_LONGER_THERE)
        with self.lock:
            if self.records is None:
                self.records = self.read()
            records = self.records
            if end >= self.stop:
                # No later range needs these records.
                self.records = None
        first, last = np.searchsorted(records.offsets, [kept, end])
        yield loaded(records.times[first:last])
        for why, offsets in records.lost.items():
            yield LostRows(int(np.subtract(*np.searchsorted(offsets, [end, kept]))), why)


def _without(offsets: Int64Array, others: Int64Array) -> Int64Array:
    return np.setdiff1d(offsets, others, assume_unique=True)


def _offsets(text: str | None) -> Offsets:
    """Parse an offset of Spark's source into offsets by partition."""
    found = {} if text is None else parsed(parse_kafka_offset, text, "an offset of Spark's own Kafka source")
    return {Partition(*part): end for part, end in found.items()}
