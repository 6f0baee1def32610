"""What the Kafka tests share: skewed logs in whole milliseconds, readings without Spark, and frames with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import pyarrow as pa
from pyspark import cloudpickle

from streaming_source.spark.datasource import AlignedDataSource
from tests.kafka.topics import MS, Record, Topic
from tests.spark import support as spark_support
from tests.spark.reading import Reading, rows_emitted
from tests.spark.support import Times

__all__ = ["BOUND", "Logs", "by_split", "format_options", "logs_of", "naive_logs", "reading"]

Logs = dict[int, Times]
"""Partition -> event times (microseconds, whole milliseconds) in the order of its offsets."""

BOUND = "5 seconds"

T = TypeVar("T")


def logs_of(logs: Mapping[str, Times]) -> Logs:
    """The same logs as partitions. What was out of order by at most a bound of whole milliseconds still is."""
    return {number: times // MS * MS for number, times in enumerate(logs.values())}


SKEWS: dict[str, Logs] = {name: logs_of(logs) for name, logs in spark_support.SKEWS.items()}


def naive_logs(logs: Mapping[int, Times]) -> dict[str, Times]:
    """By the name that the column `s` has, as `naive_windows` takes them."""
    return {str(partition): times for partition, times in logs.items()}


def format_options(topic: Topic, **options: Any) -> dict[str, str]:
    """The options of `aligned_kafka` for a topic, read from its first record on."""
    given = {
        "kafka.bootstrap.servers": topic.broker.bootstrap,
        "subscribe": topic.name,
        "startingOffsets": "earliest",
        **options,
    }
    return {name: str(value) for name, value in given.items() if value is not None}


@contextmanager
def reading(topic: Topic, **options: Any) -> Iterator[Reading]:
    """Read a topic through the reader objects of the format, without Spark; metadata columns included."""
    given = rows_emitted(format_options(topic, includeMetadata="true", **options))
    source = AlignedDataSource.of_format("aligned_kafka", given)
    begun = Reading(source.stream_reader(source.schema()))
    try:
        yield begun
    finally:
        begun.reader.stop()


def on_executor(reader: T) -> T:
    """The reader as tasks have it: what the planner has made of it stays behind."""
    copy: T = cloudpickle.loads(cloudpickle.dumps(reader))
    return copy


def to_end(begun: Reading, max_rows: int | None = None) -> list[pa.Table]:
    """The tables of all micro-batches until the end of what is there, as in an AvailableNow run."""
    # Without this a planner that has not yet seen anything says so, and is asked again.
    begun.reader.prepareForTriggerAvailableNow()
    tables = []
    while (table := begun.next(max_rows)) is not None:
        tables.append(table)
    return tables


def by_split(table: pa.Table) -> dict[int, list[int]]:
    """Offsets of the records of a table by partition, in the order in which they came."""
    found: dict[int, list[int]] = {}
    for partition, offset in zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True):
        if partition is not None:  # the watermark row
            found.setdefault(partition, []).append(offset)
    return found


def records(table: pa.Table) -> list[Record]:
    """The records of a table, by partition and offset."""
    names = ["timestamp", "value", "key", "partition", "offset"]
    columns = [table[name].to_pylist() for name in names]
    columns[0] = table["timestamp"].cast(pa.int64()).to_pylist()
    headers = table["headers"].to_pylist() if "headers" in table.column_names else [None] * len(table)
    found = [
        Record(time // MS, value, key, tuple((h["key"], h["value"]) for h in header or ()), partition, offset)
        for time, value, key, partition, offset, header in zip(*columns, headers, strict=True)
        if partition is not None
    ]
    return sorted(found, key=lambda record: (record.partition, record.offset))
