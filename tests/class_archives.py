"""Archives of the classes that Spark and Kafka load: a JVM that has one starts with a third less work.

The tests start some twenty. `python -m tests.class_archives NAME` writes one into the environment, once.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

from tests.spark_home import make_spark_home, use_spark_home

__all__ = ["KAFKA", "java_options"]

_SPARK = Path(sys.prefix) / "spark.jsa"
KAFKA = Path(sys.prefix) / "kafka.jsa"

# The second compiler takes more than it gives back in short runs; without it Java keeps a fifth of the room for code,
# which ten queries fill. An archive of another Java or of other jars is not used, and that need not be said.
_FOR_SHORT_RUNS = (
    "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC -Xlog:cds=off -Xlog:cds+dynamic=off"
)


def java_options() -> str:
    """What `JAVA_TOOL_OPTIONS` is in the tests."""
    return f"{_FOR_SHORT_RUNS} '-XX:SharedArchiveFile={_SPARK}'" if _SPARK.exists() else _FOR_SHORT_RUNS


def main(name: str) -> None:
    """Let a driver run a windowed query, or a broker take some records, and keep the classes that it loaded."""
    archive, run = {"spark": (_SPARK, _run_spark), "kafka": (KAFKA, _run_kafka)}[name]
    archive.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / archive.name
        os.environ["JAVA_TOOL_OPTIONS"] = f"{_FOR_SHORT_RUNS} -XX:ArchiveClassesAtExit={written}"
        run(Path(folder))
        if written.exists():
            shutil.move(written, archive)


def _run_spark(folder: Path) -> None:
    # An archive is for the class path of one home.
    make_spark_home()
    use_spark_home()
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    import streaming_source
    from tests.spark.support import SKEWS, available_now, windows, write_logs

    write_logs(folder / "in", SKEWS["one-tiny"])
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.shuffle.partitions", "2").config("spark.ui.showConsoleProgress", "false")
    spark = builder.config("spark.driver.memory", "2g").getOrCreate()
    reader = streaming_source.read_stream(spark).format("aligned_files").option("eventTimeColumn", "ts")
    frame = windows(reader.option("bounded", True).load(str(folder / "in")))
    assert available_now(spark, frame, folder / "cp", files=folder / "out").rows
    spark.stop()
    gateway = SparkContext._gateway
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


def _run_kafka(folder: Path) -> None:
    from tests.kafka.artifacts import ArtifactsMissingError
    from tests.kafka.broker import KafkaBroker
    from tests.kafka.topics import Topic

    try:
        broker = KafkaBroker.from_cache(folder / "kafka")
    except ArtifactsMissingError:
        return
    broker.start()
    topic = Topic(broker).create()
    topic.write_logs({0: range(1000, 1_000_000, 1000)})
    assert topic.read()
    topic.close()
    broker.stop()


if __name__ == "__main__":
    main(sys.argv[1])
