"""Late records as a second stream: kept and routed are the input, over restarts and a crash."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from pyspark.sql import DataFrame, SparkSession

from streaming_source import WatermarkStrategy, advise, from_source, late_records, read_stream
from streaming_source.exceptions import OptionError
from streaming_source.spark.frames import FrameKeywords
from tests.spark.conftest import Loader
from tests.spark.support import SECOND, T0, Run, available_now, forget_batches, last_batch, write_file
from tests.spark.unindexed import UnindexedLogs, append_log

pytestmark = pytest.mark.spark


def put(root: Path, split: str, number: int, first: int, rows: int) -> None:
    """One more file of a log: a record a second, each seventh ten seconds behind."""
    seconds = first + np.arange(rows) - (np.arange(rows) % 7 == 6) * 10
    write_file(root / split / f"f{number}.parquet", T0 + seconds * SECOND, row_group_size=40)


def test_kept_and_routed_are_the_input_over_restarts_and_a_crash(spark: SparkSession, tmp_path: Path) -> None:
    root, checkpoint = tmp_path / "in", tmp_path / "cp"

    def frame() -> DataFrame:
        options = {"eventTimeColumn": "ts", "idleTimeout": "1 ms", "late": "route", "maxRowsPerTrigger": 110}
        options |= {"lateLocation": str(tmp_path / "late_log"), "lateness": "bounded"}
        return read_stream(spark).format("aligned_files").options(**options).load(str(root))

    def run_query() -> list[tuple[object, ...]]:
        return available_now(spark, frame().select("s", "k"), checkpoint, files=tmp_path / "kept").rows

    def run_late() -> list[tuple[object, ...]]:
        late = late_records(frame(), str(checkpoint)).select("s", "k")
        return available_now(spark, late, tmp_path / "late_cp", files=tmp_path / "late").rows

    put(root, "a", 0, 0, 300)
    run_query()
    # The driver died before it wrote that the last micro-batch was done: late records of it are not yet there.
    crashed = last_batch(checkpoint)
    forget_batches(checkpoint / "commits", crashed)
    before = len(run_late())
    put(root, "a", 1, 300, 20)
    put(root, "b", 0, 100, 120)
    kept, late = run_query(), run_late()
    assert 0 < before < len(late)
    assert Counter(kept + late) == Counter(
        tuple(row) for row in spark.read.parquet(f"{root}/*").select("s", "k").collect()
    )
    # Those behind a cut, and those at or below what the other log had brought the watermark to.
    assert {row[0] for row in late} == {"a", "b"}


@pytest.fixture
def few_offsets(spark: SparkSession) -> Iterator[None]:
    """Spark keeps those of a single micro-batch, and of the one that it is at."""
    spark.conf.set("spark.sql.streaming.minBatchesToRetain", "1")
    yield
    spark.conf.unset("spark.sql.streaming.minBatchesToRetain")


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
