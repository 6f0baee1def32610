"""The checkpoints of Spark with the settings that change what it writes are read as those without them."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from streaming_source.checkpoint.offset_log import Checkpoint
from streaming_source.checkpoint.operators import entries_of, operators_of, partitions_of, versions_of, window_in
from tests.auditing.naive import SECOND, T0

pytestmark = [pytest.mark.spark, pytest.mark.soak]

PREFIX = "spark.sql.streaming"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
SETTINGS = {
    "as it comes": {},
    "names of sinks: commit log 3": {"queryEvolution.enableSinkEvolution": "true"},
    "names of sources: offset log 2": {
        "queryEvolution.enableSourceEvolution": "true",
        "offsetLog.formatVersion": "2",
    },
    "state by unique ids: commit log 2": {
        "stateStore.providerClass": ROCKSDB,
        "stateStore.checkpointFormatVersion": "2",
        "stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    },
}


@pytest.mark.parametrize("kind", SETTINGS)
def test_what_spark_writes_with_a_setting_is_read(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    for part in range(3):
        times = pa.array([T0 + (part * 60 + i) * SECOND for i in range(60)], pa.timestamp("us", "UTC"))
        path = tmp_path / "in" / f"{part}.parquet"
        path.parent.mkdir(exist_ok=True)
        pq.write_table(pa.table({"ts": times}), path)
        os.utime(path, (1_600_000_000 + part,) * 2)
    for name, value in SETTINGS[kind].items():
        spark.conf.set(f"{PREFIX}.{name}", value)
    try:
        reader = spark.readStream.schema("ts timestamp").option("maxFilesPerTrigger", 1)
        if "Source" in str(SETTINGS[kind]):
            reader = reader.name("clicks")
        rows = reader.parquet(str(tmp_path / "in")).withWatermark("ts", "10 seconds")
        out = rows.groupBy(F.window("ts", "1 minute")).count().writeStream
        if "Sink" in str(SETTINGS[kind]):
            # PySpark has no such method yet.
            out._jwrite.name("counts")  # type: ignore[attr-defined]
        out = out.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
        assert out.trigger(availableNow=True).start().awaitTermination(120)
    finally:
        for name in SETTINGS[kind]:
            spark.conf.unset(f"{PREFIX}.{name}")

    found = Checkpoint.open(str(tmp_path / "checkpoint"))

    assert [batch.next_us for batch in found.batches] == [T0 + s * SECOND for s in (49, 109, 169, 169)]
    assert found.source_folders == (("clicks",) if "Source" in str(SETTINGS[kind]) else ("0",))
    (operator,) = operators_of(found.log) or ()
    assert (operator.title, operator.key, operator.window_column) == ("windowed aggregation", ["window"], 0)
    keys = {
        window_in(key, 1, 0)
        for partition in partitions_of(found.log, 0)
        for _, file in versions_of(found.log, partition)
        for key, _ in entries_of(found.log, file) or ()
    }
    windows = {(T0 + m * 60 * SECOND, T0 + (m + 1) * 60 * SECOND) for m in range(3)}
    assert keys == (set() if ROCKSDB in SETTINGS[kind].values() else windows)
