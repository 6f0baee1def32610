"""A job that is started every night, with no idleTimeout: what the page on nightly runs says, over real runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from streaming_source import WatermarkStrategy, from_source, read_stream
from streaming_source.connectors import FileSource
from streaming_source.monitoring.explained import explain_checkpoint
from streaming_source.spark.before_4_2 import IS_BEFORE_4_2
from tests.docs.pages import ROOT, blocks
from tests.spark.answers import Windows
from tests.spark.support import SECOND, Run, end_offset, naive_windows, write_file
from tests.spark.twin import Trigger, Twin, frame

DAY = 86_400 * SECOND
FIRST = 20_544 * DAY  # 2026-04-01
EACH = 718
"""Flights of an airport and a day."""
SCHEMA = "ts timestamp, k string, s string"


def day(number: int) -> np.ndarray:
    """From minute to minute and a bit, all over the day."""
    return FIRST + number * DAY + np.arange(EACH, dtype=np.int64) * 120 * SECOND


class Airports:
    """What airports deliver, as files."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.flights: dict[str, np.ndarray] = {}

    def deliver(self, delivers: Mapping[str, Sequence[int]]) -> None:
        for airport, days in delivers.items():
            for number in days:
                write_file(self.root / "flights" / airport / f"{number:02}.parquet", day(number), airport)
                self.flights[airport] = np.concatenate([self.flights.get(airport, day(0)[:0]), day(number)])

    def expected(self, days: int) -> list[tuple[Any, ...]]:
        """The counts of the first days, of all that was delivered."""
        return [row for row in naive_windows(self.flights, DAY) if row[1] <= FIRST + days * DAY]


class NightlyTwin(Airports):
    """The job without Spark; the frame is loaded in its first night."""

    twin: Twin | None = None

    def night(self, trigger: Trigger = "availableNow", **delivers: list[int]) -> Twin:
        self.deliver(delivers)
        if self.twin is None:
            options = {"maxOutOfOrderness": "1 minute", "splitBy": "directory"}
            self.twin = Twin(self.root / "cp", frame(self.root / "flights", **options), answer=Windows(DAY))
        return self.twin.run(trigger)


class Job(Airports):
    """Counts flights by airport and day, each run from its checkpoint into the same files."""

    def __init__(self, spark: SparkSession, root: Path, options: Mapping[str, str] | None = None) -> None:
        super().__init__(root)
        self.spark = spark
        self.options = options or {}

    def frame(self) -> DataFrame:
        reader = read_stream(self.spark).format("aligned_files").schema(SCHEMA)
        options = {"eventTimeColumn": "ts", "maxOutOfOrderness": "1 minute", "splitBy": "directory", **self.options}
        if IS_BEFORE_4_2:
            options["availableNowCheckpoint"] = str(self.root / "cp")
        return reader.options(**options).load(str(self.root / "flights"))

    def night(self, trigger: str = "availableNow", **delivers: list[int]) -> Run:
        """A run after the airports have delivered these days."""
        self.deliver(delivers)
        counted = self.frame().groupBy(F.window("ts", "1 day"), "s").count()
        named = counted.select(F.unix_micros("window.start"), F.unix_micros("window.end"), "s", "count")
        return Run(self.spark, named, self.root / "cp", trigger={trigger: True}, files=self.root / "out").finished()


def late(run: Run | Twin) -> int:
    return sum(entry[3] for entry in last_offset(run)["splits"] if len(entry) > 3)


def last_offset(run: Run | Twin) -> dict[str, Any]:
    return end_offset(run.progress[-1]) if isinstance(run, Run) else run.batches[-1].offsets[0]


def why(twin: Twin) -> str:
    """What its checkpoint says."""
    return str(explain_checkpoint(str(twin.checkpoint)))


PRINTED = [block.text for block in blocks(ROOT / "docs" / "nightly-runs.md") if block.language == "text"]


