"""Taking over the checkpoint of a query over Spark's own source: a copy, in which its last offsets are ours."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
from pyarrow import fs

from alignment.combine import SplitStatus
from alignment.plan import WatermarkTable
from alignment.timestamps import RecordTimestampAssigner
from alignment.watermarks import LONG_AGO_US, MIN_WATERMARK
from streaming_source.api import SourceSplit
from streaming_source.checkpoint.offset_log import LoggedBatch, OffsetLog
from streaming_source.checkpoint.source_offsets import TableOffset, parse_kafka_offset, parsed, table_offset
from streaming_source.connectors.tables.files import FILES, TableFile
from streaming_source.connectors.tables.lister import TableLister
from streaming_source.connectors.tables.source import TableSource
from streaming_source.connectors.tables.split import TableCheckpoint, TableSplit
from streaming_source.connectors.tables.waiting import Progress
from streaming_source.coordinator import SourceState
from streaming_source.exceptions import DataLossError, OffsetError, OptionError, UnsupportedOperationError
from streaming_source.spark.offsets import OffsetCodec
from streaming_source.tools.auditing.sources.tables import TableReads

_VERSION: Final = "v1"
GIVE_NUMBER: Final = "give the number of that source, as it is in the query's progress"
"""The advice where an offset is of another kind of source."""

Encode: TypeAlias = Callable[[int, str, int], object]
"""Sequence number of a state, offset of Spark's own source, watermark in milliseconds -> our offset, for JSON."""


