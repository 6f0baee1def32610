"""Generators, and a source's own watermarks, where readers report: through the gateway, without Spark."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from alignment import WatermarkStrategy
from alignment.recording import replay
from alignment.watermarks import MIN_WATERMARK, Int64Array, WatermarkGenerator, WatermarkOutput
from streaming_source.coordinator.rules import FrameOptions
from streaming_source.spark import planning
from streaming_source.spark.datasource import AlignedDataSource
from tests.spark.reading import SECOND, T0, Reading
from tests.spark.unindexed import LOW_WATER_US, LowWaterLogs, UnindexedLogs, append_log


class EveryTenth(WatermarkGenerator):
    """Every tenth record says that all before it are in: the state is how many there were, and the latest of all."""

    columns = ("k",)

    def __init__(self) -> None:
        self.latest, self.seen = 0, 0

    def on_event(self, record: Mapping[str, Any], timestamp: int, output: WatermarkOutput) -> None:
        assert record["k"] == self.seen, "each record once, in its order"
        self.latest, self.seen = max(self.latest, timestamp), self.seen + 1
        if self.seen % 10 == 0:
            output.emit_watermark(self.latest - 1)

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Nothing."""

    def snapshot_state(self) -> list[int]:
        return [self.latest, self.seen]

    def restore_state(self, version: int, state: list[int]) -> None:
        self.latest, self.seen = state


GENERATED = WatermarkStrategy.for_generator(EveryTenth).with_timestamp_assigner("ts")
OWN = WatermarkStrategy.from_source_watermarks().with_timestamp_assigner("ts")


def reading_of(folder: Path, strategy: WatermarkStrategy, event_log: str | None = None) -> Reading:
    kind = LowWaterLogs if strategy.uses_source_watermarks else UnindexedLogs
    options = FrameOptions(watermark_rows=True, indexing="off", include_metadata=True, event_log=event_log)
    source = AlignedDataSource(kind(str(folder)), strategy, options)
    return Reading(source.stream_reader(source.schema()))


def watermarks(reading: Reading) -> dict[str, int | None]:
    return {entry[0]["split_id"]: entry[1] for entry in reading.offset["splits"]}


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    for split, rows in (("a", 95), ("b", 60)):
        append_log(tmp_path, split, T0 + SECOND * np.arange(rows))
    return tmp_path


def read_on(reading: Reading, steps: int, rows: list[tuple[str, int]]) -> None:
    for _ in range(steps):
        if (table := reading.next(max_rows=25)) is not None:
            known = table.filter(table.column("k").is_valid())
            rows += zip(known.column("_split").to_pylist(), known.column("_position").to_pylist(), strict=True)


def test_readers_run_the_generators_and_restarts_at_every_step_lose_no_watermark(logs: Path) -> None:
    expected = {"a": T0 + 89 * SECOND - 1, "b": T0 + 59 * SECOND - 1}
    for restarts in (False, True):
        reading, rows = reading_of(logs, GENERATED), list[tuple[str, int]]()
        for _ in range(14):
            read_on(reading, 1, rows)
            if restarts:
                # What was reported of the last micro-batch is lost with the planner.
                offset = json.loads(json.dumps(reading.offset))
                reading.reader.stop()
                reading = reading_of(logs, GENERATED)
                reading.offset = offset
        read_on(reading, 3, rows)
        reading.reader.stop()
        assert sorted(rows) == [("a", i) for i in range(95)] + [("b", i) for i in range(60)], "each once"
        assert watermarks(reading) == expected
        assert reading.offset["watermark"] == min(expected.values())
        assert reading.offset["generators"]["b"] == [1, [T0 + 59 * SECOND, 60]]


def test_a_batch_that_is_read_again_runs_its_generators_from_where_they_were(logs: Path) -> None:
    reading, rows = reading_of(logs, GENERATED), list[tuple[str, int]]()
    read_on(reading, 1, rows)
    before = reading.offset
    read_on(reading, 1, rows)
    again = reading_of(logs, GENERATED)
    twice = again.between(before, reading.offset).filter(again.between(before, reading.offset).column("k").is_valid())
    assert len(twice) == 25
    again.offset = reading.offset
    read_on(reading, 1, rows)
    read_on(again, 1, rows)
    assert watermarks(again) == watermarks(reading)
    reading.reader.stop()
    again.reader.stop()


