"""Repairs of joins of two frames: once quiet, the target is the join of the batches over all records of both."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from streaming_source import Repair, read_stream, repair
from streaming_source.exceptions import OptionError
from tests.spark.support import SECOND, T0, UTC_US, write_table

pytestmark = pytest.mark.spark

FAR_S = 9000
BETWEEN = ("-20 seconds", "40 seconds")
SIDES = ("left", "right")
STEPS = ("before", "within", "after")

Row = tuple[int, str, int, int]
"""Event time of the left record, key, and the values of both records: -1 for none."""


def joined(how: str) -> Callable[[DataFrame, DataFrame], DataFrame]:
    def compute(left: DataFrame, right: DataFrame) -> DataFrame:
        right = right.select(*(F.col(name).alias(f"right_{name}") for name in ("ts", "key", "v")))
        first, last = (F.col("ts") + F.expr(f"INTERVAL {bound}") for bound in BETWEEN)
        return left.join(right, (F.col("key") == F.col("right_key")) & F.col("right_ts").between(first, last), how)

    return compute


def rows_of(result: DataFrame) -> list[Row]:
    right = F.coalesce("right_v", F.lit(-1)) if "right_v" in result.columns else F.lit(-1)
    found = result.select(F.unix_micros("ts"), "key", "v", right)
    return sorted(tuple(row) for row in found.collect())


class JoinQuery:
    """A query that joins two folders of logs, its repairs, and a table that both write: each row once."""

    def __init__(self, spark: SparkSession, root: Path, how: str, keys: list[str]) -> None:
        self._spark, self._root, self._keys, self.compute = spark, root, keys, joined(how)
        self._files = 0
        with self._db() as db:
            db.execute("CREATE TABLE rows (ts, key, v, right_v, PRIMARY KEY (v, right_v))")

    def _db(self) -> sqlite3.Connection:
        return sqlite3.connect(self._root / "target.db")

    def put(self, side: str, split: str, seconds: list[float], keys: list[str] | None = None) -> None:
        first, self._files = self._files * 1000, self._files + 1
        times = pa.array([T0 + round(second * SECOND) for second in seconds], UTC_US)
        values = pa.array(range(first, first + len(seconds)), pa.int64())
        table = pa.table({"ts": times, "key": keys or ["x"] * len(seconds), "v": values})
        write_table(self._root / side / split / f"{self._files:03}.parquet", table, 4)

    def frame(self, side: str) -> DataFrame:
        options = {"eventTimeColumn": "ts", "idleTimeout": "1 ms", "maxOutOfOrderness": "3 seconds", "late": "route"}
        options |= {"lateness": "bounded", "lateLocation": str(self._root / "late")}
        return read_stream(self._spark).format("aligned_files").options(**options).load(str(self._root / side))

    def run(self, dies: str = "") -> None:
        def emit(rows: DataFrame, batch: int) -> None:
            self._write(rows_of(rows), "INSERT OR REPLACE", lambda db: None, dies)

        writer = self.compute(*map(self.frame, SIDES)).writeStream.outputMode("append").foreachBatch(emit)
        self._finish(writer.option("checkpointLocation", str(self._root / "query")), dies)

    def repair(self, dies: str = "", **given: Any) -> None:
        def write(result: DataFrame, repaired: Repair) -> None:
            rows = rows_of(result)
            spans = [tuple((at.timestamp() - T0 / SECOND) * SECOND + T0 for at in span) for span in repaired.windows]
            assert all(any(first <= row[0] < last for first, last in spans) for row in rows)

            def replace(db: sqlite3.Connection) -> None:
                if self._keys:
                    db.executemany("DELETE FROM rows WHERE ts = ? AND key = ?", {row[:2] for row in rows})
                else:
                    db.executemany("DELETE FROM rows WHERE ts >= ? AND ts < ?", spans)

            self._write(rows, "INSERT", replace, dies)

        left, right = map(self.frame, SIDES)
        arguments = {"join": right, "between": BETWEEN, "keys": self._keys, **given}
        writer = repair(left, str(self._root / "query"), self.compute, write, **arguments)
        self._finish(writer.option("checkpointLocation", str(self._root / "repairs")), dies)

    def _write(self, rows: list[Row], insert: str, replace: Callable[[sqlite3.Connection], None], dies: str) -> None:
        def step(name: str) -> None:
            if rows and name == dies:
                raise RuntimeError(f"killed {name} it has written")

        step("before")
        with self._db() as db:
            replace(db)
            db.executemany(f"{insert} INTO rows VALUES (?, ?, ?, ?)", rows[::2])
            step("within")
            db.executemany(f"{insert} INTO rows VALUES (?, ?, ?, ?)", rows[1::2])
        step("after")

    def _finish(self, writer: Any, dies: str) -> None:
        try:
            assert writer.trigger(availableNow=True).start().awaitTermination(300)
        except StreamingQueryException as error:
            if f"killed {dies} it" not in str(error):
                raise

    @property
    def rows(self) -> list[Row]:
        with self._db() as db:
            return sorted(db.execute("SELECT * FROM rows"))

    @property
    def expected(self) -> list[Row]:
        return rows_of(self.compute(*(self._spark.read.parquet(f"{self._root / side}/*") for side in SIDES)))

    def close(self) -> None:
        """Rows far ahead on both sides close all others; the logs of these are idle then."""
        for side in SIDES:
            self.put(side, "z", [FAR_S], ["far"])
        for _ in range(3):
            self.run()


@pytest.mark.soak
@pytest.mark.parametrize("keys", [["key"], []])
@pytest.mark.parametrize("how", ["inner", "left_outer", "left_semi"])
def test_late_records_of_both_sides_find_the_rows_that_they_join(
    spark: SparkSession, tmp_path: Path, how: str, keys: list[str]
) -> None:
    query = JoinQuery(spark, tmp_path, how, keys)
    for side in SIDES:
        query.put(side, "a", [*range(0, 300, 10)])
    query.run()
    query.put("left", "b", [5, 65, 66, 250])
    query.put("right", "b", [7, 130, 131])
    query.close()
    live = query.rows
    assert live != query.expected
    query.repair()
    assert query.rows == query.expected
    assert len(query.rows) > len(live)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(24))
def test_once_quiet_the_target_is_the_join_of_all_records_whatever_dies(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    query = JoinQuery(spark, tmp_path, ["inner", "left_outer"][seed % 2], [["key"], []][seed // 2 % 2])
    clocks = {(side, split): chance.uniform(0, 60) for side in SIDES for split in "ab"}
    for side in SIDES:
        query.put(side, "a", [0])
    for _ in range(6):
        for side, split in chance.sample(sorted(clocks), 2):
            seconds = []
            for _ in range(chance.randrange(1, 25)):
                clocks[side, split] += chance.choice([0.1, 0.5, 1, 5, 20])
                behind = chance.choice([0, 0, 2, 40, 150]) * chance.random()
                seconds.append(max(clocks[side, split] - behind, 0))
            query.put(side, split, seconds, chance.choices("xy", k=len(seconds)))
        query.run(chance.choice(["", "", *STEPS]))
        if chance.random() < 0.5:
            query.repair(chance.choice(["", "", *STEPS]))
    query.close()
    wrong = len({*query.expected} ^ {*query.rows})
    for dies in chance.sample(STEPS, 2):
        query.repair(dies)
    query.repair()
    assert query.rows == query.expected, f"seed {seed}"
    print(f"seed {seed}: {len(query.rows)} rows, {wrong} of them wrong before the last repair")


@pytest.mark.soak
@pytest.mark.parametrize("how", ["right_outer", "full_outer"])
def test_a_join_that_gives_rows_without_a_left_one_is_refused(spark: SparkSession, tmp_path: Path, how: str) -> None:
    query = JoinQuery(spark, tmp_path, "inner", ["key"])
    for side in SIDES:
        query.put(side, "a", [*range(0, 300, 10)])
    query.run()
    query.put("left", "b", [5])
    query.close()
    before, query.compute = query.rows, joined(how)
    with pytest.raises(StreamingQueryException, match="rows whose ts is null, as right and full outer joins do"):
        query.repair()
    assert query.rows == before


def test_bounds_of_a_join_that_cannot_be_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    query = JoinQuery(spark, tmp_path, "inner", [])
    for side in SIDES:
        query.put(side, "a", [0])
    with pytest.raises(OptionError, match=r"repair: between = .*: the first is later than the second; swap them"):
        query.repair(between=("1 minute", "0 seconds"))
    for given in ({"between": None}, {"window": "1 minute"}, {"join": None}):
        with pytest.raises(OptionError, match=r"repair: give window, .* or join and between for a join of two frames"):
            query.repair(**given)
