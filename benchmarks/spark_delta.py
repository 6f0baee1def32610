"""Spark's own Delta source on the export of twelve devices: `python -m benchmarks.spark_delta`, on PySpark 4.2.

It prints how many of 720,000 rows are counted in windows of an hour, with a delay of an hour, four files a micro-batch.
Delta's JARs come from Maven, or from `--jars`, separated by commas; `deltalake` writes the table.

With `--start-up FILES` it prints instead how long a stream takes to its first offset over a table of so many files,
most of which are in its log alone: that of `python -m benchmarks tables`. `--memory` is the driver's.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import deltalake
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from benchmarks.tables import write_table

PACKAGE: Final = "io.delta:delta-spark_4.2_2.13:4.4.0"
DEVICES, ROWS, FILES, EVERY_S = 12, 60_000, 5, 525
LIMIT_S: Final = 900


def write_export(path: Path) -> None:
    """Write device after device."""
    for device in range(DEVICES):
        start = datetime(2025, 1, 1, tzinfo=UTC) + timedelta(seconds=device)
        times = [start + timedelta(seconds=EVERY_S * i) for i in range(ROWS)]
        for part in range(FILES):
            chunk = times[part * ROWS // FILES : (part + 1) * ROWS // FILES]
            columns = {"ts": pa.array(chunk, pa.timestamp("us", "UTC")), "device": [device] * len(chunk)}
            deltalake.write_deltalake(str(path), pa.table(columns), mode="append")


def session_of(jars: str | None, memory: str) -> SparkSession:
    """Return a session of two cores with Delta."""
    where = ("spark.jars", jars) if jars else ("spark.jars.packages", PACKAGE)
    return (
        SparkSession.builder.master("local[2]")
        .config(*where)
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        .config("spark.databricks.delta.withEventTimeOrder.enabled", "true")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", memory)
        .getOrCreate()
    )


def counted(session: SparkSession, table: Path, folder: Path, *, in_order: bool) -> int:
    """Count the export as a stream; return how many rows are in the windows that came out."""
    reader = session.readStream.format("delta").option("maxFilesPerTrigger", 4)
    rows = reader.option("withEventTimeOrder", in_order).load(str(table)).withWatermark("ts", "1 hour")
    name = f"counts_{in_order}".lower()
    writer = rows.groupBy(F.window("ts", "1 hour"), "device").count().writeStream.format("memory").queryName(name)
    query = writer.option("checkpointLocation", str(folder / name)).trigger(availableNow=True).start()
    assert query.awaitTermination(LIMIT_S)
    return int(session.table(name).agg(F.sum("count")).first()[0])


def start_up_s(session: SparkSession, table: Path, folder: Path) -> tuple[float, float]:
    """Return the seconds that a frame of a table takes, and those from there to the first offset of its stream."""
    began = time.perf_counter()
    frame = session.readStream.format("delta").option("maxFilesPerTrigger", 1).load(str(table))
    loaded = time.perf_counter()
    query = frame.writeStream.format("noop").option("checkpointLocation", str(folder / "start")).start()
    while not (folder / "start/offsets/0").exists():
        if not query.isActive:
            raise SystemExit(f"the stream ended before its first offset: {query.exception()}")
        assert time.perf_counter() - loaded < LIMIT_S, "no offset"
        time.sleep(0.01)
    planned = time.perf_counter()
    query.stop()
    return loaded - began, planned - loaded


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jars")
    parser.add_argument("--memory", default="4g")
    parser.add_argument("--start-up", type=int, metavar="FILES")
    given = parser.parse_args()
    session = session_of(given.jars, given.memory)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        table = folder / "table"
        if given.start_up:
            write_table(table, given.start_up)
            to_frame, to_offset = start_up_s(session, table, folder)
            print(f"{given.start_up:,} files: {to_frame:.1f} s to the frame, {to_offset:.1f} s to the first offset")
        else:
            write_export(table)
            for in_order in (False, True):
                found = counted(session, table, folder, in_order=in_order)
                print(f"withEventTimeOrder = {in_order}: {found:,} of {DEVICES * ROWS:,} rows")
    session.stop()


if __name__ == "__main__":
    main()
