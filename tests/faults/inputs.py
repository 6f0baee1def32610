"""What is read while faults strike: inputs that grow, how each connector reads them, and what is in them."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from alignment.watermarks import MAX_WATERMARK
from streaming_source.api import Source
from streaming_source.connectors import DataGeneratorSource, FileSource, KafkaSource
from streaming_source.connectors.datagen.enumerator import GeneratedSplit
from tests.spark.support import SECOND, T0, Times, write_table
from tests.spark.unindexed import UnindexedLogs, append_log

__all__ = [
    "BOUNDABLE",
    "BOUND_US",
    "CONNECTORS",
    "OF_KAFKA",
    "TRANSACTIONS",
    "Growing",
    "event_time_of",
    "place_of",
    "source_of",
]

CONNECTORS = ("files", "datagen", "kafka", "own", "own, off")
"""`own` is a source of one's own, read ahead; `own, off` the same with `indexing=off`."""

TRANSACTIONS = "kafka, transactions"
"""A topic whose producer writes in transactions, of which one is always open, and every fourth is aborted."""

OF_KAFKA = ("kafka", TRANSACTIONS)

BOUNDABLE = ("files", "datagen")
"""Those whose checkpoint may be read on to an end; Kafka refuses it, and splits of `own` go on for ever."""

BOUND_US = 2 * SECOND
_SPLITS = 3
_GENERATED = DataGeneratorSource(
    splits=_SPLITS, rows_per_second=50, rows_per_split=1, disorder="2 seconds", skew=1.5, discovery_interval="200 ms"
)


def place_of(connector: str, folder: Path, brokers: Callable[[], str], *, generated: int) -> str:
    """A folder; for Kafka `servers/topic`, with a new topic; for datagen how many records each split has."""
    if connector == "datagen":
        return str(generated)
    if connector not in OF_KAFKA:
        return str(folder / connector.replace(", ", "_"))
    from confluent_kafka.admin import AdminClient, NewTopic

    servers, topic = brokers(), f"topic-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(topic, _SPLITS, 1)])[topic].result(30)
    return f"{servers}/{topic}"


def source_of(connector: str, place: str, *, bounded: bool) -> Source[Any, Any]:
    """The source of a query, over what `place_of` names; `bounded` counts for the `BOUNDABLE` alone."""
    if connector == "files":
        return FileSource(place, split_by="directory", discovery_interval="200 ms", bounded=bounded)
    if connector == "datagen":
        return replace(_GENERATED, rows_per_split=int(place), bounded=bounded)
    if connector in OF_KAFKA:
        servers, _, topic = place.rpartition("/")
        return KafkaSource.of(servers, topic, startingOffsets="earliest")
    return UnindexedLogs(place)


def event_time_of(connector: str) -> str | None:
    """Column of the event time; None for the record's own timestamp."""
    return None if connector in (*OF_KAFKA, "datagen") else "ts"


@dataclass
class Growing:
    """The input of one query, which grows while it runs.

    Parameters
    ----------
    connector, place
        See `source_of`.
    rng
        Decides how fast which split grows.

    Attributes
    ----------
    times, positions
        Of each split the event times of its records, in their order, and where these are. Of transactions those that
        were committed.
    """

    connector: str
    place: str
    rng: random.Random
    times: dict[str, list[int]] = field(default_factory=dict)
    _offsets: dict[str, list[int]] = field(default_factory=dict)
    _open: list[tuple[str, int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.connector == "datagen":
            positions = np.arange(int(self.place))
            for split in range(_SPLITS):
                times = _GENERATED.generator.times(split, positions)
                self.times[GeneratedSplit(split).split_id] = times.tolist()
            return
        self._steps = [self.rng.choice((100, 200, 400)) * 1000 for _ in range(_SPLITS)]
        self._files = 0
        self._names = [f"split-{i}" for i in range(_SPLITS)]
        if self.connector in OF_KAFKA:
            from confluent_kafka import Producer

            servers, _, topic = self.place.rpartition("/")
            self._names = [f"{topic}-{i}" for i in range(_SPLITS)]
            settings = {"bootstrap.servers": servers, "linger.ms": 0, "max.in.flight": 1}
            if self.connector == TRANSACTIONS:
                settings |= {"transactional.id": topic, "transaction.timeout.ms": 600_000, "log_level": 3}
            self._producer = Producer(settings)
        if self.connector == TRANSACTIONS:
            self._producer.init_transactions(30)
            self._producer.begin_transaction()
        for number in range(_SPLITS):
            self.times[self._names[number]] = []
            self._append(number, 40)
        if self.connector == TRANSACTIONS:
            self._end_transaction(aborts=False)
            self._producer.begin_transaction()

    @property
    def last_watermark(self) -> int:
        """Where the watermark is when all is read."""
        if self.connector in BOUNDABLE:
            return MAX_WATERMARK
        return min(max(times) for times in self.times.values()) - BOUND_US - 1

    @property
    def positions(self) -> dict[str, list[int]]:
        """See the class."""
        return self._offsets or {split: list(range(len(times))) for split, times in self.times.items()}

    def grow(self) -> None:
        """Some records more in some splits; of transactions those of the last call are committed, or aborted."""
        if self.connector == TRANSACTIONS:
            self.end()
            self._producer.begin_transaction()
        if self.connector != "datagen":
            for number in self.rng.sample(range(_SPLITS), self.rng.randint(1, _SPLITS)):
                self._append(number, self.rng.randint(1, 60))

    def end(self) -> None:
        """No record will follow."""
        if self.connector == TRANSACTIONS:
            self._end_transaction(aborts=self.rng.random() < 0.25)

    def _end_transaction(self, *, aborts: bool) -> None:
        assert self._producer.flush(30) == 0
        if aborts:
            self._producer.abort_transaction(30)
        else:
            self._producer.commit_transaction(30)
            for name, offset, time_us in self._open:
                self.times[name].append(time_us)
                self._offsets.setdefault(name, []).append(offset)
        self._open.clear()

    def _append(self, number: int, rows: int) -> None:
        name = self._names[number]
        written = self.times[name]
        begin = T0 + number * 30 * SECOND + len(written) * self._steps[number]
        # Whole milliseconds, as Kafka has.
        late = [self.rng.randint(0, BOUND_US // 1000) * 1000 for _ in range(rows)]
        times = [begin + i * self._steps[number] - by for i, by in enumerate(late)]
        self._write(number, name, np.array(times, np.int64))
        if self.connector != TRANSACTIONS:
            written += times

    def _write(self, number: int, name: str, times: Times) -> None:
        if self.connector in OF_KAFKA:
            topic = self.place.rpartition("/")[2]

            def written(error: Any, message: Any) -> None:
                assert error is None, error
                self._open.append((name, message.offset(), message.timestamp()[1] * 1000))

            reports = {"on_delivery": written} if self.connector == TRANSACTIONS else {}
            for time_us in times.tolist():
                self._producer.produce(topic, partition=number, timestamp=time_us // 1000, **reports)
            assert self._producer.flush(30) == 0
        elif self.connector == "files":
            self._files += 1
            column = pa.array(times).cast(pa.timestamp("us", "UTC"))
            write_table(Path(self.place) / name / f"part-{self._files:06d}.parquet", pa.table({"ts": column}))
        else:
            append_log(Path(self.place), name, times)
