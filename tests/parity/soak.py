"""Many random files, read by Spark and by us: `nice python -m tests.parity.soak csv 0 100` for 1,000 of CSV.

Prints each difference with its seed, and how many files there were.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from tests.parity.oracle import Case, differences
from tests.parity.partitions import path_case
from tests.parity.tables import FILES, orc_case, parquet_case, write_by_spark
from tests.parity.texts import csv_case, json_case, quoted_csv_case, text_case

__all__ = ["CASES", "found_of"]

CASES: Final[Mapping[str, Callable[[random.Random], Case]]] = {
    "parquet": parquet_case,
    "orc": orc_case,
    "json": json_case,
    "csv": csv_case,
    "csv with quotes": quoted_csv_case,
    "text": text_case,
    "paths": path_case,
}


KINDS: Final = (*CASES, "by Spark")


def found_of(spark: SparkSession, kind: str, seed: int) -> tuple[Case, list[str]]:
    """Return the case of a seed, and where the two readers differ."""
    r = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "root"
        case = CASES[kind](r) if kind in CASES else write_by_spark(spark, r, root)
        return case, differences(spark, root, case)


def _main(kind: str, first: int, last: int) -> None:
    conf = {"spark.ui.enabled": "false", "spark.sql.session.timeZone": "UTC", "spark.driver.memory": "600m"}
    builder = SparkSession.builder.master("local[1]")
    for name, value in conf.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    files = bad = 0
    for seed in range(first, last):
        case, found = found_of(spark, kind, seed)
        files += len(case.files) or FILES
        bad += bool(found)
        for line in found[:3]:
            print(f"{kind} seed {seed}: {case.schema} {dict(case.options)}: {line}", flush=True)
        if seed % 20 == 19:
            print(f"{kind}: seeds {first} to {seed}, {files} files, {bad} seeds differ", flush=True)


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
