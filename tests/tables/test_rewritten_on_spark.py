"""Windowed counts on Spark over tables that were rewritten: every row counts, with any bound, whatever is killed."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import deltalake
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from streaming_source import read_stream
from tests.delta.spark_delta import SparkDelta, jars_of_delta
from tests.faults.checks import check_watermarks, files_of_sink
from tests.faults.killed_process import KilledProcess, KilledQueryLog
from tests.iceberg.by_spark import call_by_spark
from tests.iceberg.tables import catalog_options
from tests.kafka.artifacts import ArtifactsMissingError
from tests.spark.support import available_now
from tests.tables.reading import SECOND
from tests.tables.rewritten import COMMITS, REWRITES, iceberg_in_order, in_order, overwritten

pytestmark = pytest.mark.spark

EACH, MINUTE = 300, 60 * SECOND
ROWS = COMMITS * EACH
WINDOWS = Counter({n * MINUTE: 60 for n in range(ROWS // 60)})
KILLS, PER_TRIGGER = 3, 500


def options_of(kind: str, folder: Path) -> dict[str, str]:
    """What a query over a rewritten table is given, with `load` for its name."""
    if kind.startswith("Iceberg"):
        catalog = {f"catalog.{name}": value for name, value in {"name": "tests", **catalog_options(folder)}.items()}
        return {"format": "aligned_iceberg", "load": "db.t", **catalog}
    return {"format": "aligned_delta", "load": str(folder / "table")}


def by_delta(*statements: str) -> Callable[[Path], None]:
    """Rewrite by Spark's own Delta."""

    def rewrite(folder: Path) -> None:
        try:
            jars = jars_of_delta()
        except ArtifactsMissingError as error:
            pytest.skip(str(error))
        in_order(folder / "table", EACH)
        with SparkDelta(jars, folder / "log-of-delta") as spark:
            for statement in statements:
                spark.sql(statement, folder / "table")

    return rewrite


def by_iceberg(arguments: str) -> Callable[[Path], None]:
    """Rewrite by Spark's own Iceberg."""

    def rewrite(folder: Path) -> None:
        iceberg_in_order(folder, EACH)
        call_by_spark(folder, f"rewrite_data_files(table => 'db.t', {arguments})")

    return rewrite


def by_deltalake(rewrite: Callable[[deltalake.DeltaTable], object]) -> Callable[[Path], object]:
    return lambda folder: rewrite(in_order(folder / "table", EACH))


ALL = "options => map('rewrite-all', 'true')"
MERGE = (
    "MERGE INTO {table} t USING (SELECT * FROM {table} WHERE key % 3 = 0) s ON s.ts = t.ts "
    "WHEN MATCHED THEN UPDATE SET key = 1"
)
TABLES: dict[str, Callable[[Path], object]] = {
    **{f"Delta, {name}": by_deltalake(rewrite) for name, rewrite in REWRITES.items()},
    "Delta, by OPTIMIZE of Spark": by_delta("OPTIMIZE {table}"),
    "Delta, by ZORDER of Spark": by_delta("OPTIMIZE {table} ZORDER BY (key)"),
    "Delta, by MERGE of Spark, then OPTIMIZE": by_delta(MERGE, "OPTIMIZE {table}"),
    "Iceberg, overwritten": lambda folder: overwritten(iceberg_in_order(folder, EACH), random.Random(1)),
    "Iceberg, rewrite_data_files of Spark": by_iceberg(ALL),
    "Iceberg, z-ordered by Spark": by_iceberg(f"strategy => 'sort', sort_order => 'zorder(key)', {ALL}"),
    "Iceberg, sorted by Spark by another column": by_iceberg(f"strategy => 'sort', sort_order => 'key', {ALL}"),
}


