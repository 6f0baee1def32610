"""Repairs of random workloads over a topic, whatever dies; and of one that lost records to its retention."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from streaming_source.exceptions import DataLossError
from streaming_source.spark.datasource import AlignedDataSource
from tests.examples import one_in
from tests.kafka import topics
from tests.kafka.support import format_options
from tests.kafka.topics import MS, Topic
from tests.spark.reading import rows_emitted
from tests.spark.repaired import WINDOWS, Record, check_seed, with_late_records


class Log:
    """A partition for each split."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic.create(partitions=4)
        self.written: list[Record] = []

    def source(self, **options: Any) -> AlignedDataSource:
        given = rows_emitted(format_options(self._topic, discoveryInterval="20 ms", **options))
        return AlignedDataSource.of_format("aligned_kafka", given)

    def put(self, split: str, records: list[Record]) -> None:
        partition = "abcz".index(split)
        self._topic.write(
            topics.Record(time_us // MS, b"%d" % value, key.encode(), partition=partition)
            for time_us, key, value in records
        )
        self.written += records

    def records(self, batch: pa.RecordBatch) -> list[Record]:
        columns = [batch["timestamp"].cast(pa.int64()), batch["key"], batch["value"]]
        rows = zip(*(column.to_pylist() for column in columns), strict=True)
        # The watermark row has a time alone.
        return [(time_us, key.decode(), int(value)) for time_us, key, value in rows if key is not None]

    def known_at(self, offset: Mapping[str, Any], read: list[Record]) -> list[Record]:
        return read


@pytest.mark.parametrize("seed", one_in(60, range(60)))
def test_once_quiet_the_target_is_the_batch_over_all_records(topic: Topic, tmp_path: Path, seed: int) -> None:
    data = Log(topic)
    windows, repairs = check_seed(seed, data, tmp_path, WINDOWS[seed % 4])
    print(f"seed {seed}: {len(data.written)} records in {windows} windows, {repairs.repairs} repairs")


def test_records_that_retention_has_removed_are_named_and_nothing_is_written(topic: Topic, tmp_path: Path) -> None:
    repairs = with_late_records(tmp_path, Log(topic))
    before = dict(repairs.target.rows)
    topic.delete_records({0: 70})
    with pytest.raises(
        DataLossError, match=r"partition .*-0: the query has read from offset 0 on.* begins at offset 70"
    ):
        repairs.run()
    assert repairs.target.rows == before
