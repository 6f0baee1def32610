"""Records a second into a no-op sink and into a windowed count: ours, Spark's own Parquet source, and the ceiling.

The ceiling is a Python source that yields one prebuilt Arrow batch over and over: no source written in Python can be
faster than Spark's channel to it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import streaming_source
from benchmarks.on_spark import compare, drain, session

SPLITS = 8
SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("k", pa.int32()), ("v", pa.float64()), ("n", pa.int32())])
DDL = "ts timestamp, k int, v double, n int"
START_US = 1_700_000_000_000_000


def run(folder: Path, *, quick: bool) -> None:
    rows = 8_000_000 if quick else 32_000_000
    rounds = 3 if quick else 7
    print(f"\nwriting {rows:,} rows of 24 bytes as Parquet, {SPLITS} splits", flush=True)
    data = folder / "data"
    write(data, rows)
    spark = session()
    spark.dataSource.register(_ceiling(rows))

    def ours(*, exact: bool = False) -> Any:
        door = streaming_source.read_stream(spark) if exact else spark.readStream
        reader = door.format("aligned_files").option("eventTimeColumn", "ts")
        reader = reader.option("bounded", "true").option("maxOutOfOrderness", "5 seconds")
        return reader.load(str(data))

    def sparks() -> Any:
        return spark.readStream.schema(DDL).option("recursiveFileLookup", "true").parquet(str(data))

    def ceiling() -> Any:
        return spark.readStream.format("ceiling").load()

    def windowed(frame: Any) -> Any:
        from pyspark.sql import functions as F

        return frame.groupBy(F.window("ts", "1 minute"), "k").count()

    delay = "5 seconds"
    compare(
        "Parquet into a no-op sink",
        rows,
        rounds,
        {
            "ours": lambda: drain(ours(), folder),
            "ceiling": lambda: drain(ceiling(), folder),
            "spark parquet": lambda: drain(sparks(), folder),
        },
    )
    compare(
        "Parquet into a windowed count",
        rows,
        rounds,
        {
            "ours": lambda: drain(windowed(ours(exact=True)), folder),
            "ceiling": lambda: drain(windowed(ceiling().withWatermark("ts", delay)), folder),
            "spark parquet": lambda: drain(windowed(sparks().withWatermark("ts", delay)), folder),
        },
    )
    spark.stop()


def write(folder: Path, rows: int) -> None:
    rng = np.random.default_rng(7)
    per_split = rows // SPLITS
    for split in range(SPLITS):
        (folder / f"split-{split}").mkdir(parents=True)
        times = START_US + np.arange(per_split) * 2_000 + rng.integers(0, 5_000_000, per_split)
        columns = [
            pa.array(times, pa.timestamp("us", "UTC")),
            pa.array(rng.integers(0, 100, per_split), pa.int32()),
            pa.array(rng.random(per_split)),
            pa.array(np.arange(per_split), pa.int32()),
        ]
        whole = pa.Table.from_arrays(columns, schema=SCHEMA)
        for part in range(4):
            piece = whole.slice(part * per_split // 4, per_split // 4)
            pq.write_table(piece, folder / f"split-{split}" / f"part-{part}.parquet", row_group_size=250_000)


def _ceiling(rows: int) -> Any:
    from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

    batch_rows, readers = 65_536, os.cpu_count() or 1

    class Reader(DataSourceStreamReader):
        def initialOffset(self) -> dict[str, int]:
            return {"at": 0}

        def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
            return {"at": 1}

        def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
            return [InputPartition(reader) for reader in range(readers)]

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            schema = pa.schema(
                [("ts", pa.timestamp("us", "UTC")), ("k", pa.int32()), ("v", pa.float64()), ("n", pa.int32())]
            )
            times = 1_700_000_000_000_000 + np.arange(batch_rows) * 2_000
            columns = [
                pa.array(times, pa.timestamp("us", "UTC")),
                pa.array(np.arange(batch_rows) % 100, pa.int32()),
                pa.array(np.random.default_rng(7).random(batch_rows)),
                pa.array(np.arange(batch_rows), pa.int32()),
            ]
            batch = pa.RecordBatch.from_arrays(columns, schema=schema)
            left = rows // readers
            while left > 0:
                yield batch if left >= batch_rows else batch.slice(0, left)
                left -= batch_rows

    class Ceiling(DataSource):
        @classmethod
        def name(cls) -> str:
            return "ceiling"

        def schema(self) -> str:
            return "ts timestamp, k int, v double, n int"

        def streamReader(self, schema: Any) -> DataSourceStreamReader:
            return Reader()

    return Ceiling
