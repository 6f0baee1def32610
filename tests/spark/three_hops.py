"""Three hops in one program: raw files -> bronze -> silver -> gold, each written by Spark's own sink.

Run as `python -m tests.spark.three_hops FORMAT FOLDER JARS SEED`. Nothing is configured at hops 2 and 3 but the
checkpoint of the hop before. Its last line is JSON: what gold has, by window.
"""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from streaming_source import complete_until, read_stream

SECOND = 1_000_000
T0 = 1_767_225_600 * SECOND
SPLITS, FILES, ROWS = 12, 4, 60


def write_raw(folder: Path, seed: int) -> None:
    """12 splits, each with files whose rows are disordered, and each further than the one before."""
    chance = random.Random(seed)
    for split in range(SPLITS):
        for number in range(FILES):
            begin = T0 + (number * 600 + chance.randrange(300)) * SECOND + split * 97 * SECOND
            times = [begin + chance.randrange(900 * SECOND) for _ in range(ROWS)]
            path = folder / f"split={split:02}" / f"part-{number}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            rows = {"ts": pa.array(times, pa.timestamp("us", "UTC")), "amount": [chance.randrange(100) for _ in times]}
            pq.write_table(pa.table(rows), path)


def session(format_name: str, jars: str) -> SparkSession:
    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.ui.enabled", "false")
    )
    if format_name == "delta":
        from tests.delta.spark_delta import session_with_delta

        return session_with_delta(jars)
    return builder.getOrCreate()


def main(format_name: str, folder: str, jars: str, seed: str) -> None:
    root, spark = Path(folder), session(format_name, jars)
    write_raw(root / "raw", int(seed))
    aligned = {"parquet": "aligned_files", "delta": "aligned_delta"}[format_name]

    def hop(frame: DataFrame, name: str) -> object:
        writer = frame.writeStream.format(format_name).option("checkpointLocation", str(root / "cp" / name))
        return writer.queryName(name).option("path", str(root / name))

    def after(name: str, column: str) -> DataFrame:
        reader = read_stream(spark).format(aligned).option("eventTimeColumn", column)
        return reader.option("watermarkFrom", str(root / "cp" / name)).load(str(root / name))

    raw = read_stream(spark).format("aligned_files").option("eventTimeColumn", "ts").option("bounded", "true")
    raw = raw.option("splitBy", "directory").option("maxRowsPerTrigger", 240).load(str(root / "raw"))
    bronze = hop(raw, "bronze").trigger(availableNow=True).start()  # type: ignore[attr-defined]
    started = {"bronze": bronze}

    def wait_for(name: str) -> None:
        place = root / name / ("_delta_log" if format_name == "delta" else "_spark_metadata")
        while not list(place.glob("*")):
            assert not started[name].awaitTermination(0.2) or list(place.glob("*")), name
        time.sleep(0.5)

    wait_for("bronze")
    rows = after("bronze", "ts")
    counted = rows.groupBy(F.window("ts", "1 minute")).agg(F.count("*").alias("n"), F.sum("amount").alias("total"))
    started["silver"] = hop(counted, "silver").start()  # type: ignore[attr-defined]
    wait_for("silver")
    minutes = after("silver", "window.end")
    # The time of a minute is its start: the event time of the frame is the end of a window, which no other minute has.
    of_gold = minutes.groupBy(F.window("event_time", "10 minutes")).agg(
        F.sum("n").alias("n"), F.sum("total").alias("total")
    )
    started["gold"] = hop(of_gold, "gold").start()  # type: ignore[attr-defined]
    assert bronze.awaitTermination(400)
    deadline = time.monotonic() + 400
    while time.monotonic() < deadline:
        assert started["silver"].isActive, started["silver"].exception()
        assert started["gold"].isActive, started["gold"].exception()
        if (root / "gold").is_dir() and (root / "cp/gold/commits").is_dir():
            found = complete_until(str(root / "gold"), str(root / "cp/gold"))
            if found.until_us is not None and found.until_us > T0 * 10:
                break
        time.sleep(1)
    for name in ("silver", "gold"):
        started[name].stop()
    gold = spark.read.format(format_name).load(str(root / "gold"))
    result = {str(row[0]): [row[1], row[2]] for row in gold.select("window.start", "n", "total").collect()}
    assert gold.count() == len(result), "a window came twice"
    late = [line for line in (root / "cp").glob("*/offsets/*") if '"late":' in line.read_text()]
    reports = {name: query.recentProgress[-1].sources[0].latestOffset for name, query in started.items()}
    print(json.dumps({"gold": result, "late": len(late), "reports": {k: str(v)[:500] for k, v in reports.items()}}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
