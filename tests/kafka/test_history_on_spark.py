"""The page on history and live data on Spark: flights to September as files, the rest in a topic that grows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.kafka import flights as data
from tests.kafka.flights import Flights
from tests.kafka.history_query import expected, flights_of_the_page, result, shown
from tests.kafka.topics import Topic

pytestmark = pytest.mark.spark


@pytest.fixture
def flights(topic: Topic, tmp_path: Path) -> Flights:
    topic.create(partitions=3)
    return Flights.around_the_cut(topic, tmp_path / "history")


@pytest.fixture
def weather(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(data.weather()).cache()


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
        frame = result(flights_of_the_page(spark, flights.place), weather)
        query = run(frame, tmp_path / "out", tmp_path / "checkpoint", availableNow=True)
        assert query.awaitTermination(240)
    found = shown(spark.read.parquet(str(tmp_path / "out")).collect())
    assert found == expected(spark, flights.everything, weather)
    assert sum(row[2] for row in found) == len(flights.everything)
