"""A query of Spark that counts by windows, its repairs, and the targets that both write: each row once."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from streaming_source import Repair, read_stream, repair
from streaming_source.spark.before_4_2 import WRAPPER
from tests.spark.support import SECOND, T0, UTC_US, write_table

FAR_S = 9000
"""When the record is that closes the windows of all others."""

Row = tuple[int, str, int, int]
"""Start of the window, key, count, sum."""
Step = Callable[[str], None]
"""Called `before`, `within` and `after` a write: it may raise, or end the process."""
Write = Callable[[DataFrame, Repair], None]


def by_minute(frame: DataFrame) -> DataFrame:
    return frame.groupBy(F.window("ts", "1 minute"), "key").agg(F.count("*").alias("n"), F.sum("v").alias("v"))


def by_session(frame: DataFrame) -> DataFrame:
    spans = F.session_window("ts", "15 seconds")
    return frame.groupBy(spans, "key").agg(F.count("*").alias("n"), F.sum("v").alias("v"))


def rows_of(windows: DataFrame) -> list[Row]:
    (span,) = {"window", "session_window"} & {*windows.columns}
    return [tuple(row) for row in windows.select(F.unix_micros(f"{span}.start"), "key", "n", "v").collect()]


class Target(Protocol):
    """Where windows are written, by the query and by its repairs."""

    def write(self, windows: DataFrame, step: Step) -> None:
        """Replace windows, and do the step `within` in the midst of it."""

    def rows(self) -> list[Row]:
        """All rows that were written, sorted."""


class Sqlite:
    def __init__(self, root: Path) -> None:
        self._path = root / "target.db"
        with sqlite3.connect(self._path) as db:
            db.execute("CREATE TABLE IF NOT EXISTS windows (start, key, n, v, PRIMARY KEY (start, key))")

    def write(self, windows: DataFrame, step: Step) -> None:
        rows = rows_of(windows)
        with sqlite3.connect(self._path) as db:
            if "session_window" in windows.columns:
                # They replace the sessions that they join.
                ends = windows.select("key", *(F.unix_micros(f"session_window.{end}") for end in ("start", "end")))
                joined = [tuple(row) for row in ends.collect()]
                db.executemany("DELETE FROM windows WHERE key = ? AND start >= ? AND start < ?", joined)
            for number, row in enumerate(rows):
                if number == len(rows) // 2:
                    step("within")
                db.execute("INSERT OR REPLACE INTO windows VALUES (?, ?, ?, ?)", row)

    def rows(self) -> list[Row]:
        with sqlite3.connect(self._path) as db:
            return sorted(db.execute("SELECT * FROM windows"))


class Postgres:
    """A server of its own, by its own driver; a context manager, which ends it."""

    UPSERT = (
        "INSERT INTO windows VALUES (%s, %s, %s, %s) "
        "ON CONFLICT (start, key) DO UPDATE SET n = excluded.n, v = excluded.v"
    )

    def __init__(self, folder: Path) -> None:
        import psycopg

        self._connect, self._data = psycopg.connect, folder / "pg"
        # The server refuses to run as root.
        self._as = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
        folder.chmod(0o755)
        self._data.mkdir()
        shutil.chown(self._data, "postgres")
        self._run("initdb", "-D", str(self._data), "-U", "postgres", "-A", "trust")
        settings = f"-k {self._data} -c listen_addresses= -c fsync=off"
        self._run("pg_ctl", "-D", str(self._data), "-w", "-l", str(self._data / "log"), "-o", settings, "start")
        with self._open() as db:
            db.execute("CREATE TABLE windows (start bigint, key text, n bigint, v bigint, PRIMARY KEY (start, key))")

    def __enter__(self) -> Postgres:
        return self

    def __exit__(self, *_: object) -> None:
        self._run("pg_ctl", "-D", str(self._data), "-w", "-m", "immediate", "stop")

    def _run(self, *command: str) -> None:
        subprocess.run([*self._as, *command], check=True, stdout=subprocess.DEVNULL, timeout=60, cwd="/")

    def _open(self) -> Any:
        return self._connect(host=str(self._data), user="postgres", dbname="postgres")

    def write(self, windows: DataFrame, step: Step) -> None:
        rows = rows_of(windows)
        with self._open() as db, db.cursor() as cursor:
            for number, row in enumerate(rows):
                if number == len(rows) // 2:
                    step("within")
                cursor.execute(self.UPSERT, row)

    def rows(self) -> list[Row]:
        with self._open() as db:
            return sorted(db.execute("SELECT start, key, n, v FROM windows").fetchall())


class Folders:
    """A directory of files with a folder for each window, which is replaced: a repair writes all keys of a window."""

    def __init__(self, root: Path) -> None:
        self._path = root / "windows"

    def write(self, windows: DataFrame, step: Step) -> None:
        # Folders of windows are replaced one after the other.
        by_start = windows.withColumn("start", F.unix_micros("window.start")).drop("window").persist()
        starts = sorted(row.start for row in by_start.select("start").distinct().collect())
        for number, start in enumerate(starts):
            if number == len(starts) // 2:
                step("within")
            writer = by_start.where(F.col("start") == start).drop("start").coalesce(1).write
            writer.mode("overwrite").parquet(str(self._path / f"start={start}"))
        by_start.unpersist()

    def rows(self) -> list[Row]:
        found = pq.read_table(self._path, partitioning="hive").to_pylist() if self._path.exists() else []
        return sorted((int(row["start"]), row["key"], row["n"], row["v"]) for row in found)


class DeltaMerge:
    """A Delta table, by Spark's own MERGE: its session has Delta's JARs."""

    def __init__(self, session: SparkSession, root: Path) -> None:
        self._session, self._path = session, str(root / "windows")
        session.sql(
            f"CREATE TABLE IF NOT EXISTS delta.`{self._path}` (start long, key string, n long, v long) USING delta"
        )

    def write(self, windows: DataFrame, step: Step) -> None:
        step("within")
        rows = windows.select(F.unix_micros("window.start").alias("start"), "key", "n", "v")
        rows.createOrReplaceTempView("corrected")
        rows.sparkSession.sql(
            f"MERGE INTO delta.`{self._path}` t USING corrected s ON t.start = s.start AND t.key = s.key "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )

    def rows(self) -> list[Row]:
        return sorted(tuple(row) for row in self._session.read.format("delta").load(self._path).collect())


class Query:
    """A query that counts by windows, over a folder of logs with late records, and its repairs."""

    def __init__(
        self,
        spark: SparkSession,
        root: Path,
        target: Target | None = None,
        compute: Callable[[DataFrame], DataFrame] = by_minute,
        keys: Sequence[str] = ("key",),
    ) -> None:
        self._spark, self._root, self.compute, self._keys = spark, root, compute, keys
        self.logs, self.target = root / "in", target or Sqlite(root)
        self.repairs: list[tuple[Repair, list[Row]]] = []

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
        options |= {"lateLocation": str(self._root / "late"), "availableNowCheckpoint": str(self._root / "cp")}
        return read_stream(self._spark).format("aligned_files").options(**options).load(str(self.logs))

    def run(self) -> None:
        def emit(windows: DataFrame, batch: int) -> None:
            self.target.write(windows, lambda step: None)

        writer = self.compute(self.frame).writeStream.foreachBatch(emit)
        self._finish(writer.option("checkpointLocation", str(self._root / "cp")), wrapped="true")

    def repair(self, step: Step = lambda step: None, *, folder: str = "repairs", **given: Any) -> None:
        def write(windows: DataFrame, repaired: Repair) -> None:
            step("before")
            self.repairs.append((repaired, sorted(rows_of(windows))))
            self.target.write(windows, step)
            step("after")

        arguments = {"window": "1 minute", "keys": self._keys, **given}
        writer = repair(self.frame, str(self._root / "cp"), self.compute, write, **arguments)
        self._finish(writer.option("checkpointLocation", str(self._root / folder)), wrapped="false")

    def _finish(self, writer: Any, *, wrapped: str) -> None:
        # Before Spark 4.2 a run of late records needs it to be false.
        self._spark.conf.set(WRAPPER, wrapped)
        try:
            assert writer.trigger(availableNow=True).start().awaitTermination(300)
        finally:
            self._spark.conf.unset(WRAPPER)

    @property
    def expected(self) -> list[Row]:
        rows = rows_of(self.compute(self._spark.read.parquet(f"{self.logs}/*")))
        # The last windows are open.
        return sorted(row for row in rows if row[0] < T0 + (FAR_S - 60) * SECOND)