def test_a_night_late_costs_nothing_two_nights_cost_what_comes_then_and_one_that_is_gone_a_run(tmp_path: Path) -> None:
    job = NightlyTwin(tmp_path)
    run = job.night(JFK=[0], LGA=[0])
    run = job.night(JFK=[1], LGA=[1])
    assert run.rows == job.expected(1)
    # LGA is a night late: what was closed is there, nothing more, and it is said.
    run = job.night(JFK=[2])
    assert run.rows == job.expected(1)
    said = "'LGA' brought nothing in this run: windows from 2026-04-02 23:53:00 UTC on wait for it until the next one."
    assert said in " ".join(why(run).split())
    assert said == " ".join(PRINTED[0].split())
    # It brings both days in the next one: none of its 718 flights of the night before is lost.
    run = job.night(JFK=[3], LGA=[2, 3])
    assert run.rows == job.expected(3)
    assert late(run) == 0
    # Gone for good: one run waits, the next one goes on without it.
    run = job.night(JFK=[4])
    assert run.rows == job.expected(3)
    run = job.night(JFK=[5])
    assert run.rows == job.expected(5)
    assert "'LGA' is idle and holds nothing back" in " ".join(why(run).split())
    # Two nights late: what lies before the watermark is late, counted, and said to be of a split that was idle.
    run = job.night(LGA=[4, 5])
    assert late(run) == EACH + (EACH - 1)
    text = " ".join(why(run).split())
    assert "'LGA' had been idle" in text
    assert "Advice (idleTimeout)" in text


@pytest.mark.spark
@pytest.mark.soak
def test_with_an_idle_timeout_two_nights_late_lose_nothing(spark: SparkSession, tmp_path: Path) -> None:
    job = Job(spark, tmp_path, {"idleTimeout": "3 days"})
    job.night(JFK=[0], LGA=[0])
    job.night(JFK=[1])
    job.night(JFK=[2])
    run = job.night(JFK=[3], LGA=[1, 2, 3])
    assert run.rows == job.expected(3)
    assert late(run) == 0


@pytest.mark.spark
@pytest.mark.soak
def test_a_night_without_any_file_is_a_run_and_ends(spark: SparkSession, tmp_path: Path) -> None:
    job = Job(spark, tmp_path)
    job.night(JFK=[0, 1], LGA=[0])
    job.night()
    run = job.night()
    statuses = {str(entry[0][0]): entry[2] for entry in end_offset(run.progress[-1])["splits"]}
    assert set(statuses.values()) == {"idle"}
    assert run.rows == job.expected(1)


@pytest.mark.spark
def test_from_source_waits_for_a_night_as_read_stream_does(spark: SparkSession, tmp_path: Path) -> None:
    class OfSource(Job):
        def frame(self) -> DataFrame:
            strategy = WatermarkStrategy.for_bounded_out_of_orderness("1 minute").with_timestamp_assigner("ts")
            source = FileSource(str(self.root / "flights"), split_by="directory")
            before = {"available_now_checkpoint": str(self.root / "cp")} if IS_BEFORE_4_2 else {}
            return from_source(self.spark, source, strategy, "flights", **before)

    job = OfSource(spark, tmp_path)
    job.night(JFK=[0], LGA=[0])
    job.night(JFK=[1])
    run = job.night(JFK=[2], LGA=[1, 2])
    assert run.rows == job.expected(2)
    assert late(run) == 0


def test_a_run_with_trigger_once_is_a_run_as_well(tmp_path: Path) -> None:
    job = NightlyTwin(tmp_path)
    job.night("once", JFK=[0], LGA=[0])
    run = job.night("once", JFK=[1])
    assert last_offset(run)["run"] == {"silent": ["LGA"], "ended": True}
    run = job.night("once", JFK=[2], LGA=[1, 2])
    assert late(run) == 0
    job.night("once", JFK=[3])
    run = job.night("once", JFK=[4])
    assert [entry[2] for entry in last_offset(run)["splits"]] == ["active", "idle"]
