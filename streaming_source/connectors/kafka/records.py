"""From runs of records to Arrow, column by column: no Python runs for a record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from alignment.arrow_times import integers_to_microseconds
from alignment.timestamps import NO_TIMESTAMP
from streaming_source.api import RecordBlock
from streaming_source.connectors.kafka.messages import FIELDS, Run
from streaming_source.connectors.kafka.subscription import Partition
from streaming_source.connectors.kafka.values import ValueFormat

__all__ = ["HEADERS", "MessageColumns", "record_schema"]

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


class MessageColumns:
    """Makes blocks of what was taken of messages: those columns of `record_schema` that a schema has."""

    def __init__(self, schema: pa.Schema, value: ValueFormat) -> None:
        self._schema = schema
        self._value = value
        self._fields = tuple(name for name in FIELDS if name in schema.names)

    @property
    def fields(self) -> tuple[str, ...]:
        """What must be taken of messages, see `messages.FIELDS`."""
        return self._fields

    def block(self, part: Partition, runs: Sequence[Run]) -> RecordBlock:
        """A block of runs of one partition, at least one; its positions are offsets. O(n).

        Raises
        ------
        MalformedDataError
            If a value is not what it should be, and the options do not say that it becomes null.
        """
        run = Run.joined(runs)
        count, offsets = len(run), run.offsets
        types, times_ms = run.timestamps[:, 0], run.timestamps[:, 1]
        times, valid = integers_to_microseconds(times_ms, types != 0, "ms")
        times = np.where(valid, times, NO_TIMESTAMP)
        make: dict[str, Callable[[], pa.Array]] = {
            "key": lambda: pa.array(run.fields["key"], pa.binary()),
            "value": lambda: self._value.column(run.fields["value"], part, offsets),
            "topic": lambda: pa.repeat(pa.scalar(part.topic, pa.string()), count),
            "partition": lambda: pa.repeat(pa.scalar(part.number, pa.int32()), count),
            "offset": lambda: pa.array(offsets),
            "timestamp": lambda: pa.array(times, mask=~valid).view(_TIME),
            # As in Spark: -1 for none, 0 for the producer's, 1 for the broker's.
            "timestampType": lambda: pa.array((types - 1).astype(np.int32)),
            "headers": lambda: pa.array(run.fields["headers"], HEADERS),
        }
        batch = pa.RecordBatch.from_arrays([make[field.name]() for field in self._schema], schema=self._schema)
        return RecordBlock(batch, _positions(offsets), times)


def _positions(offsets: Int64Array) -> int | Int64Array:
    first = int(offsets[0])
    return first if int(offsets[-1]) - first == offsets.size - 1 else offsets
