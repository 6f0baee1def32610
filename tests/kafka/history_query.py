"""The query of the page on history and live data; as a process for a test that kills it, into Parquet files."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.docs.pages import ROOT, code

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Place", "expected", "flights_of_the_page", "result", "shown"]

Place = Mapping[str, str]
"""Where the flights are: what the page calls `/data/flights`, `localhost:9092` and `"flights"`."""


def flights_of_the_page(spark: SparkSession, place: Place, both: Mapping[str, str | None] | None = None) -> DataFrame:
    """The union, by the code of the page; with options for `both` sources, and without those that are None."""
    text = code(ROOT / "docs" / "history.md")
    for name, value in place.items():
        text = text.replace(name, value)
    scope: dict[str, Any] = {"spark": spark}
    for name, value in (both or {}).items():
        text = text.replace("\nhistory = (", f"\nboth[{name!r}] = {value!r}\n\nhistory = (")
    exec(compile(text, "history.md", "exec"), scope)
    frame: DataFrame = scope["flights"]
    return frame


def result(frame: DataFrame, weather: DataFrame) -> DataFrame:
    """Without repetitions, with the weather of the hour, by quarter of a day and origin."""
    once = frame.dropDuplicates(["id", "time"]) if frame.isStreaming else frame
    hourly = once.withColumn("hour", F.date_trunc("hour", "time")).join(weather, ["origin", "hour"], "left")
    by_day = hourly.groupBy(F.window("time", "6 hours"), "origin")
    return by_day.agg(F.count("*").alias("n"), F.sum("id").alias("ids"), F.round(F.sum("temp"), 3).alias("temp"))


def shown(rows: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Of the result, without the records that close the windows."""
    return sorted((row.window.start, row.origin, row.n, row.ids, row.temp) for row in rows if row.origin != "none")


def expected(spark: SparkSession, everything: pd.DataFrame, weather: DataFrame) -> list[tuple[Any, ...]]:
    """The result of a batch over all flights."""
    return shown(result(spark.createDataFrame(everything), weather).collect())


def main(given: str, trigger: str) -> None:
    """Run queries of the page; `given` is JSON: `folder`, where the `weather` is, by query its `place` and `both`."""
    options = json.loads(given)
    folder = Path(options["folder"])
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false").config("spark.sql.session.timeZone", "UTC")
    builder = builder.config("spark.sql.shuffle.partitions", "1").config("spark.driver.memory", "700m")
    spark = builder.getOrCreate()
    weather, queries = spark.read.parquet(options["weather"]), []
    for name, query in options["queries"].items():
        rows = result(flights_of_the_page(spark, query["place"], query["both"]), weather)
        writer = rows.writeStream.format("parquet").option("path", str(folder / name / "sink"))
        writer = writer.option("checkpointLocation", str(folder / name / "checkpoint"))
        of_trigger = {"availableNow": True} if trigger == "availableNow" else {"processingTime": trigger}
        queries.append(writer.trigger(**of_trigger).start())
    (folder / "started").touch()
    for query in queries:
        query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
