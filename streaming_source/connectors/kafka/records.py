"""The client's messages as Arrow columns, made in a few calls for all of them; values as bytes or text."""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import pyarrow as pa
from confluent_kafka import Message

from alignment.arrow_times import integers_to_microseconds
from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import Int64Array
from streaming_source.api import RecordBlock
from streaming_source.connectors.kafka.subscription import Partition
from streaming_source.exceptions import MalformedDataError

_HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_TIME: Final = pa.timestamp("us", tz="UTC")
_WIDTH: Final = 80
_LONG: Final = 256
_MOST_BYTES: Final = 2**31 - 1
"""Of an array of `pa.binary()`."""

FIELDS: Final[dict[str, Callable[[Message], Any]]] = {
    "key": Message.key,
    "value": Message.value,
    "headers": Message.headers,
}
"""Functions that take the columns that are no numbers from a message."""


@dataclass(frozen=True, slots=True)
class Run:
    """Records of one partition in their order, at least one.

    `offsets` are `int64[n]`. `timestamps` are `int64[n, 2]`: the type of each, 0 for none, and milliseconds. `fields`
    has the wanted ones of `FIELDS`, lists of `n`.
    """

    offsets: Int64Array
    timestamps: Int64Array
    fields: dict[str, list[Any]]

    def __len__(self) -> int:
        return self.offsets.size

    def before(self, offset: int) -> Run | None:
        """Return the records before an offset; None if there are none. O(n) if some are cut off."""
        end = int(np.searchsorted(self.offsets, offset))
        if end == len(self):
            return self
        fields = {name: values[:end] for name, values in self.fields.items()}
        return Run(self.offsets[:end], self.timestamps[:end], fields) if end else None

    @classmethod
    def joined(cls, runs: Sequence[Run]) -> Run:
        """Join runs of the same partition. O(n)."""
        if len(runs) == 1:
            return runs[0]
        fields = {name: [*chain.from_iterable(run.fields[name] for run in runs)] for name in runs[0].fields}
        offsets = np.concatenate([run.offsets for run in runs])
        return cls(offsets, np.concatenate([run.timestamps for run in runs]), fields)


def runs_of(
    messages: list[Message], fields: Collection[str], only: Partition | None = None
) -> Iterator[tuple[Partition, Run]]:
    """Yield runs of messages of one partition each, with these of `FIELDS`. No message may be an event. O(n).

    `only` is the partition of all messages, if it is known: the client returns messages of assigned partitions alone.
    """
    is_one = only is not None and only == _of(messages[0]) == _of(messages[-1])
    for begin, end in pairwise([0, len(messages)] if is_one else _changes(messages)):
        those = messages if end - begin == len(messages) else messages[begin:end]
        taken = {name: list(map(FIELDS[name], those)) for name in fields}
        yield _of(those[0]), Run(_offsets(those), _timestamps(those), taken)


def _of(message: Message) -> Partition:
    return Partition(message.topic(), message.partition())


def _offsets(messages: list[Message]) -> Int64Array:
    """Offsets of messages of one partition, which rise: as many as there are from the first to the last have no gap."""
    count = len(messages)
    first, last = messages[0].offset(), messages[-1].offset()
    if last - first == count - 1:
        return np.arange(first, last + 1)
    return np.fromiter(map(Message.offset, messages), np.int64, count)


def _timestamps(messages: list[Message]) -> Int64Array:
    # As one stream of numbers: an array of tuples takes five times as long.
    numbers = chain.from_iterable(map(Message.timestamp, messages))
    return np.fromiter(numbers, np.int64, 2 * len(messages)).reshape(-1, 2)


def _changes(messages: list[Message]) -> list[int]:
    """Return where the partition changes, with 0 and the end."""
    # Nearly always there is one, for which a set takes half the time of an array.
    if len(set(map(Message.partition, messages))) == 1 and len(set(map(Message.topic, messages))) == 1:
        return [0, len(messages)]
    numbers = np.fromiter(map(Message.partition, messages), np.int64, len(messages))
    changes = np.flatnonzero(np.diff(numbers)) + 1
    if len(set(map(Message.topic, messages))) > 1:
        others = [i for i, (a, b) in enumerate(pairwise(map(Message.topic, messages)), 1) if a != b]
        changes = np.union1d(changes, np.array(others, np.int64))
    return [0, *changes.tolist(), len(messages)]


# ---- values ----------------------------------------------------------------------------------------------------------

Invalid: TypeAlias = Literal["fail", "null"]
"""The fate of values that are not of their format."""


