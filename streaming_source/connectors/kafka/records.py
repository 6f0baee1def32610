"""From the client's messages to Arrow, column by column: no Python runs for a record."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from confluent_kafka import Message

from alignment.timestamps import NO_TIMESTAMP
from streaming_source.api import RecordBlock
from streaming_source.connectors.kafka.subscription import Partition
from streaming_source.connectors.kafka.values import ValueFormat

__all__ = ["HEADERS", "MessageColumns", "by_partition", "record_schema"]

HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_TIME: Final = pa.timestamp("us", tz="UTC")

Int64Array = npt.NDArray[np.int64]


def record_schema(value: ValueFormat, *, headers: bool) -> pa.Schema:
    """The columns of Spark's own Kafka source, in its order."""
    fields = [
        pa.field("key", pa.binary()),
        pa.field("value", value.type),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", _TIME),
        pa.field("timestampType", pa.int32()),
    ]
    return pa.schema([*fields, pa.field("headers", HEADERS)] if headers else fields)


def by_partition(messages: list[Message]) -> Iterator[tuple[Partition, list[Message]]]:
    """Runs of messages of one partition, as they came; at least one message. O(n)."""
    numbers = np.fromiter(map(Message.partition, messages), np.int64, len(messages))
    changes = np.flatnonzero(np.diff(numbers)) + 1
    if len(set(map(Message.topic, messages))) > 1:
        others = [i for i, (a, b) in enumerate(pairwise(map(Message.topic, messages)), 1) if a != b]
        changes = np.union1d(changes, np.array(others, np.int64))
    for begin, end in pairwise([0, *changes.tolist(), len(messages)]):
        yield Partition(messages[begin].topic(), int(numbers[begin])), messages[begin:end]


class MessageColumns:
    """Makes blocks of messages.

    Parameters
    ----------
    schema
        Columns to make, some of `record_schema`.
    value
        How values are read.
    """

    def __init__(self, schema: pa.Schema, value: ValueFormat) -> None:
        self._schema = schema
        self._value = value

    def block(self, part: Partition, messages: list[Message]) -> RecordBlock:
        """A block of at least one message of one partition; its positions are offsets. O(n).

        Raises
        ------
        MalformedDataError
            If a value is not what it should be, and the options do not say that it becomes null.
        """
        offsets = np.fromiter(map(Message.offset, messages), np.int64, len(messages))
        types, times_ms = _timestamps(messages)
        times = np.where(types == 0, NO_TIMESTAMP, times_ms * 1000)
        make: dict[str, Callable[[], pa.Array]] = {
            "key": lambda: pa.array(list(map(Message.key, messages)), pa.binary()),
            "value": lambda: self._value.column(list(map(Message.value, messages)), part, offsets),
            "topic": lambda: pa.repeat(pa.scalar(part.topic, pa.string()), len(messages)),
            "partition": lambda: pa.repeat(pa.scalar(part.number, pa.int32()), len(messages)),
            "offset": lambda: pa.array(offsets),
            "timestamp": lambda: pa.array(times, mask=types == 0).cast(_TIME),
            # As in Spark: -1 for none, 0 for the producer's, 1 for the broker's.
            "timestampType": lambda: pa.array((types - 1).astype(np.int32)),
            "headers": lambda: pa.array(list(map(Message.headers, messages)), HEADERS),
        }
        batch = pa.RecordBatch.from_arrays([make[field.name]() for field in self._schema], schema=self._schema)
        return RecordBlock(batch, _positions(offsets), times)


def _timestamps(messages: Sequence[Message]) -> tuple[Int64Array, Int64Array]:
    # In one stream of numbers: arrays of tuples take five times as long.
    numbers = chain.from_iterable(map(Message.timestamp, messages))
    pairs = np.fromiter(numbers, np.int64, 2 * len(messages)).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def _positions(offsets: Int64Array) -> int | Int64Array:
    first = int(offsets[0])
    return first if int(offsets[-1]) - first == offsets.size - 1 else offsets
