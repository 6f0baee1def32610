"""A topic, and a history that was written from it: about the first half, up to another time in each partition."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

from tests.kafka.broker import KafkaBroker
from tests.kafka.topics import Topic

__all__ = ["BOUND_S", "CLOSED_MS", "HistoryAndTopic", "write"]

T0_MS = 1_699_920_000_000  # 2023-11-14 00:00:00 UTC
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
BOUND_S = 300
"""Records are out of order by less than this."""
APART_MS = 600_000
"""How far the history of a partition ends before that of the one before it."""
CLOSED_MS = T0_MS + 2 * DAY_MS - HOUR_MS
"""What starts before it is closed by the last watermark: the last window is not, as long as records may come."""


@dataclass(frozen=True)
class HistoryAndTopic:
    """Two days of records with the ids 0, 1, ... in a topic, and about the first of them in files.

    `parquet` has files for each partition, with topic, partition and offset, `lines` the same as text `TIME_MS,ID`.
    `ends_ms` is the latest event time in the history of each partition, `offsets` where the topic goes on behind it.
    `closed` is how many records are in windows that close while the topic still goes on: those before `CLOSED_MS`.
    """

    topic: Topic
    parquet: Path
    lines: Path
    records: int
    ends_ms: tuple[int, ...]
    offsets: tuple[int, ...]
    closed: int


def write(broker: KafkaBroker, folder: Path, records: int, partitions: int, files: int = 1) -> HistoryAndTopic:
    """Write records into a new topic, and a history of it into `folder`, of so many files for each partition."""
    topic = Topic(broker).create(partitions=partitions)
    parquet, lines = folder / "parquet", folder / "lines"
    parquet.mkdir(parents=True)
    lines.mkdir()
    each, rng = records // partitions, np.random.default_rng(7)
    ends_ms, offsets, closed = [], [], 0
    with topic.producer(linger_ms=50) as producer:
        for partition in range(partitions):
            times = T0_MS + np.linspace(0, 2 * DAY_MS, each).astype(np.int64) - rng.integers(0, BOUND_S * 1000, each)
            ids = partition * each + np.arange(each)
            for ms, number in zip(times.tolist(), ids.tolist(), strict=True):
                producer.produce(topic.name, b"%d" % number, partition=partition, timestamp=ms)
                if not number % 10_000:
                    producer.flush()
            kept = int(np.searchsorted(np.maximum.accumulate(times), T0_MS + DAY_MS - partition * APART_MS))
            ends_ms.append(int(times[:kept].max()))
            offsets.append(kept)
            closed += int((times < CLOSED_MS).sum())
            columns = {
                "timestamp": pa.array(times[:kept] * 1000, pa.timestamp("us", "UTC")),
                "id": pa.array(ids[:kept]),
                "topic": [topic.name] * kept,
                "partition": pa.array([partition] * kept, pa.int32()),
                "offset": pa.array(np.arange(kept)),
            }
            history = pa.table(columns)
            as_lines = pa.table({"ms": times[:kept], "id": ids[:kept]})
            for part in range(files):
                name, rows = f"{partition}-{part}", np.arange(part, kept, files)
                pq.write_table(history.take(rows), parquet / f"{name}.parquet", row_group_size=10_000)
                csv.write_csv(as_lines.take(rows), lines / f"{name}.csv", csv.WriteOptions(include_header=False))
    return HistoryAndTopic(topic, parquet, lines, each * partitions, tuple(ends_ms), tuple(offsets), closed)
