"""Sources that a checkpoint keeps by name: one is added to a query, another is taken from it."""

from __future__ import annotations

from functools import reduce
from pathlib import Path

import numpy as np
import pytest
from pyspark.sql import DataFrame, SparkSession

from alignment import WatermarkStrategy
from streaming_source import FileSource, from_source, read_stream, with_exact_watermark
from tests.spark.support import SECOND, T0, Logs, available_now, naive_windows, windows, write_file

pytestmark = pytest.mark.spark

OPTIONS = {"eventTimeColumn": "ts", "maxOutOfOrderness": "5 seconds"}
STRATEGY = WatermarkStrategy.for_bounded_out_of_orderness("5 seconds").with_timestamp_assigner("ts")


EVERY_DOOR = [("first", "second"), ("third", "second", "first"), ("third", "first")]
"""The names of the sources, run after run."""


@pytest.mark.parametrize(
    "runs", [[EVERY_DOOR[0], EVERY_DOOR[-1]], pytest.param(EVERY_DOOR, marks=pytest.mark.soak)], ids=["two", "three"]
)
def test_sources_of_every_door_are_added_and_taken_by_name(
    spark: SparkSession, tmp_path: Path, runs: list[tuple[str, ...]]
) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.streaming.queryEvolution.enableSourceEvolution", "true")
    session.conf.set("spark.sql.streaming.offsetLog.formatVersion", "2")

    def load(name: str) -> DataFrame:
        path = str(tmp_path / name)
        if name == "first":
            return read_stream(session).format("aligned_files").options(**OPTIONS).name(name).load(path)
        if name == "second":
            return from_source(session, FileSource(path), STRATEGY, name)
        frame = session.readStream.format("aligned_files").options(**OPTIONS).name(name).load(path)
        return with_exact_watermark(frame)

    written: Logs = {}
    for number, names in enumerate(runs):
        for name in names:
            times = T0 + np.arange(number * 200, number * 200 + 200) * SECOND
            write_file(tmp_path / name / "log" / f"{number}.parquet", times, name)
            written[name] = np.concatenate([written.get(name, times[:0]), times])
        # In another order than before: only the name says which source has which offset.
        frame = reduce(DataFrame.unionByName, map(load, names))
        run = available_now(session, windows(frame), tmp_path / "cp", files=tmp_path / "out")
        watermark = min(int(written[name][-1]) for name in names) - 5 * SECOND - 1
        expected = [window for window in naive_windows(written) if window[1] <= watermark]
        assert run.rows == expected
    assert {window[2] for window in expected} == {"first", "second", "third"}