class CopiedCheckpoint:
    """The checkpoint of a stopped query, to be copied with our offsets in place of those of its source `source`.

    Of a stream that is joined with itself both sides are replaced: they are one source, whichever is named.

    An `OptionError` if there is no checkpoint, or the new place is not empty; an `OffsetError` if Spark itself could
    not continue from the checkpoint.
    """

    def __init__(self, checkpoint: str, new_checkpoint: str, source: int) -> None:
        self._checkpoint, self._source = checkpoint, source
        self._old, self._new = OffsetLog(checkpoint), OffsetLog(new_checkpoint)
        batches, self._commits = self._old.batches(), self._old.committed()
        if not batches:
            raise OptionError(
                f"checkpoint = {checkpoint!r}: there are no offsets; give the checkpointLocation of the query"
            )
        if self._new.filesystem.get_file_info(self._new.root).type is not fs.FileType.NotFound:
            raise OptionError(
                f"new_checkpoint = {new_checkpoint!r}: there is something already; give a place with nothing"
            )
        self._last = batches[-1]
        self._kept = [number for number in (self._last - 1, self._last) if number >= 0]
        is_whole = {*self._kept} <= {*batches} and max(self._commits, default=-1) in (self._last, self._last - 1)
        if not is_whole:
            raise OffsetError(
                f"checkpoint {checkpoint!r} is damaged: Spark itself could not go on from it; start the new query with "
                "startingOffsets and a new checkpointLocation"
            )
        self._folders = self._old.source_folders([self._old.read(number) for number in self._kept])

    @property
    def folder(self) -> str:
        """The folder of the source in `sources/`."""
        return self._folders[self._source] if self._source < len(self._folders) else str(self._source)

    @property
    def next_batch(self) -> int:
        """The number of the micro-batch with which the copy continues."""
        return self._last + (self._last in self._commits)

    @property
    def is_read_again(self) -> bool:
        """True if Spark had planned the next micro-batch and not committed it."""
        return self._last not in self._commits

    @property
    def last_offset(self) -> str | None:
        """The last offset of the source, as text; None if the query has read nothing of it yet."""
        return self._read(self._last).offsets[self._source]

    def text(self, name: str) -> str:
        """Read a file of the old checkpoint; raises an `OffsetError` if it is missing."""
        text = self._old.text(name)
        if text is None:
            raise OffsetError(
                f"checkpoint {self._old.root!r} has no {name}: this source is not one of Spark's own; give another "
                "number from the query's progress"
            )
        return text

    def write(self, encode: Encode) -> None:
        """Copy the checkpoint, with the last two offsets replaced by `encode`; if that raises, no copy is left."""
        written = {number: self._offsets(sequence, number, encode) for sequence, number in enumerate(self._kept, 1)}
        # All but the offsets: Spark reads only the last two, so the copy has only these, all of them ours.
        fs.copy_files(self._old.root, self._new.root, self._old.filesystem, self._new.filesystem)
        self._new.filesystem.delete_dir_contents(f"{self._new.root}/offsets")
        for number, text in written.items():
            with self._new.filesystem.open_output_stream(f"{self._new.root}/offsets/{number}") as stream:
                stream.write(text.encode())

    def _read(self, number: int) -> LoggedBatch:
        logged = self._old.read(number)
        if logged.version != _VERSION or self._source >= len(logged.offsets):
            raise OffsetError(
                f"offsets/{number} of checkpoint {self._checkpoint!r} has version {logged.version} and "
                f"{len(logged.offsets)} sources, source {self._source} of version {_VERSION} was wanted; see `sources` "
                "in the query's progress for the number"
            )
        return logged

    def _offsets(self, sequence: int, number: int, encode: Encode) -> str:
        logged = self._read(number)
        offset = logged.offsets[self._source]
        if offset is not None:
            watermark_us = max(logged.watermark_us, self._old.next_watermark_us(number) or 0)
            text = json.dumps(encode(sequence, offset, watermark_us // 1_000), separators=(",", ":"))
            for side in (place for place, folder in enumerate(self._folders) if folder == self.folder):
                logged = logged.with_offset(side, text)
        return str(logged)


def state_at(sequence: int, splits: Iterable[SourceSplit], watermark_ms: int, checkpoint: Any) -> SourceState[Any, Any]:
    """Return a state with these splits in work; records at or below Spark's watermark stay late."""
    ordered = sorted(splits, key=lambda split: split.split_id)
    n, watermark = len(ordered), watermark_ms * 1000 if watermark_ms > 0 else MIN_WATERMARK
    table = WatermarkTable(
        split_ids=tuple(split.split_id for split in ordered),
        watermarks=np.full(n, watermark, np.int64),
        statuses=np.full(n, SplitStatus.ACTIVE, np.int8),
        combined=watermark,
    )
    nothing, unknown = np.zeros(n, np.int64), np.full(n, LONG_AGO_US, np.int64)
    return SourceState(sequence, tuple(ordered), table, nothing, unknown, checkpoint)


@dataclass(frozen=True, slots=True)
class TakenOver:
    """The place where a query continues: the number of its first micro-batch, and how many partitions have an offset.

    `is_read_again` if Spark's source had planned that micro-batch and not committed it; it then has the same records.
    """

    next_batch: int
    is_read_again: bool
    partitions: int


def take_over(checkpoint: str, new_checkpoint: str, topics: Mapping[str, str], source: int = 0) -> TakenOver:
    """Copy the checkpoint of a stopped query, with offsets of `aligned_kafka` in place of those of Spark's own source.

    Numbers of micro-batches, the query's id, its watermark and its state are kept, so that sinks recognise what they
    have, and a micro-batch that was planned and not committed is read again. Brokers are not contacted. The
    old checkpoint is not changed. A query with several such sources is taken over once for each, from copy to copy.

    Each checkpoint is a path, or a URI that `pyarrow.fs` knows; the new one must not exist yet. `topics` is the option
    of the new query that gives its topics or partitions; `source` is the number of the old query's source, counted from
    0 as in its progress. Raises an `OptionError` if there is no such checkpoint, the new one exists, or the options do
    not fit, and an `OffsetError` if the checkpoint is not that of a query over Spark's own Kafka source.
    """
    # Imported here, for tables need no Kafka; KafkaSource first: its error names the extra that is missing.
    from streaming_source.connectors import KafkaSource

    # isort: split
    from streaming_source.connectors.kafka.config import KAFKA_OPTIONS
    from streaming_source.connectors.kafka.split import KafkaCheckpoint, KafkaSplit, KnownTopic
    from streaming_source.connectors.kafka.subscription import Partition

    def read(text: str) -> dict[Partition, int]:
        found = parsed(parse_kafka_offset, text, "offsets of Spark's own Kafka source", GIVE_NUMBER)
        return {Partition(*part): end for part, end in found.items()}

    wanted = KafkaSource.from_options(KAFKA_OPTIONS.parse({**topics, "kafka.bootstrap.servers": "nobody:9092"}))
    chosen, codec = wanted.subscription, OffsetCodec(wanted)
    copied = CopiedCheckpoint(checkpoint, new_checkpoint, source)
    initial = read(copied.text(f"sources/{copied.folder}/0").lstrip("\0").partition("\n")[2])
    offsets: dict[Partition, int] = {}

    def encode(sequence: int, text: str, watermark_ms: int) -> object:
        offsets.clear()
        offsets.update(read(text))
        numbers: dict[str, list[int]] = {}
        for part in sorted(offsets):
            if not chosen.matches(part.topic) or part not in chosen.select(part.topic, [part.number]):
                raise OptionError(
                    f"{chosen.kind} does not choose partition {part}, of which the checkpoint has an offset; "
                    "choose topics as the old query does"
                )
            numbers.setdefault(part.topic, []).append(part.number)
        # Spark reads partitions that it found later from their first record on.
        splits = [KafkaSplit(*part, at, min(initial.get(part, 0), at)) for part, at in offsets.items()]
        # Without topic ids, which only brokers have: the first discovery fetches them.
        known = tuple(KnownTopic(name, "", tuple(found)) for name, found in sorted(numbers.items()))
        return codec.encode(state_at(sequence, splits, watermark_ms, KafkaCheckpoint(known)))

    copied.write(encode)
    return TakenOver(copied.next_batch, copied.is_read_again, len(offsets))


_FILES: Final = 500
"""Most files, unread by Spark's source, that an offset may have; all of them are in work."""


@dataclass(frozen=True, slots=True)
class TakenOverTable:
    """The place where a query continues: the number of its first micro-batch, and unread files of the last version."""

    next_batch: int
    version: int
    files: int


def take_over_table(checkpoint: str, new_checkpoint: str, table: TableSource, *, source: int = 0) -> TakenOverTable:
    """Copy the checkpoint of a stopped query, with offsets of ours for those of Spark's own source over a table.

    Numbers of micro-batches, the query's id, its watermark and its state are kept, so that sinks recognise what they
    have. The old checkpoint is not changed. The query over an Iceberg table had neither branch nor tag.

    `table` is as the new query loads it: the checkpoint names only its id, or its snapshots. The others are as of
    `take_over`. Raises an `OptionError` if there is no such checkpoint, the new one exists, or the table is another one
    or cannot be loaded; an `OffsetError` if the checkpoint is of no query over Spark's source of that format, its last
    micro-batch was not committed, or it is at a version that is not known any more; and an `UnsupportedOperationError`
    if more than 500 files of a version are unread: our offsets cannot hold the order in which Spark reads them.
    """
    copied = CopiedCheckpoint(checkpoint, new_checkpoint, source)
    if copied.is_read_again:
        # No offset of ours has its files unread: the last one has them read, and earlier ones do not list them.
        raise OffsetError(
            f"checkpoint {checkpoint!r}: micro-batch {copied.next_batch} was planned and not committed. Start the old "
            "query with Trigger.AvailableNow, let it end, and take it over then"
        )
    if (last := copied.last_offset) is None:
        raise OffsetError(f"checkpoint {checkpoint!r} has no offset of source {source}: the query has read nothing yet")
    offset = table_offset(table.name.removeprefix("aligned_"), last, GIVE_NUMBER)
    # Bounds of event times are not needed: files that are not all read are in work.
    lister = table.open_lister(table.schema(), RecordTimestampAssigner())
    if offset.table_id not in (None, lister.table_id):
        raise OptionError(
            f"the {table.title} has the id {lister.table_id}, and the checkpoint is of the table {offset.table_id}; "
            "give the folder of that one"
        )
    left = _unread(checkpoint, table, lister, offset)
    state = TableCheckpoint(lister.table_id, Progress(offset.version))

    def encode(sequence: int, _: str, watermark_ms: int) -> object:
        # Where the query goes on, also in the offset before that: what it names may be gone from the table.
        return OffsetCodec(table).encode(state_at(sequence, map(TableSplit, left), watermark_ms, state))

    copied.write(encode)
    return TakenOverTable(copied.next_batch, offset.version, len(left))


def _unread(checkpoint: str, table: TableSource, lister: TableLister, offset: TableOffset) -> list[TableFile]:
    """Return the files of the offset's version that are not read, without bounds, which files in work do not need."""
    # What a Delta query reads of commits that change rows is not in its checkpoint; Iceberg's reads nothing of them.
    reads_changes = None if offset.table_id is not None else False
    try:
        left = TableReads(lister, reads_changes=reads_changes).rest(offset)
    except DataLossError as error:
        raise OffsetError(
            f"checkpoint {checkpoint!r} is at version {offset.version}: {str(error).partition('. ')[0]}, or the query "
            "reads another table. Give that one, or start the new query with another checkpointLocation"
        ) from None
    if left.num_rows > _FILES:
        raise UnsupportedOperationError(
            f"{table.title}: {left.num_rows} files of version {offset.version} were not read yet, and an offset of "
            f"ours takes {_FILES} of them. Let the old query read on, or start the new one with another "
            "checkpointLocation, which reads the table by event time"
        )
    names = [name for name in FILES.names if name not in ("low_us", "high_us")]
    return [TableFile(**row, low_us=None, high_us=None) for row in left.select(names).to_pylist()]
