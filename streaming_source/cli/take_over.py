"""Taking over the checkpoint of a query that read Kafka with Spark's own source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from streaming_source.checkpoint.source_offsets import parse_kafka_offset, parsed
from streaming_source.cli.copied_checkpoint import GIVE_NUMBER, CopiedCheckpoint, state_at
from streaming_source.connectors import KafkaSource  # first: its error names the extra that is missing
from streaming_source.connectors.kafka.config import KAFKA_OPTIONS
from streaming_source.connectors.kafka.split import KafkaCheckpoint, KafkaSplit, KnownTopic
from streaming_source.connectors.kafka.subscription import Partition
from streaming_source.coordinator import SourceState
from streaming_source.exceptions import OptionError
from streaming_source.spark.offsets import OffsetCodec

Offsets: TypeAlias = dict[Partition, int]


@dataclass(frozen=True, slots=True)
class TakenOver:
    """The place where a query continues: the number of its first micro-batch, and how many partitions have an offset.

    `is_read_again` if Spark's source had planned that micro-batch and not committed it; it then has the same records.
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

    Numbers of micro-batches, the query's id, its watermark and its state are kept, so that sinks recognise what they
    have, and a micro-batch that was planned and not committed is read again. Brokers are not contacted. The
    old checkpoint is not changed. A query with several such sources is taken over once for each, from copy to copy.

    Each checkpoint is a path, or a URI that `pyarrow.fs` knows; the new one must not exist yet. One of the new query's
    options gives its topics or partitions; `source` is the number of the old query's source, counted from 0 as in its
    progress. Raises an `OptionError` if there is no such checkpoint, the new one exists, or the options do not fit, and
    an `OffsetError` if the checkpoint is not that of a query over Spark's own Kafka source.
    """
    given = {"subscribe": subscribe, "subscribePattern": subscribe_pattern, "assign": assign}
    options = {name: text for name, text in given.items() if text is not None}
    wanted = KafkaSource.from_options(KAFKA_OPTIONS.parse({**options, "kafka.bootstrap.servers": "nobody:9092"}))
    copied = CopiedCheckpoint(checkpoint, new_checkpoint, source)
    initial = _offsets(copied.text(f"sources/{copied.folder}/0").lstrip("\0").partition("\n")[2])
    offsets = Offsets()

    def encode(sequence: int, text: str, watermark_ms: int) -> object:
        offsets.clear()
        offsets.update(_offsets(text))
        chosen = wanted.subscription
        for part in offsets:
            if not chosen.matches(part.topic) or part not in chosen.select(part.topic, [part.number]):
                raise OptionError(
                    f"{chosen.kind} does not choose partition {part}, of which the checkpoint has an offset; "
                    "choose topics as the old query does"
                )
        return OffsetCodec(wanted).encode(_state(sequence, offsets, initial, watermark_ms))

    copied.write(encode)
    return TakenOver(copied.next_batch, copied.is_read_again, len(offsets))


def _offsets(text: str) -> Offsets:
    found = parsed(parse_kafka_offset, text, "offsets of Spark's own Kafka source", GIVE_NUMBER)
    return {Partition(*part): end for part, end in found.items()}


def _state(sequence: int, offsets: Offsets, initial: Offsets, watermark_ms: int) -> SourceState[Any, Any]:
    """Return a state of all partitions at their offsets."""
    # Spark reads partitions that it found later from their first record on.
    splits = [KafkaSplit(*part, at, min(initial.get(part, 0), at)) for part, at in offsets.items()]
    numbers: dict[str, list[int]] = {}
    for part in sorted(offsets):
        numbers.setdefault(part.topic, []).append(part.number)
    # Without topic ids, which only brokers have: the first discovery fetches them.
    topics = tuple(KnownTopic(name, "", tuple(found)) for name, found in sorted(numbers.items()))
    return state_at(sequence, splits, watermark_ms, KafkaCheckpoint(topics))
