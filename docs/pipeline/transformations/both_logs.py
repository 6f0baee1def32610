"""The windows of both logs, joined: a join of streams gives a row when both sides have theirs."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from streaming_source import read_stream

spark = SparkSession.active()
path = spark.conf.get("events.path")
options = {"eventTimeColumn": "ts", "maxOutOfOrderness": "5 seconds"}


def side(log: str) -> DataFrame:
    """How many records of one log there are in each minute."""
    events = read_stream(spark).format("aligned_files").options(**options).load(path)
    return events.where(F.col("s") == log).groupBy(F.window("ts", "1 minute")).agg(F.count("*").alias(log))


@dp.table
def both_logs() -> DataFrame:
    """The minutes that both logs have, side by side."""
    return side("slow").join(side("fast"), "window").select(F.col("window.start").alias("start"), "slow", "fast")