def test_a_lost_report_costs_waiting_and_no_watermark(logs: Path) -> None:
    reading, rows = reading_of(logs, GENERATED), list[tuple[str, int]]()
    read_on(reading, 1, rows)
    host = reading.reader._planning._coordinator.host
    host.post_reports = lambda reports: None  # type: ignore[method-assign]
    read_on(reading, 2, rows)
    waits = watermarks(reading)
    del host.post_reports
    read_on(reading, 1, rows)
    assert watermarks(reading) == waits
    read_on(reading, 8, rows)
    assert watermarks(reading) == {"a": T0 + 89 * SECOND - 1, "b": T0 + 59 * SECOND - 1}
    assert len(rows) == len(set(rows)) == 155
    reading.reader.stop()


def test_a_log_of_the_planner_replays_and_has_nothing_that_a_generator_keeps(logs: Path, tmp_path: Path) -> None:
    folder = tmp_path.with_name("logs")
    reading, rows = reading_of(logs, GENERATED, str(folder)), list[tuple[str, int]]()
    read_on(reading, 9, rows)
    reading.reader.stop()
    (log,) = folder.iterdir()
    plans = list(replay(log.read_text().splitlines()))
    assert len(plans) >= 7
    assert plans[-1].recorded["after"]["combined"] > T0
    assert [plan.replayed for plan in plans] == [plan.recorded for plan in plans]
    reported = [entry for entry in map(json.loads, log.read_text().splitlines()) if entry["type"] == "RangesReported"]
    assert {report["state"] for entry in reported for report in entry["reports"]} == {""}


def test_what_the_source_emits_is_reported_to_the_microsecond(logs: Path) -> None:
    reading, rows = reading_of(logs, OWN), list[tuple[str, int]]()
    read_on(reading, 1, rows)
    assert reading.offset["watermark"] is None
    read_on(reading, 11, rows)
    assert watermarks(reading)["b"] == T0 + 59 * SECOND - LOW_WATER_US
    assert reading.offset["watermark"] == T0 + 59 * SECOND - LOW_WATER_US > MIN_WATERMARK
    reading.reader.stop()


class LatestOfAll(WatermarkGenerator):
    """The watermark is the latest event time."""

    def on_batch(self, records: pa.RecordBatch, times: Int64Array, output: WatermarkOutput) -> None:
        if times.size:
            output.emit_watermark(int(times.max()))

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Nothing."""

    def snapshot_state(self) -> None:
        """The watermark is all it knows."""


@pytest.mark.parametrize("arrivals", [(50, 51), (None,), (None, None), (None, 50, None)])
def test_what_is_read_again_for_its_watermark_has_the_time_limit_that_it_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arrivals: tuple[int | None, ...]
) -> None:
    """Also after a micro-batch that admitted nothing: the limit belongs to the records, not to the last plan."""
    clock = [T0 + 100 * SECOND]
    monkeypatch.setattr(planning, "wall_clock_us", lambda: clock[0])
    strategy = WatermarkStrategy.for_generator(LatestOfAll).with_timestamp_assigner("ts")

    def starting(offset: dict[str, Any] | None = None) -> Reading:
        options = FrameOptions(
            watermark_rows=True, indexing="off", max_future_skew_us=10 * SECOND, invalid_timestamp="null"
        )
        source = AlignedDataSource(UnindexedLogs(str(tmp_path)), strategy, options)
        reading = Reading(source.stream_reader(source.schema()))
        reading.offset = reading.offset if offset is None else offset
        return reading

    # The record of an hour later is from the future when it is planned, and no more when it is read again.
    append_log(tmp_path, "a", T0 + SECOND * np.array([98, 99, 3700]))
    reading = starting()
    reading.next()
    for more in arrivals:
        # The reports are lost with the planner, and its next one plans an hour later.
        offset = json.loads(json.dumps(reading.offset))
        reading.reader.stop()
        clock[0] += 3600 * SECOND
        if more is not None:
            append_log(tmp_path, "a", T0 + SECOND * np.array([more]))
        reading = starting(offset)
        reading.next()
    for _ in range(3):
        reading.next()
    assert watermarks(reading) == {"a": T0 + 99 * SECOND}
    reading.reader.stop()
