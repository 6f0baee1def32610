"""Late records as a second stream: kept and routed are the input, over restarts and a crash."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from streaming_source import WatermarkStrategy, advise, from_source, late_records, read_stream
from streaming_source.exceptions import OptionError
from streaming_source.spark.frames import FrameKeywords
from tests.spark.answers import Rows
from tests.spark.conftest import Loader
from tests.spark.support import SECOND, T0, Run, available_now, last_batch, write_file
from tests.spark.twin import Twin, frame, plain_frame
from tests.spark.unindexed import UnindexedLogs, append_log


def put(root: Path, split: str, number: int, first: int, rows: int) -> None:
    """One more file of a log: a record a second, each seventh ten seconds behind."""
    seconds = first + np.arange(rows) - (np.arange(rows) % 7 == 6) * 10
    write_file(root / split / f"f{number}.parquet", T0 + seconds * SECOND, row_group_size=40)


def test_kept_and_routed_are_the_input_over_restarts_and_a_crash(tmp_path: Path) -> None:
    root = tmp_path / "in"
    put(root, "a", 0, 0, 300)
    options = {"idleTimeout": "1 ms", "late": "route", "maxRowsPerTrigger": 110, "lateness": "bounded"}
    options |= {"lateLocation": str(tmp_path / "late_log")}
    query = Twin(tmp_path / "cp", frame(root, **options), answer=Rows("s", "k"))
    query.run()
    # Late records of a micro-batch that is not done are not yet there.
    query.forget_commit()
    of_late = plain_frame(root, 0, lateRecordsOf=tmp_path / "cp", **options)
    late = Twin(tmp_path / "late_cp", of_late, answer=Rows("s", "k"))
    before = len(late.run().rows)
    put(root, "a", 1, 300, 20)
    put(root, "b", 0, 100, 120)
    kept, routed = query.run().rows, late.run().rows
    assert 0 < before < len(routed)
    everything = [pq.read_table(path) for path in root.glob("*/*.parquet")]
    written = [row for table in everything for row in zip(*(table[c].to_pylist() for c in ("s", "k")), strict=True)]
    assert Counter(kept + routed) == Counter(written)
    # Those behind a cut, and those at or below what the other log had brought the watermark to.
    assert {row[0] for row in routed} == {"a", "b"}


@pytest.fixture
def few_offsets(spark: SparkSession) -> Iterator[None]:
    """Spark keeps those of a single micro-batch, and of the one that it is at."""
    spark.conf.set("spark.sql.streaming.minBatchesToRetain", "1")
    yield
    spark.conf.unset("spark.sql.streaming.minBatchesToRetain")


@pytest.mark.spark
@pytest.mark.soak
@pytest.mark.usefixtures("few_offsets")
@pytest.mark.parametrize("micro_batches", [12, 330])
def test_late_records_outlive_the_offsets_that_spark_removes(
    spark: SparkSession, tmp_path: Path, micro_batches: int
) -> None:
    rows, checkpoint, late_log = 20 * micro_batches, tmp_path / "cp", tmp_path / "late_log"
    put(tmp_path / "in", "a", 0, 0, rows)
    reader = read_stream(spark).format("aligned_files").options(eventTimeColumn="ts", maxRowsPerTrigger=20)
    reader = reader.option("lateness", "bounded")
    frame = reader.options(late="route", lateLocation=str(late_log)).load(str(tmp_path / "in"))
    run = Run(spark, frame.select("k"), checkpoint, trigger={"availableNow": True}, files=tmp_path / "kept")
    assert run.query.awaitTermination(600)
    kept = run.rows
    assert last_batch(checkpoint) >= micro_batches
    assert len([path for path in (checkpoint / "offsets").iterdir() if path.name.isdigit()]) <= 3
    assert len([*late_log.glob("*/*.json")]) >= 0.8 * micro_batches
    late = available_now(spark, late_records(frame, str(checkpoint)).select("k"), tmp_path / "late_cp").rows
    assert Counter(kept + late) == Counter((f"f0/{i}",) for i in range(rows))
    assert len(late) >= 0.8 * micro_batches


@pytest.mark.spark
@pytest.mark.soak
def test_a_source_of_ones_own_has_late_records_too(spark: SparkSession, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("ts").with_idleness("1 ms")
    append_log(logs, "a", T0 + np.arange(100, 200) * SECOND)
    routing: FrameKeywords = {"late": "route", "late_location": str(tmp_path / "late_log")}
    frame = from_source(spark, UnindexedLogs(str(logs)), strategy, "mine", **routing)
    available_now(spark, frame.select("s", "k"), tmp_path / "cp", files=tmp_path / "kept")
    append_log(logs, "b", T0 + np.arange(150, 250) * SECOND)
    kept = available_now(spark, frame.select("s", "k"), tmp_path / "cp", files=tmp_path / "kept").rows
    late = late_records(frame, str(tmp_path / "cp")).select("s", "k")
    assert available_now(spark, late, tmp_path / "late_cp").rows == [("b", k) for k in range(49)]
    assert len(kept) == 151
    # What a frame is made of is found beneath what is on it, and beneath a query.
    assert [(split.split_id, split.rows) for split in advise(frame.where("k > 3")).splits] == [("a", 100), ("b", 100)]


@pytest.mark.spark
def test_frames_without_late_records_of_their_own_are_refused(
    spark: SparkSession, exact: Loader, stream: Loader, tmp_path: Path
) -> None:
    put(tmp_path, "a", 0, 0, 3)
    with pytest.raises(
        OptionError, match=r"late_records needs a frame as load\(\) gave it; this one has .*, Filter on"
    ):
        late_records(exact(tmp_path, late="route", lateLocation="/log").where("k > ''"), "/cp")
    with pytest.raises(OptionError, match=r"late_records needs a frame of aligned_datagen.* this one is of rate"):
        late_records(spark.readStream.format("rate").load(), "/cp")
    with pytest.raises(OptionError, match=r"late_records: the frame has option late = 'keep'.*give it late = route"):
        late_records(stream(tmp_path), "/cp")
    assert late_records(stream(tmp_path, late="route", lateLocation="/log"), "/cp").columns == ["ts", "k", "s"]
