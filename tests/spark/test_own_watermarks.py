"""Watermarks that no bound gives: markers among the records, and those that the source itself emits."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import streaming_source
from alignment import MAX_WATERMARK, WatermarkGenerator, WatermarkOutput, WatermarkStrategy
from streaming_source.connectors import FileSource
from tests.spark import unindexed
from tests.spark.support import (
    MS,
    SECOND,
    T0,
    Logs,
    Run,
    end_offset,
    eventually,
    naive_windows,
    watermark_ms,
    windows,
    write_file,
)
from tests.spark.unindexed import LOW_WATER_US, LowWaterLogs, UnindexedLogs, append_log

cloudpickle.register_pickle_by_value(unindexed)

_HUNDRED = 100
CHUNKS = 6


def marked_logs() -> Logs:
    """Of each hundred records the last is a marker; the others are in no order. One split runs four times as fast."""
    rng = np.random.default_rng(5)
    logs = {}
    for split, step in (("a", SECOND), ("b", 4 * SECOND)):
        rising = T0 + step * np.arange(CHUNKS * _HUNDRED, dtype=np.int64)
        hundreds = rising.reshape(CHUNKS, _HUNDRED)
        logs[split] = np.concatenate([np.append(rng.permutation(chunk[:-1]), chunk[-1]) for chunk in hundreds])
    return logs


class AtMarkers(WatermarkGenerator):
    """Says with each marker that all earlier records are in; which those are it counts itself."""

    columns = ("k",)

    def __init__(self) -> None:
        self.seen = 0

    def on_event(self, record: Mapping[str, Any], timestamp: int, output: WatermarkOutput) -> None:
        self.seen += 1
        if self.seen % _HUNDRED == 0:
            output.emit_watermark(timestamp)

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Nothing."""

    def snapshot_state(self) -> int:
        return self.seen % _HUNDRED

    def restore_state(self, version: int, state: int) -> None:
        self.seen = state


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "names",
    [
        ("indexed", "own_reported"),
        pytest.param(("read_ahead", "reported", "own_read_ahead"), marks=pytest.mark.soak),
    ],
    ids=" and ".join,
)
@pytest.mark.soak
def test_windows_are_those_of_the_batch_where_a_marker_closes_them_and_the_sources_own_watermark_is_sparks(
    spark: SparkSession, tmp_path: Path, names: tuple[str, ...]
) -> None:
    logs = marked_logs()
    markers = WatermarkStrategy.for_generator(AtMarkers).with_timestamp_assigner("ts")
    own = WatermarkStrategy.from_source_watermarks().with_timestamp_assigner("ts")
    unindexed_logs, files = UnindexedLogs(str(tmp_path / "logs")), FileSource(str(tmp_path / "files"))
    all_kinds: dict[str, tuple[Any, WatermarkStrategy, dict[str, Any]]] = {
        "read_ahead": (unindexed_logs, markers, {}),
        "reported": (unindexed_logs, markers, {"indexing": "off"}),
        "indexed": (files, markers, {}),
        "own_read_ahead": (LowWaterLogs(str(tmp_path / "logs")), own, {}),
        "own_reported": (LowWaterLogs(str(tmp_path / "logs")), own, {"indexing": "off"}),
    }
    kinds = {name: all_kinds[name] for name in names}

    def frame(name: str) -> DataFrame:
        source, strategy, options = kinds[name]
        return streaming_source.from_source(spark, source, strategy, name, maxRowsPerTrigger=500, **options)

    def write(part: int, begin: int, end: int) -> None:
        for split, times in logs.items():
            write_file(tmp_path / "files" / split / f"part-{part}.parquet", times[begin:end], split, row_group_size=70)
            append_log(tmp_path / "logs", split, times[begin:end])

    def run_to(watermarks: Mapping[str, int]) -> dict[str, Run]:
        runs = {
            name: Run(spark, windows(frame(name), "10 seconds"), tmp_path / name, files=tmp_path / f"{name}-out")
            for name in kinds
        }
        for name, run in runs.items():
            expected = watermarks[name] // MS

            def announced(run: Run = run, expected: int = expected) -> bool:
                return any(watermark_ms(p) == expected for p in run.progress[-1:])

            eventually(announced, f"the watermark of {name}", run.query, 120)
            run.caught_up()
            assert end_offset(run.progress[-1])["watermark"] == watermarks[name]
        return runs

    # Stopped in the middle of a hundred: what was seen of it must not be forgotten.
    half = 3 * _HUNDRED + 31
    write(0, 0, half)
    last_marker, last = min(int(t[299]) for t in logs.values()), min(int(t[half - 1]) for t in logs.values())
    by_own = {name: last - LOW_WATER_US for name in kinds if name.startswith("own")}
    run_to(dict.fromkeys(kinds, last_marker) | by_own)
    write(1, half, CHUNKS * _HUNDRED)
    closed = min(int(times[-1]) for times in logs.values())
    runs = run_to(dict.fromkeys(kinds, closed) | dict.fromkeys(by_own, closed - LOW_WATER_US))
    by_batch = streaming_source.from_source(spark, unindexed_logs, markers, "all_at_once", batch=True)
    assert sorted(map(tuple, windows(by_batch, "10 seconds").collect())) == naive_windows(logs, 10 * SECOND)
    for name in kinds.keys() - by_own.keys():
        assert runs[name].rows == [window for window in naive_windows(logs, 10 * SECOND) if window[1] <= closed]


@pytest.mark.soak
def test_a_query_that_fails_in_each_micro_batch_keeps_the_watermarks_and_the_state_of_its_generators(
    spark: SparkSession, tmp_path: Path
) -> None:
    for split, times in marked_logs().items():
        write_file(tmp_path / "in" / split / "1.parquet", times, split, row_group_size=70)
    markers = WatermarkStrategy.for_generator(AtMarkers).with_timestamp_assigner("ts")
    frame = streaming_source.from_source(
        spark, FileSource(str(tmp_path / "in"), bounded=True), markers, "failing", maxRowsPerTrigger=130
    )

    def run(checkpoint: Path, *, fails: bool) -> list[dict[str, Any]]:
        failed: set[int] = set()

        def sink(batch: DataFrame, number: int) -> None:
            batch.count()
            if fails and number not in failed:
                failed.add(number)
                raise RuntimeError("this micro-batch fails once")

        while True:
            writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
            query = writer.trigger(availableNow=True).start()
            try:
                query.awaitTermination()
                break
            except StreamingQueryException as error:
                if "fails once" not in str(error):
                    raise
        logged = sorted((checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
        offsets = [json.loads(path.read_text().splitlines()[2]) for path in logged]
        assert not fails or len(failed) == len(offsets)
        return [{name: offset.get(name) for name in ("watermark", "splits", "generators")} for offset in offsets]

    expected = run(tmp_path / "at-once", fails=False)
    assert len(expected) > 5
    assert any(offset["generators"] for offset in expected)
    restarted = run(tmp_path / "restarted", fails=True)
    assert restarted[: len(expected)] == expected
    # After a restart behind the end there may be one more micro-batch, of nothing.
    assert all(not more["splits"] and more["watermark"] == MAX_WATERMARK for more in restarted[len(expected) :])