def counted(spark: SparkSession, folder: Path, kind: str, **options: Any) -> tuple[Counter[int], int, int]:
    """Return the windows of a query, the rows that Spark dropped, and the micro-batches."""
    given = options_of(kind, folder)
    reader = read_stream(spark).format(given.pop("format")).option("eventTimeColumn", "ts").option("bounded", True)
    name = given.pop("load")
    frame = reader.options(**given, **options).load(name)
    counts = frame.groupBy(F.window("ts", "1 minute")).count()
    run = available_now(spark, counts.select(F.unix_micros("window.start"), "count"), folder / "checkpoint")
    dropped = sum(row["numRowsDroppedByWatermark"] for p in run.progress for row in p["stateOperators"])
    windows: Counter[int] = Counter()
    for start, count in run.rows:
        windows[start] += count
    return windows, dropped, len(run.progress)


@pytest.mark.soak
def test_every_row_of_a_compacted_table_is_counted(spark: SparkSession, tmp_path: Path) -> None:
    """The case that lost the most: 1,500 of 12,000 were counted where the bound held for what is there as well."""
    kind = "Delta, compacted"
    TABLES[kind](tmp_path)

    windows, dropped, batches = counted(
        spark, tmp_path, kind, maxOutOfOrderness="1 minute", maxRowsPerTrigger=2 * ROWS // 5
    )

    assert (windows, dropped) == (WINDOWS, 0)
    assert batches >= 3


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["Delta, compacted", "Iceberg, overwritten"])
def test_with_a_bound_on_what_is_there_rows_are_lost(spark: SparkSession, kind: str, tmp_path: Path) -> None:
    """So that these tests can fail."""
    TABLES[kind](tmp_path)

    windows, dropped, _ = counted(
        spark, tmp_path, kind, lateness="bounded", maxOutOfOrderness="1 minute", maxRowsPerTrigger=600
    )

    # Spark aggregates first, and counts what it drops in aggregated rows.
    assert windows.total() < ROWS // 2
    assert dropped


@pytest.mark.soak
@pytest.mark.parametrize("bound", ["0 seconds", "1 minute"])
@pytest.mark.parametrize("kind", TABLES)
def test_a_killed_query_counts_every_row_of_a_rewritten_table(kind: str, bound: str, tmp_path: Path) -> None:
    TABLES[kind](tmp_path)
    chance = random.Random(f"{kind} {bound}")
    given = {**options_of(kind, tmp_path), "eventTimeColumn": "ts", "bounded": "true", "maxOutOfOrderness": bound}

    windows, killed = _killed_and_finished(tmp_path, {**given, "maxRowsPerTrigger": str(PER_TRIGGER)}, chance)

    print(f"{kind}, {bound}: {windows.total()} of {ROWS}; {KILLS} kills, {killed} inside a micro-batch")
    assert windows == WINDOWS


def _killed_and_finished(folder: Path, options: Mapping[str, str], chance: random.Random) -> tuple[Counter[int], int]:
    """Return the windows, each of which came once, and how many kills were between a plan and its commit."""
    given = dict(options)
    table, checkpoint, sink = given.pop("load"), folder / "checkpoint", folder / "sink"
    arguments = [json.dumps({**given, "window": "1 minute"}), table, str(checkpoint), str(sink)]
    process = KilledProcess(folder / "log", "tests.tables.killed_query", arguments)
    log, inside = KilledQueryLog(checkpoint), 0
    for _ in range(KILLS):
        before = log.last("offsets")
        with process.life() as wait_until:
            wait_until(lambda before=before: log.last("offsets") > before)
            time.sleep(chance.random() * 0.5)
        inside += log.is_inside
    process.finish()
    check_watermarks(checkpoint)
    assert log.last("commits") >= ROWS // PER_TRIGGER
    windows: Counter[int] = Counter()
    for file in files_of_sink(sink):
        read = pq.ParquetFile(file).read(["us", "count"]).to_pydict()
        windows.update(dict(zip(read["us"], read["count"], strict=True)))
    return windows, inside
