"""An audit of a query whose driver was killed, and of one whose sources have names."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.auditing import naive
from tests.auditing.killed import killed_and_restarted, sink_of
from tests.auditing.test_on_spark import (
    MINUTE,
    Sink,
    assert_counted,
    audited,
    computed,
    load,
    logged_batches,
    run,
    skewed,
    write,
)

pytestmark = pytest.mark.spark

QUERY = naive.Query(10_000, MINUTE, MINUTE)


@pytest.mark.soak
def test_a_query_whose_driver_was_killed_by_sigkill_is_counted_to_the_row(tmp_path: Path) -> None:
    root, checkpoint, out = (tmp_path / name for name in ("in", "checkpoint", "sink"))
    files = skewed(1)
    write(root, files, "parquet")
    arguments = (root, checkpoint, out)
    killed_at = killed_and_restarted("tests.auditing.file_query", arguments, checkpoint, tmp_path / "first.log")
    assert killed_at < len(files) - 1

    found = audited(checkpoint, QUERY, "parquet")

    done = naive.run(QUERY, logged_batches(checkpoint, root, files))
    assert_counted(found, done, sink_of(out), QUERY, checkpoint)
    assert found.dropped > 0


def test_a_source_that_has_a_name_is_counted_from_an_offset_log_of_version_2(
    spark: SparkSession, tmp_path: Path
) -> None:
    if not hasattr(spark.readStream, "name"):
        pytest.skip("sources have names from Spark 4.3 on")
    root, checkpoint, sink, files = tmp_path / "in", tmp_path / "checkpoint", Sink("append"), skewed(2)
    write(root, files, "parquet")
    confs = {"queryEvolution.enableSourceEvolution": "true", "offsetLog.formatVersion": "2"}
    for name, value in confs.items():
        spark.conf.set(f"spark.sql.streaming.{name}", value)
    try:
        run(load(spark, root, "parquet", 4, QUERY.delay_ms, name="flights"), QUERY, sink, checkpoint)
    finally:
        for name in confs:
            spark.conf.unset(f"spark.sql.streaming.{name}")
    assert (checkpoint / "offsets/0").read_text().startswith("v2\n")

    found = audited(checkpoint, QUERY, "parquet")

    batches = logged_batches(checkpoint, root, files, source="flights")
    assert_counted(found, naive.run(QUERY, batches), sink, QUERY, checkpoint)
    assert found.dropped > 0


@pytest.mark.soak
def test_a_query_that_runs_is_audited_again_and_again_and_is_not_disturbed(spark: SparkSession, tmp_path: Path) -> None:
    root, checkpoint, sink, files = tmp_path / "in", tmp_path / "checkpoint", Sink("append"), skewed(3)
    names = list(files)
    write(root, {name: files[name] for name in names[:2]}, "parquet")
    frame = computed(load(spark, root, "parquet", 1, QUERY.delay_ms), QUERY)
    writer = frame.writeStream.foreachBatch(sink.write).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(processingTime="0 seconds").start()
    read = []
    try:
        query.processAllAvailable()
        for at, name in enumerate(names[2:]):
            write(root, {name: files[name]}, "parquet", at_s=100 + at)
            # While it reads them.
            read.append(audited(checkpoint, QUERY, "parquet", "1 minute").read)
        query.processAllAvailable()
        assert query.isActive
    finally:
        query.stop()
    assert read == sorted(read)

    found = audited(checkpoint, QUERY, "parquet")

    done = naive.run(QUERY, logged_batches(checkpoint, root, files))
    assert_counted(found, done, sink, QUERY, checkpoint)
    assert found.read > read[-1]
    assert found.dropped > 0
