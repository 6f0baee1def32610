"""From the client's messages to runs of records: what is asked for of each, in a few calls for all of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from confluent_kafka import Message

from streaming_source.connectors.kafka.subscription import Partition

__all__ = ["FIELDS", "Run", "runs_of"]

Int64Array = npt.NDArray[np.int64]

FIELDS: Final[dict[str, Callable[[Message], Any]]] = {
    "key": Message.key,
    "value": Message.value,
    "headers": Message.headers,
}
"""What of a record is no number, by the column that it becomes."""


@dataclass(frozen=True, slots=True)
class Run:
    """Records of one partition in their order, at least one.

    Attributes
    ----------
    offsets
        `int64[n]`.
    timestamps
        `int64[n, 2]`: the type of each, 0 for none, and milliseconds.
    fields
        Those of `FIELDS` that were asked for, lists of `n`.
    """

    offsets: Int64Array
    timestamps: Int64Array
    fields: dict[str, list[Any]]

    def __len__(self) -> int:
        return self.offsets.size

    def before(self, offset: int) -> Run | None:
        """What lies before an offset; None if nothing does. O(n) where something is cut off."""
        end = int(np.searchsorted(self.offsets, offset))
        if end == len(self):
            return self
        fields = {name: values[:end] for name, values in self.fields.items()}
        return Run(self.offsets[:end], self.timestamps[:end], fields) if end else None

    @classmethod
    def joined(cls, runs: Sequence[Run]) -> Run:
        """One of several of the same partition. O(n)."""
        if len(runs) == 1:
            return runs[0]
        fields = {name: [*chain.from_iterable(run.fields[name] for run in runs)] for name in runs[0].fields}
        offsets = np.concatenate([run.offsets for run in runs])
        return cls(offsets, np.concatenate([run.timestamps for run in runs]), fields)


def runs_of(messages: list[Message], fields: Collection[str]) -> Iterator[tuple[Partition, Run]]:
    """Runs of messages of one partition, as they came; at least one message, and none that is an event. O(n).

    Parameters
    ----------
    fields
        Which of `FIELDS` to take.
    """
    count = len(messages)
    offsets = np.fromiter(map(Message.offset, messages), np.int64, count)
    # In one stream of numbers: arrays of tuples take five times as long.
    numbers = chain.from_iterable(map(Message.timestamp, messages))
    timestamps = np.fromiter(numbers, np.int64, 2 * count).reshape(-1, 2)
    taken = {name: list(map(FIELDS[name], messages)) for name in fields}
    for begin, end in pairwise(_changes(messages)):
        part = Partition(messages[begin].topic(), messages[begin].partition())
        if end - begin == count:
            yield part, Run(offsets, timestamps, taken)
        else:
            cut = {name: values[begin:end] for name, values in taken.items()}
            yield part, Run(offsets[begin:end], timestamps[begin:end], cut)


def _changes(messages: list[Message]) -> list[int]:
    """Where messages of another partition begin; 0 and the end as well."""
    numbers = np.fromiter(map(Message.partition, messages), np.int64, len(messages))
    changes = np.flatnonzero(np.diff(numbers)) + 1
    if len(set(map(Message.topic, messages))) > 1:
        others = [i for i, (a, b) in enumerate(pairwise(map(Message.topic, messages)), 1) if a != b]
        changes = np.union1d(changes, np.array(others, np.int64))
    return [0, *changes.tolist(), len(messages)]
