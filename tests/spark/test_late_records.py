"""Late records as a second stream: kept and routed are the input, over restarts and a crash."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from streaming_source import WatermarkStrategy, from_source, late_records, read_stream
from streaming_source.exceptions import OptionError
from tests.spark.conftest import Loader
from tests.spark.support import SECOND, T0, available_now, forget_batches, last_batch, write_file
from tests.spark.unindexed import UnindexedLogs, append_log

pytestmark = pytest.mark.spark


def put(root: Path, split: str, number: int, first: int, rows: int) -> None:
    """One more file of a log: a record a second, two of three a few seconds behind the third."""
    seconds = first + np.arange(rows) - np.arange(rows) % 3 * 2
    write_file(root / split / f"f{number}.parquet", T0 + seconds * SECOND, row_group_size=40)


def test_kept_and_routed_are_the_input_over_restarts_and_a_crash(spark: SparkSession, tmp_path: Path) -> None:
    root, checkpoint = tmp_path / "in", tmp_path / "cp"

    def frame() -> DataFrame:
        options = {"eventTimeColumn": "ts", "idleTimeout": "1 ms", "late": "route", "maxRowsPerTrigger": 300}
        return read_stream(spark).format("aligned_files").options(**options).load(str(root))

    def run_query() -> list[tuple[object, ...]]:
        return available_now(spark, frame().select("s", "k"), checkpoint, files=tmp_path / "kept").rows

    def run_late() -> list[tuple[object, ...]]:
        late = late_records(frame(), str(checkpoint)).select("s", "k", F.unix_micros("ts"))
        return available_now(spark, late, tmp_path / "late_cp", files=tmp_path / "late").rows

    put(root, "a", 0, 0, 300)
    run_query()
    put(root, "b", 0, 100, 400)
    run_query()
    # The driver died before it wrote that the last micro-batch was done: late records of it are not yet there.
    crashed = last_batch(checkpoint)
    forget_batches(checkpoint / "commits", crashed)
    before = len(run_late())
    put(root, "c", 0, 50, 100)
    put(root, "b", 1, 600, 100)
    kept, late = run_query(), run_late()
    assert before < len(late)
    assert Counter([*kept, *(row[:2] for row in late)]) == Counter(
        tuple(row) for row in spark.read.parquet(f"{root}/*").select("s", "k").collect()
    )
    # Those at or below what the other logs had brought the watermark to.
    assert {row[0] for row in late} >= {"b", "c"}
    assert all(row[2] < T0 + 300 * SECOND for row in late if row[0] == "b" and row[1].startswith("f0"))


def test_a_source_of_ones_own_has_late_records_too(spark: SparkSession, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("ts").with_idleness("1 ms")
    append_log(logs, "a", T0 + np.arange(100, 200) * SECOND)
    frame = from_source(spark, UnindexedLogs(str(logs)), strategy, "mine", late="route")
    available_now(spark, frame, tmp_path / "cp", files=tmp_path / "kept")
    append_log(logs, "b", T0 + np.arange(150, 250) * SECOND)
    kept = available_now(spark, frame.select("s", "k"), tmp_path / "cp", files=tmp_path / "kept").rows
    late = late_records(frame, str(tmp_path / "cp")).select("s", "k")
    assert available_now(spark, late, tmp_path / "late_cp").rows == [("b", k) for k in range(49)]
    assert len(kept) == 151


def test_frames_without_late_records_of_their_own_are_refused(
    spark: SparkSession, exact: Loader, stream: Loader, tmp_path: Path
) -> None:
    put(tmp_path, "a", 0, 0, 3)
    with pytest.raises(
        OptionError, match=r"late_records needs a frame as load\(\) gave it; this one has .*, Filter on"
    ):
        late_records(exact(tmp_path, late="route").where("k > ''"), "/cp")
    with pytest.raises(OptionError, match=r"late_records needs a frame of aligned_datagen.* this one is of rate"):
        late_records(spark.readStream.format("rate").load(), "/cp")
    with pytest.raises(OptionError, match=r"late_records: the frame has option late = 'keep'.*give it late = route"):
        late_records(stream(tmp_path), "/cp")
    assert late_records(stream(tmp_path, late="route"), "/cp").columns == ["ts", "k", "s"]
