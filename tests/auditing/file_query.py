"""Run a query over Parquet files with Spark's own source, as a process that a test kills."""

from __future__ import annotations

import sys

from tests.auditing.counting import count_by_minute, session


def main(root: str, checkpoint: str, sink: str) -> None:
    reader = session().readStream.schema("ts timestamp, k string").option("maxFilesPerTrigger", 1)
    rows = reader.option("recursiveFileLookup", True).parquet(root).withWatermark("ts", "10 seconds")
    count_by_minute(rows, "ts", checkpoint, sink)


main(*sys.argv[1:])