class ValueFormat(ABC):
    """The format of values that become a column. Two are equal if they read values in the same way."""

    invalid: Invalid

    @property
    @abstractmethod
    def type(self) -> pa.DataType:
        """The type of the column."""

    @property
    @abstractmethod
    def what(self) -> str:
        """Return what a value should be, for errors."""

    @abstractmethod
    def read(self, values: list[bytes | None]) -> pa.Array:
        """Return the column of `n` values; None is null.

        Raises `pa.ArrowInvalid` or `pa.ArrowNotImplementedError` if one is not of the format.
        """

    def in_zone(self, zone: str) -> ValueFormat:
        """Return the format that reads times without a zone in this one, unless it has another; by default itself."""
        return self

    def column(self, values: list[bytes | None], part: Partition, offsets: Int64Array) -> pa.Array:
        """Return the column of `n` values of one partition.

        Raises a `MalformedDataError` with partition and offset of a value that is not of the format, unless such values
        become null.
        """
        try:
            return self.read(values)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            # Only after an error is each value read by itself.
            return pa.concat_arrays([self._one(*one, part) for one in zip(values, offsets.tolist(), strict=True)])

    def _one(self, value: bytes | None, offset: int, part: Partition) -> pa.Array:
        try:
            return self.read([value])
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            if self.invalid == "null":
                return pa.nulls(1, self.type)
            shown = repr(value if value is None or len(value) <= _WIDTH else value[:_WIDTH] + b"...")
            raise MalformedDataError(
                f"partition {part}, offset {offset}: the value {shown} is not {self.what}: {error}; option "
                "invalidValue = null reads such values as null"
            ) from None


@dataclass(frozen=True)
class BinaryValues(ValueFormat):
    """Values as they are."""

    type = pa.binary()
    what = "bytes"

    def read(self, values: list[bytes | None]) -> pa.Array:
        return _binary(values)


@dataclass(frozen=True)
class TextValues(ValueFormat):
    """Values that are UTF-8."""

    invalid: Invalid = "fail"
    type = pa.string()
    what = "UTF-8 text"

    def read(self, values: list[bytes | None]) -> pa.Array:
        return _binary(values).cast(pa.string())


def _binary(values: list[bytes | None]) -> pa.Array:
    """`pa.array(values, pa.binary())`, in less time where values are long, whose bytes are copied once, or all null."""
    count = len(values)
    if values[0] is None and values.count(None) == count:
        return pa.nulls(count, pa.binary())
    if values[0] is None or len(values[0]) < _LONG:
        return pa.array(values, pa.binary())
    try:
        data = b"".join(values)  # type: ignore[arg-type]
    except TypeError:
        return pa.array(values, pa.binary())
    if len(data) > _MOST_BYTES:
        return pa.array(values, pa.binary())
    ends = np.zeros(count + 1, np.int32)
    np.frombuffer(struct.pack(f"{count}i", *map(len, values)), np.int32).cumsum(out=ends[1:])  # type: ignore[arg-type]
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(ends), pa.py_buffer(data)])


# ---- all columns -----------------------------------------------------------------------------------------------------


def record_schema(value: ValueFormat, *, headers: bool) -> pa.Schema:
    """Return the columns of Spark's own Kafka source, in its order."""
    fields = [
        pa.field("key", pa.binary()),
        pa.field("value", value.type),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", _TIME),
        pa.field("timestampType", pa.int32()),
    ]
    return pa.schema([*fields, pa.field("headers", _HEADERS)] if headers else fields)


class MessageColumns:
    """Makes record blocks of runs, with those columns of `record_schema` that a schema has."""

    def __init__(self, schema: pa.Schema, value: ValueFormat) -> None:
        self._schema = schema
        self._value = value
        # The names in `FIELDS` that must be taken from messages.
        self.fields = tuple(name for name in FIELDS if name in schema.names)

    def block(self, part: Partition, runs: Sequence[Run]) -> RecordBlock:
        """Make a block of one or more runs of a partition; its positions are offsets. See `ValueFormat.column`.

        O(n).
        """
        run = Run.joined(runs)
        count, offsets = len(run), run.offsets
        types, times_ms = run.timestamps[:, 0], run.timestamps[:, 1]
        times, valid = integers_to_microseconds(times_ms, types != 0, "ms")
        times = np.where(valid, times, NO_TIMESTAMP)
        make: dict[str, Callable[[], pa.Array]] = {
            "key": lambda: _binary(run.fields["key"]),
            "value": lambda: self._value.column(run.fields["value"], part, offsets),
            "topic": lambda: pa.repeat(pa.scalar(part.topic, pa.string()), count),
            "partition": lambda: pa.repeat(pa.scalar(part.number, pa.int32()), count),
            "offset": lambda: pa.array(offsets),
            "timestamp": lambda: pa.array(times, mask=~valid).view(_TIME),
            # As in Spark: -1 for none, 0 for the producer's, 1 for the broker's.
            "timestampType": lambda: pa.array((types - 1).astype(np.int32)),
            "headers": lambda: pa.array(run.fields["headers"], _HEADERS),
        }
        batch = pa.RecordBatch.from_arrays([make[field.name]() for field in self._schema], schema=self._schema)
        first, last = int(offsets[0]), int(offsets[-1])
        return RecordBlock(batch, first if last - first == count - 1 else offsets, times)
