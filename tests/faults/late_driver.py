"""The driver program of `test_late_records`: a query that routes, and one that reads its late records.

`python -m tests.faults.late_driver <folder>` runs both until it is killed; with `finish` behind it to the end of what
is there, one after the other. Spark keeps as few offsets as it can.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from streaming_source import late_records, read_stream


def main(folder: Path, *, finishes: bool) -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.streaming.minBatchesToRetain", "1")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    frame = (
        read_stream(spark)
        .format("aligned_files")
        .options(eventTimeColumn="ts", idleTimeout="1 ms", maxRowsPerTrigger=1_000_000 if finishes else 40)
        .options(late="route", lateLocation=str(folder / "late_log"))
        .load(str(folder / "in"))
    )

    def begin(rows: DataFrame, name: str) -> StreamingQuery:
        writer = rows.select("k").writeStream.format("parquet").option("path", str(folder / "out" / name))
        writer = writer.option("checkpointLocation", str(folder / "checkpoints" / name))
        trigger = {"availableNow": True} if finishes else {"processingTime": "50 milliseconds"}
        return writer.trigger(**trigger).start()

    late = late_records(frame, str(folder / "checkpoints" / "kept"))
    if finishes:
        for rows, name in ((frame, "kept"), (late, "late")):
            begin(rows, name).awaitTermination()
        return
    queries = {"kept": (frame, begin(frame, "kept")), "late": (late, begin(late, "late"))}
    while True:
        for name, (rows, query) in queries.items():
            if (error := query.exception()) is None:
                continue
            print(name, error, flush=True)
            if "streaming_source.exceptions" in str(error):
                sys.exit(1)
            # Of Spark's own, as where it waits in vain for a Python worker.
            queries[name] = rows, begin(rows, name)
        time.sleep(0.05)


if __name__ == "__main__":
    main(Path(sys.argv[1]), finishes="finish" in sys.argv[2:])
