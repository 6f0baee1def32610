"""Readers as Spark 4.0 and 4.1 call them: by a player of those calls here, and by such a Spark where this is one.

`make versions` runs this file on PySpark 4.0 and 4.1.
"""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource

from alignment.watermarks import FAR_US
from streaming_source import explain, read_stream
from streaming_source.coordinator.rules import EMITTED
from streaming_source.exceptions import OffsetError, OptionError, UnsupportedOperationError
from streaming_source.monitoring.explained import explain_checkpoint
from streaming_source.monitoring.micro_batch import MicroBatch
from streaming_source.spark.before_4_2 import IS_BEFORE_4_2, STEPS, WRAPPER, ReadAllAvailable, ReaderBefore42
from streaming_source.spark.datasource import AlignedDataSource
from streaming_source.spark.watermark_rows import OFFSET_US
from tests.spark.support import SECOND, T0, naive_windows, windows, write_file

Offset = dict[str, Any]


class KilledError(Exception):
    """The driver ends here."""


class SparkBefore42:
    """A query as Spark 4.0 runs it: its calls in their order, its logs in a checkpoint, a sink that is exactly-once.

    `sink` has the rows of each micro-batch, and `watermarks` the watermark that its rows led to.
    """

    def __init__(self, checkpoint: Path, make: Callable[[], ReaderBefore42]) -> None:
        self.checkpoint = checkpoint
        self.make = make
        self.sink: dict[int, list[tuple[Any, ...]]] = {}
        self.watermarks: dict[int, int] = {}

    def run(self, trigger: str, *, batches: int = 99, killed: str | None = None) -> None:
        """Run a query with one of the triggers; `killed` where: `planned` or `written`, in its last micro-batch."""
        reader: ReaderBefore42 = pickle.loads(pickle.dumps(self.make()))
        try:
            self._run(reader, trigger, batches, killed)
        except KilledError:
            pass
        else:
            reader.stop()

    def _run(self, reader: ReaderBefore42, trigger: str, batches: int, killed: str | None) -> None:
        fetched = _json(reader.latestOffset()) if trigger == "wrapped" else None
        number = self._last("offsets")
        start, end = (None if at < 0 else self._offset(at) for at in (number - 1, number))
        if end is not None:
            reader.partitions(_parsed(end), _parsed(end))
            if self._last("commits") < number:
                if start != end:
                    self._read(reader, number, start, end)
                self._write("commits", number, "v1\n{}")
                if trigger == "single":
                    return
        for _ in range(batches):
            start = end
            if fetched is None:
                end = _json(reader.latestOffset())
            else:
                if start is None:
                    reader.initialOffset()
                end = fetched
                assert _json(reader.latestOffset()) == fetched
            if start == end:
                if trigger == "stream":
                    continue
                return
            number += 1
            self._write("offsets", number, f'v1\n{{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{{}}}}\n{end}')
            if number:
                reader.commit(_parsed(self._offset(number - 1)))
            if killed == "planned":
                raise KilledError
            self._read(reader, number, start, end)
            if killed == "written":
                raise KilledError
            self._write("commits", number, "v1\n{}")
            if trigger == "single":
                return

    def _read(self, reader: ReaderBefore42, number: int, start: str | None, end: str) -> None:
        begin = reader.initialOffset() if start is None else _parsed(start)
        parts = pickle.loads(pickle.dumps(list(reader.partitions(begin, _parsed(end)))))
        task = pickle.loads(pickle.dumps(reader))
        read = [batch for part in parts for batch in task.read(part)]
        table = pa.Table.from_batches(read, reader.reader.shaper.schema)
        far = pc.greater_equal(table["ts"].cast(pa.int64()), FAR_US)
        marks, data = table.filter(far)["ts"].cast(pa.int64()).to_pylist(), table.filter(pc.invert(far))
        assert len(marks) <= 1
        rows = sorted((row["_split"], row["_position"], row["k"], row["t"]) for row in _rows(data))
        assert self.sink.setdefault(number, rows) == rows, f"micro-batch {number} read other rows"
        self.watermarks[number] = max([*marks, self.watermarks.get(number - 1, FAR_US)])

    def check(self, written: Sequence[tuple[str, int]]) -> None:
        """Each record is in the sink once, and none was at or below the watermark of an earlier micro-batch."""
        rows = [row for number in sorted(self.sink) for row in self.sink[number]]
        assert sorted((k, t) for _, _, k, t in rows) == sorted(written)
        assert len({row[:2] for row in rows}) == len(rows)
        for number, read in self.sink.items():
            before = self.watermarks.get(number - 1, FAR_US) - OFFSET_US
            assert all(t > before for _, _, _, t in read)

    def _last(self, folder: str) -> int:
        names = [int(path.name) for path in (self.checkpoint / folder).glob("*")]
        return max(names, default=-1)

    def _offset(self, number: int) -> str:
        return (self.checkpoint / f"offsets/{number}").read_text().splitlines()[2]

    def _write(self, folder: str, number: int, text: str) -> None:
        path = self.checkpoint / folder / str(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def _json(offset: Offset) -> str:
    return json.dumps(offset)


def _parsed(text: str) -> Offset:
    found: Offset = json.loads(text)
    return found


def _rows(table: pa.Table) -> list[dict[str, Any]]:
    times = table["ts"].cast(pa.int64())
    return table.append_column("t", times).drop(["ts"]).to_pylist()


# ---- by the player --------------------------------------------------------------------------------------------------


class Logs:
    """Files of some splits, of which one is ahead of the others."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root = root
        self.draw = random.Random(seed)
        self.written: list[tuple[str, int]] = []
        self.parts = 0

    def grow(self, files: int = 3, rows: int = 60) -> None:
        """Add files; of the first ones each is of another split, since one found later may be behind the watermark."""
        for _ in range(files):
            split = self.parts if self.parts < 3 else self.draw.randrange(3)
            begin = T0 + self.parts * rows * SECOND + split * 1000 * SECOND
            times = begin + np.arange(rows, dtype=np.int64) * SECOND
            path = self.root / f"split-{split}" / f"part-{self.parts:03}.parquet"
            write_file(path, times)
            self.written += [(f"{path.stem}/{i}", int(t)) for i, t in enumerate(times)]
            self.parts += 1


def make_reader(root: Path, checkpoint: Path | None, **options: Any) -> ReaderBefore42:
    """As `stream_reader` makes it on such a Spark."""
    given = {
        "path": str(root),
        "eventTimeColumn": "ts",
        "maxOutOfOrderness": "5 seconds",
        "includeMetadata": "true",
        "watermarkRows": EMITTED,
        **({} if checkpoint is None else {"availableNowCheckpoint": str(checkpoint)}),
        **{name: str(value) for name, value in options.items()},
    }
    source = AlignedDataSource.of_format("aligned_files", given)
    made = source.stream_reader(source.schema())
    if isinstance(made, ReaderBefore42):
        return made
    return ReaderBefore42(made, source.options.available_now_checkpoint, source.is_bounded)


@pytest.mark.parametrize("seed", [*range(2), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 60))])
def test_each_record_is_read_once_over_runs_of_any_trigger_and_kills_anywhere(tmp_path: Path, seed: int) -> None:
    draw, logs, checkpoint = random.Random(seed), Logs(tmp_path / "in", seed), tmp_path / "cp"
    limits = {"maxRowsPerTrigger": draw.choice([50, 130, 10_000]), "numReaders": draw.choice([1, 3])}
    if draw.random() < 0.5:
        limits["maxDrift"] = "1 minute"
    logs.grow()
    trigger = draw.choice(["wrapped", "stream", "single"])

    def make() -> ReaderBefore42:
        return make_reader(tmp_path / "in", None if trigger == "stream" else checkpoint, **limits)

    spark = SparkBefore42(checkpoint, make)
    for _ in range(6):
        trigger = draw.choice(["wrapped", "wrapped", "stream", "single"])
        spark.run(trigger, batches=draw.choice([1, 3]), killed=draw.choice([None, "planned", "written"]))
        if draw.random() < 0.7:
            logs.grow(draw.randint(1, 3))
    trigger = "wrapped"
    spark.run("wrapped")
    spark.check(logs.written)


def test_an_available_now_run_reads_all_there_is_in_one_micro_batch_whatever_limits(tmp_path: Path) -> None:
    logs = Logs(tmp_path / "in", 1)
    logs.grow(9)

    def make() -> ReaderBefore42:
        return make_reader(tmp_path / "in", tmp_path / "cp", maxRowsPerTrigger=20, maxDrift="30 seconds")

    spark = SparkBefore42(tmp_path / "cp", make)
    spark.run("wrapped")
    assert list(spark.sink) == [0]
    spark.check(logs.written)
    # Steps that the drift has made: each is read again as it was.
    assert len(json.loads(spark._offset(0))[STEPS]) >= 2
    spark.run("wrapped")
    # The watermark again, as after each restart.
    assert not spark.sink.pop(1)
    assert list(spark.sink) == [0]


@pytest.mark.parametrize("split_by", ["directory", "file"])
def test_a_micro_batch_of_several_steps_is_read_whole_after_an_upgrade_of_spark(tmp_path: Path, split_by: str) -> None:
    logs = Logs(tmp_path / "in", 1)
    logs.grow(9)
    options = {"splitBy": split_by, "maxRowsPerTrigger": 20, "maxDrift": "30 seconds"}
    spark = SparkBefore42(tmp_path / "cp", lambda: make_reader(tmp_path / "in", tmp_path / "cp", **options))
    spark.run("wrapped", killed="planned")
    end = _parsed(spark._offset(0))
    assert len(end[STEPS]) >= 2
    # From 4.2 on Spark calls this one.
    reader = make_reader(tmp_path / "in", None, **options).reader
    read = [batch for part in reader.partitions(reader.initialOffset(), end) for batch in reader.read(part)]
    rows = [row for batch in read for row in batch.to_pylist() if row["k"] is not None]
    assert sorted((row["k"], row["ts"].timestamp() * SECOND) for row in rows) == sorted(logs.written)
    # It goes on after it.
    after = reader.latestOffset(end, ReadAllAvailable())
    assert after == end or not [split for part in reader.partitions(end, after) for split in part.splits]
    reader.stop()


def test_a_stream_keeps_its_limits(tmp_path: Path) -> None:
    logs = Logs(tmp_path / "in", 1)
    logs.grow(9)
    spark = SparkBefore42(tmp_path / "cp", lambda: make_reader(tmp_path / "in", None, maxRowsPerTrigger=100))
    spark.run("stream", batches=12)
    assert len(spark.sink) > 5
    assert max(map(len, spark.sink.values())) <= 100
    spark.check(logs.written)


def test_a_bounded_source_needs_no_checkpoint_in_its_first_run(tmp_path: Path) -> None:
    logs = Logs(tmp_path / "in", 1)
    logs.grow()
    spark = SparkBefore42(tmp_path / "cp", lambda: make_reader(tmp_path / "in", None, bounded=True))
    spark.run("wrapped")
    spark.check(logs.written)
    # It has ended: nothing more comes of the next run, and no error.
    spark.run("wrapped")
    spark.check(logs.written)


def test_a_second_run_without_the_checkpoint_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    logs = Logs(tmp_path / "in", 1)
    logs.grow()
    SparkBefore42(tmp_path / "cp", lambda: make_reader(tmp_path / "in", tmp_path / "cp")).run("wrapped")
    logs.grow()
    with pytest.raises(OptionError, match=r"availableNowCheckpoint is missing.*give the checkpointLocation"):
        SparkBefore42(tmp_path / "cp", lambda: make_reader(tmp_path / "in", None)).run("wrapped")
    with pytest.raises(OptionError, match="availableNowCheckpoint is missing"):
        SparkBefore42(tmp_path / "cp", lambda: make_reader(tmp_path / "in", None, bounded=True)).run("wrapped")
    assert [path.name for path in (tmp_path / "cp/offsets").iterdir()] == ["0"]


def test_a_first_run_without_the_checkpoint_is_refused_if_the_source_does_not_end(tmp_path: Path) -> None:
    Logs(tmp_path / "in", 1).grow()
    with pytest.raises(OptionError, match="availableNowCheckpoint is missing"):
        SparkBefore42(tmp_path / "cp", lambda: make_reader(tmp_path / "in", None)).run("wrapped")
    assert not (tmp_path / "cp").exists()


def test_the_checkpoint_of_a_query_with_another_trigger_is_refused(tmp_path: Path) -> None:
    Logs(tmp_path / "in", 1).grow()
    with pytest.raises(OptionError, match=r"is for trigger\(availableNow=True\).*leave it out"):
        SparkBefore42(tmp_path / "cp", lambda: make_reader(tmp_path / "in", tmp_path / "cp")).run("stream")


def test_what_only_reports_tell_is_refused_in_available_now(tmp_path: Path) -> None:
    Logs(tmp_path / "in", 1).grow()

    def make() -> ReaderBefore42:
        made = make_reader(tmp_path / "in", tmp_path / "cp")
        return ReaderBefore42(made.reader, made.checkpoint, knows_ahead=False)

    with pytest.raises(UnsupportedOperationError, match="leave indexing at auto"):
        SparkBefore42(tmp_path / "cp", make).run("wrapped")


def test_late_records_in_available_now_are_refused_with_the_setting(tmp_path: Path) -> None:
    Logs(tmp_path / "in", 1).grow()

    def make() -> ReaderBefore42:
        return ReaderBefore42(make_reader(tmp_path / "in", None).reader, is_of_late=True)

    with pytest.raises(OptionError, match=r"late records on PySpark .*; set that to false before this query starts"):
        SparkBefore42(tmp_path / "cp", make).run("wrapped")
    SparkBefore42(tmp_path / "cp", make).run("single")


def test_the_checkpoint_of_another_query_is_refused(tmp_path: Path) -> None:
    Logs(tmp_path / "in", 1).grow()
    Logs(tmp_path / "other", 2).grow()
    SparkBefore42(tmp_path / "cp", lambda: make_reader(tmp_path / "other", tmp_path / "cp")).run("wrapped")
    with pytest.raises(OffsetError, match="reads this source 0 times"):
        SparkBefore42(tmp_path / "new", lambda: make_reader(tmp_path / "in", tmp_path / "cp")).run("wrapped")


# ---- by Spark --------------------------------------------------------------------------------------------------------

by_spark = pytest.mark.skipif(not IS_BEFORE_4_2, reason="on PySpark 4.0 and 4.1")


def available_now(frame: DataFrame, folder: Path) -> list[tuple[Any, ...]]:
    """One run; all that is in the sink after it."""
    writer = windows(frame).writeStream.format("parquet").option("path", str(folder / "out"))
    writer = writer.option("checkpointLocation", str(folder / "cp"))
    assert writer.trigger(availableNow=True).start().awaitTermination(180)
    read = frame.sparkSession.read.schema("start long, end long, s string, count long").parquet(str(folder / "out"))
    return sorted(map(tuple, read.collect()))


def closed_windows(logs: Mapping[str, np.ndarray], watermark_us: int) -> list[tuple[Any, ...]]:
    return [window for window in naive_windows(logs) if window[1] <= watermark_us]


@pytest.mark.spark
@by_spark
@pytest.mark.parametrize("allowed", [True, False])
def test_windows_come_out_of_the_run_that_closes_them_or_of_the_next(
    spark: SparkSession, tmp_path: Path, *, allowed: bool
) -> None:
    logs: dict[str, np.ndarray] = {name: np.empty(0, np.int64) for name in ("a", "b")}
    before: list[tuple[Any, ...]] = []
    spark.conf.unset(WRAPPER)
    if not allowed:
        spark.conf.set(WRAPPER, "false")
    try:
        for run in range(3):
            for number, name in enumerate(logs):
                times = T0 + run * 600 * SECOND + np.arange(500, dtype=np.int64) * SECOND + number
                write_file(tmp_path / "in" / name / f"{run}.parquet", times, name)
                logs[name] = np.concatenate([logs[name], times])
            reader = read_stream(spark).format("aligned_files").option("eventTimeColumn", "ts")
            reader = reader.options(maxOutOfOrderness="5 seconds", maxRowsPerTrigger=70, maxDrift="1 minute")
            frame = reader.option("availableNowCheckpoint", tmp_path / "cp").load(str(tmp_path / "in"))
            assert spark.conf.get(WRAPPER) == str(allowed).lower()
            found = available_now(frame, tmp_path)
            closed = closed_windows(logs, min(int(times[-1]) for times in logs.values()) - 5 * SECOND - 1)
            assert found == (closed if allowed else before)
            before = closed
    finally:
        spark.conf.unset(WRAPPER)


@pytest.mark.spark
@by_spark
def test_the_setting_is_left_alone_where_another_source_may_suffer(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Other(DataSource):
        @classmethod
        def name(cls) -> str:
            return "other_source"

    write_file(tmp_path / "a" / "0.parquet", T0 + np.arange(10, dtype=np.int64) * SECOND)
    session = spark.newSession()
    session.dataSource.register(Other)
    reader = read_stream(session).format("aligned_files").option("eventTimeColumn", "ts").option("bounded", True)
    reader.load(str(tmp_path))
    assert session.conf.get(WRAPPER, None) is None
    assert "other Python sources (other_source)" in caplog.text


@pytest.mark.spark
@by_spark
def test_progress_and_explain_have_the_watermark_and_its_cause(spark: SparkSession, tmp_path: Path) -> None:
    for number, name in enumerate(("slow", "fast")):
        write_file(tmp_path / "in" / name / "0.parquet", T0 + (1 + 9 * number) * np.arange(100) * SECOND, name)
    frame = read_stream(spark).format("aligned_files").option("eventTimeColumn", "ts").load(str(tmp_path / "in"))
    query = windows(frame).writeStream.format("noop").option("checkpointLocation", str(tmp_path / "cp")).start()
    try:
        query.processAllAvailable()
        explained = explain(query)
        assert "slow" in str(explained)
        done = [MicroBatch.of_progress(json.loads(one.json)).statistics for one in query.recentProgress]
        assert sum(sum(one.rows) for one in done if one is not None) == 200
    finally:
        query.stop()
    assert "slow" in str(explain_checkpoint(str(tmp_path / "cp")))
