"""Late records repair their windows: once quiet, the target is the batch over all records."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from streaming_source import Repair, read_stream, repair
from streaming_source.exceptions import OptionError
from tests.spark.conftest import Loader
from tests.spark.support import SECOND, T0, UTC_US, write_table

pytestmark = pytest.mark.spark

FAR_S = 9000
"""When the record is that closes the windows of all others."""

Write = Callable[[DataFrame, Repair], None]


def by_minute(frame: DataFrame) -> DataFrame:
    return frame.groupBy(F.window("ts", "1 minute"), "key").agg(F.count("*").alias("n"), F.sum("v").alias("v"))


def sliding(frame: DataFrame) -> DataFrame:
    spans = F.window("ts", "1 minute", "20 seconds", "5 seconds")
    return frame.where("v != 3").groupBy(spans, "key").agg(F.count("*").alias("n"), F.sum("v").alias("v"))


class Target:
    """A table of windows in a database, written by the query and by its repairs."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.repairs: list[tuple[Repair, list[tuple[Any, ...]]]] = []
        with sqlite3.connect(self._path) as db:
            db.execute("CREATE TABLE windows (start, key, n, v, PRIMARY KEY (start, key))")

    def emit(self, windows: DataFrame, batch: int) -> None:
        self._upsert(windows)

    def repair(self, windows: DataFrame, repair: Repair) -> None:
        self.repairs.append((repair, self._upsert(windows)))

    def _upsert(self, windows: DataFrame) -> list[tuple[Any, ...]]:
        rows = windows.select(F.unix_micros("window.start"), "key", "n", "v").collect()
        with sqlite3.connect(self._path) as db:
            db.executemany("INSERT OR REPLACE INTO windows VALUES (?, ?, ?, ?)", [tuple(row) for row in rows])
        return sorted(tuple(row) for row in rows)

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        with sqlite3.connect(self._path) as db:
            return sorted(db.execute("SELECT * FROM windows"))


class Query:
    """A query that counts by windows, and its repairs."""

    def __init__(self, spark: SparkSession, root: Path, compute: Callable[[DataFrame], DataFrame] = by_minute) -> None:
        self._spark, self._root, self._compute = spark, root, compute
        self.logs, self.target = root / "in", Target(root / "target.db")

    def put(self, split: str, seconds: Any) -> None:
        seconds = np.asarray(seconds, np.int64)
        keys = pa.array(["ab"[i % 2] for i in range(len(seconds))])
        table = pa.table({"ts": pa.array(T0 + seconds * SECOND, UTC_US), "key": keys, "v": np.arange(len(seconds))})
        write_table(self.logs / split / "f.parquet", table, 4)

    def put_late(self) -> None:
        """A log that is read and idle, then one with late records, and one that closes the windows of both."""
        self.put("a", range(0, 300, 10))
        self.run()
        self.put("b", [5, 65, 66, 250])
        self.put("z", [FAR_S])
        self.run()
        # Now the two logs are idle.
        self.run()

    @property
    def frame(self) -> DataFrame:
        options = {"eventTimeColumn": "ts", "idleTimeout": "1 ms", "late": "route"}
        options["lateLocation"] = str(self._root / "late")
        return read_stream(self._spark).format("aligned_files").options(**options).load(str(self.logs))

    def run(self) -> None:
        writer = self._compute(self.frame).writeStream.foreachBatch(self.target.emit)
        self._finish(writer.option("checkpointLocation", str(self._root / "cp")))

    def repair(self, write: Write | None = None, **given: Any) -> None:
        arguments = {"window": "1 minute", "keys": ["key"], **given}
        writer = repair(self.frame, str(self._root / "cp"), self._compute, write or self.target.repair, **arguments)
        self._finish(writer.option("checkpointLocation", str(self._root / "repairs")))

    def _finish(self, writer: Any) -> None:
        assert writer.trigger(availableNow=True).start().awaitTermination(300)

    @property
    def expected(self) -> list[tuple[Any, ...]]:
        rows = self._compute(self._spark.read.parquet(f"{self.logs}/*"))
        columns = (F.unix_micros("window.start"), "key", "n", "v")
        # The last windows are open.
        return sorted(tuple(row) for row in rows.select(*columns).collect() if row[0] < T0 + (FAR_S - 60) * SECOND)


def test_windows_are_those_of_the_batch_once_their_late_records_are_repaired_whatever_fails(
    spark: SparkSession, tmp_path: Path
) -> None:
    query = Query(spark, tmp_path)
    query.put_late()
    assert query.target.rows != query.expected

    def fails(windows: DataFrame, repair: Repair) -> None:
        query.target.repair(windows, repair)
        raise RuntimeError("killed after it has written")

    with pytest.raises(StreamingQueryException, match="killed after it has written"):
        query.repair(fails)
    assert query.target.rows == query.expected
    query.repair()
    # The same again, under the same name; the windows of the late records alone.
    first, again = query.target.repairs
    assert first == again
    assert [(row[0] - T0) // SECOND for row in again[1]] == [0, 60, 60, 240]
    assert [[(at.timestamp() - T0 / SECOND) for at in span] for span in again[0].windows] == [[0, 120], [240, 300]]
    query.repair()
    assert len(query.target.repairs) == 2


@pytest.mark.soak
@pytest.mark.parametrize("keys", [["key"], []])
def test_sliding_windows_are_repaired_as_a_whole_with_keys_and_without(
    spark: SparkSession, tmp_path: Path, keys: list[str]
) -> None:
    query = Query(spark, tmp_path, sliding)
    query.put_late()
    query.repair(slide="20 seconds", start="5 seconds", keys=keys)
    assert query.target.rows == query.expected
    ((_, rows),) = query.target.repairs
    # Each late record is in three windows, two of them in the same: of their keys, or of both.
    assert len(rows) == (12 if keys else 18)


@pytest.mark.soak
def test_late_records_that_are_too_old_repair_nothing(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    query = Query(spark, tmp_path)
    query.put_late()
    query.repair(within=f"{FAR_S - 250} seconds")
    ((_, rows),) = query.target.repairs
    assert [(row[0] - T0) // SECOND for row in rows] == [240]
    assert "3 late records repair nothing: they are further than within" in caplog.text


def test_what_cannot_be_repaired_is_refused_by_name(exact: Loader, tmp_path: Path) -> None:
    query = Query.__new__(Query)
    query.logs = tmp_path
    query.put("a", [0])
    frame, write = exact(tmp_path, late="route", lateLocation="/log"), (lambda windows, repair: None)
    with pytest.raises(OptionError, match=r"repair: keys \['user'\] are no columns of the frame"):
        repair(frame, "/cp", by_minute, write, window="1 minute", keys=["user"])
    with pytest.raises(OptionError, match="repair: slide = '1 month' is ambiguous: a month has no fixed length"):
        repair(frame, "/cp", by_minute, write, window="1 day", slide="1 month")
    with pytest.raises(OptionError, match=r"late = 'keep'.*give it late = route"):
        repair(exact(tmp_path), "/cp", by_minute, write, window="1 minute")
    with pytest.raises(OptionError, match=r"repair needs a frame as load\(\) gave it"):
        repair(frame.where("v > 0"), "/cp", by_minute, write, window="1 minute")
