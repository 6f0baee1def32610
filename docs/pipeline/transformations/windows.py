"""Two tables over logs of which some run ahead: every on-time record is counted."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from streaming_source import read_stream, with_exact_watermark

spark = SparkSession.active()
path = spark.conf.get("events.path")
options = {"eventTimeColumn": "ts", "maxOutOfOrderness": "5 seconds"}


def by_minute(events: DataFrame) -> DataFrame:
    """How many records of each log there are in each minute."""
    counted = events.groupBy(F.window("ts", "1 minute"), "s").count()
    return counted.select(F.col("window.start").alias("start"), "s", "count")


@dp.table
def per_minute() -> DataFrame:
    """The first way: `read_stream` gives a frame that carries its watermark."""
    return by_minute(read_stream(spark).format("aligned_files").options(**options).load(path))


dp.create_streaming_table("of_one_log")


@dp.append_flow(target="of_one_log")
def from_one_log() -> DataFrame:
    """The other way: a frame of `spark.readStream`, given the exact watermark right after `load`."""
    events = spark.readStream.format("aligned_files").options(**options).load(path)
    return by_minute(with_exact_watermark(events).where("s = 'slow'"))
