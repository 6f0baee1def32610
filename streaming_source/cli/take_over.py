"""Taking over the checkpoint of a query that read Kafka with Spark's own source."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
from pyarrow import fs

from alignment.combine import SplitStatus
from alignment.plan import WatermarkTable
from alignment.watermarks import LONG_AGO_US, MIN_WATERMARK
from streaming_source.connectors.kafka import KafkaSource
from streaming_source.connectors.kafka.config import KAFKA_OPTIONS
from streaming_source.connectors.kafka.split import KafkaCheckpoint, KafkaSplit, KnownTopic
from streaming_source.connectors.kafka.subscription import Partition
from streaming_source.coordinator import SourceState
from streaming_source.exceptions import OffsetError, OptionError
from streaming_source.monitoring.offset_log import OffsetLog
from streaming_source.spark.offsets import OffsetCodec

__all__ = ["TakenOver", "take_over"]

_VERSION: Final = "v1"
_NO_OFFSET: Final = "-"

Offsets: TypeAlias = dict[Partition, int]


@dataclass(frozen=True, slots=True)
class TakenOver:
    """What a query goes on with: the number of its first micro-batch, and how many partitions have an offset.

    It `is_read_again` if Spark's source had planned that one and not committed it: with the same records.
    """

    next_batch: int
    is_read_again: bool
    partitions: int


def take_over(
    checkpoint: str,
    new_checkpoint: str,
    *,
    subscribe: str | None = None,
    subscribe_pattern: str | None = None,
    assign: str | None = None,
    source: int = 0,
) -> TakenOver:
    """Copy the checkpoint of a stopped query, with offsets of `aligned_kafka` in place of those of Spark's own source.

    Numbers of micro-batches, the query's id, its watermark and its state stay as they are, so that sinks recognise what
    they have, and a micro-batch that was planned and not committed is read again. Brokers are not asked. The old
    checkpoint is not changed. A query with several such sources is taken over once for each, from copy to copy.

    Both checkpoints are a path, or a URI that `pyarrow.fs` knows; where the new one is to be there is nothing yet. What
    the new query reads is said by one of its options; `source` is which of the old query's sources, counted from 0 as
    in its progress. An `OptionError` if there is no such checkpoint, something at the new one, or the options do not
    fit; an `OffsetError` if it is not that of a query over Spark's own Kafka source.
    """
    given = {"subscribe": subscribe, "subscribePattern": subscribe_pattern, "assign": assign}
    options = {name: text for name, text in given.items() if text is not None}
    wanted = KafkaSource.from_options(KAFKA_OPTIONS.parse({**options, "kafka.bootstrap.servers": "nobody:9092"}))
    old, new = OffsetLog(checkpoint), OffsetLog(new_checkpoint)
    batches, commits = old.batches(), old.committed()
    if not batches:
        raise OptionError(
            f"checkpoint = {checkpoint!r}: there are no offsets; give the checkpointLocation of the query"
        )
    if new.files.get_file_info(new.root).type is not fs.FileType.NotFound:
        raise OptionError(f"new_checkpoint = {new_checkpoint!r}: there is something already; give a place with nothing")
    last = batches[-1]
    kept = [number for number in (last - 1, last) if number >= 0]
    if not {*kept} <= {*batches} or max(commits, default=-1) not in (last, last - 1):
        raise OffsetError(
            f"checkpoint {checkpoint!r} is damaged: Spark itself could not go on from it; start the new query with "
            "startingOffsets and a new checkpointLocation"
        )
    initial = _offsets(_read(old, f"sources/{source}/0").lstrip("\0").partition("\n")[2], checkpoint)
    written, offsets = {}, Offsets()
    for sequence, number in enumerate(kept, 1):
        version, metadata, *lines = _read(old, f"offsets/{number}").rstrip("\n").split("\n")
        if version != _VERSION or source >= len(lines):
            raise OffsetError(
                f"offsets/{number} of checkpoint {checkpoint!r} has version {version} and {len(lines)} sources, source "
                f"{source} of version {_VERSION} was wanted; see `sources` in the query's progress for the number"
            )
        if lines[source] != _NO_OFFSET:
            offsets = _offsets(lines[source], checkpoint)
            chosen = wanted.subscription
            for part in offsets:
                if not chosen.matches(part.topic) or part not in chosen.select(part.topic, [part.number]):
                    raise OptionError(
                        f"{chosen.kind} does not choose partition {part}, of which the checkpoint has an offset; "
                        "choose topics as the old query does"
                    )
            watermark_ms = json.loads(metadata).get("batchWatermarkMs", 0)
            if number in commits:
                done = json.loads(_read(old, f"commits/{number}").partition("\n")[2])
                watermark_ms = max(watermark_ms, done.get("nextBatchWatermarkMs", 0))
            state = _state(sequence, offsets, initial, watermark_ms)
            lines[source] = json.dumps(OffsetCodec(wanted).encode(state), separators=(",", ":"))
        written[number] = "\n".join([version, metadata, *lines])
    # All but offsets, of which only some are written: Spark reads the last two, and a mixture helps nobody.
    fs.copy_files(old.root, new.root, old.files, new.files)
    new.files.delete_dir_contents(f"{new.root}/offsets")
    for number, text in written.items():
        with new.files.open_output_stream(f"{new.root}/offsets/{number}") as stream:
            stream.write(text.encode())
    return TakenOver(last + (last in commits), last not in commits, len(offsets))


def _offsets(text: str, checkpoint: str) -> Offsets:
    """Of `{"orders": {"0": 23}}`, as Spark's own source writes it."""
    try:
        topics = json.loads(text)
        return {Partition(name, int(n)): int(at) for name, by_n in topics.items() for n, at in by_n.items()}
    except (ValueError, TypeError, AttributeError):
        raise OffsetError(
            f"checkpoint {checkpoint!r} has {text[:80]!r} where offsets of Spark's own Kafka source should be; give "
            "the number of that source, as it is in the query's progress"
        ) from None


def _state(sequence: int, offsets: Offsets, initial: Offsets, watermark_ms: int) -> SourceState[Any, Any]:
    """All partitions at their offsets; what is at or below Spark's watermark is late, as it was."""
    # Spark reads partitions that were found later from their first record on.
    splits = [KafkaSplit(*part, at, min(initial.get(part, 0), at)) for part, at in offsets.items()]
    splits.sort(key=lambda split: split.split_id)
    n, watermark = len(splits), watermark_ms * 1000 if watermark_ms > 0 else MIN_WATERMARK
    statuses = np.full(n, SplitStatus.ACTIVE, np.int8)
    ids = tuple(split.split_id for split in splits)
    table = WatermarkTable(
        split_ids=ids, watermarks=np.full(n, watermark, np.int64), statuses=statuses, combined=watermark
    )
    numbers: dict[str, list[int]] = {}
    for part in sorted(offsets):
        numbers.setdefault(part.topic, []).append(part.number)
    # Without ids, which only brokers know: they are learnt at the first look.
    topics = tuple(KnownTopic(name, "", tuple(found)) for name, found in sorted(numbers.items()))
    nothing, unknown = np.zeros(n, np.int64), np.full(n, LONG_AGO_US, np.int64)
    return SourceState(sequence, tuple(splits), table, nothing, unknown, KafkaCheckpoint(topics))


def _read(old: OffsetLog, name: str) -> str:
    text = old.text(name)
    if text is None:
        raise OffsetError(f"checkpoint {old.root!r} has no {name}: no source of that number is Spark's")
    return text
