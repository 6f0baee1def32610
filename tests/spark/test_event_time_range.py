"""Options eventTimeFrom and eventTimeUntil: the records between them are read, once, and no blocks beside."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from alignment.arrow_times import format_timestamp
from streaming_source import DataGeneratorSource, WatermarkStrategy, explain, from_source, read_stream
from streaming_source.exceptions import OffsetError, OptionError, OutOfRangeError
from streaming_source.spark.datasource import AlignedDataSource
from tests.data_files.samples import SAMPLES, Row, Sample
from tests.delta.tables import append
from tests.examples import examples, one_in
from tests.spark.answers import Rows, Windows
from tests.spark.reading import T0, Reading, data_source, read_batch, stream_reader
from tests.spark.support import SECOND, naive_windows, write_file
from tests.spark.twin import Twin, frame, plain_frame

DDL = "t timestamp, n bigint, s string"
FIRST, LAST = T0 - 3 * SECOND, T0 + 63 * SECOND
TIMES = st.one_of(st.none(), st.integers(FIRST // SECOND, LAST // SECOND).map(lambda s: s * SECOND))
"""A bound within the records, before them or behind them."""


def of_range(first: int | None, until: int | None) -> dict[str, str]:
    given = {"eventTimeFrom": first, "eventTimeUntil": until}
    return {name: f"{format_timestamp(us)}" for name, us in given.items() if us is not None}


def is_within(time: int | None, first: int | None, until: int | None) -> bool:
    """As the two options have it; whether a record without an event time is there is decided elsewhere."""
    return time is None or ((first is None or first <= time) and (until is None or time < until))


def rows_read(source: AlignedDataSource) -> int:
    """The rows of the ranges that readers are given."""
    parts = source.batch_reader(source.schema()).partitions()
    splits: list[Any] = [split for part in parts for split in part.splits]
    return sum(piece.stop - piece.start for split in splits for piece in split.ranges)


# ---- without Spark: the data source's own reader ---------------------------------------------------------------------


@pytest.fixture(scope="module", params=one_in(4, SAMPLES), ids=lambda sample: sample.id)
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Sample]:
    """Six files in blocks of five rows, a second between records, a little out of order; one has no event time."""
    sample, root = request.param, tmp_path_factory.mktemp("in")
    rng = np.random.default_rng(7)
    for number in range(6):
        times = T0 + (number * 10 + np.arange(10) + rng.integers(-2, 3, 10)) * SECOND
        rows: list[Row] = [(t, i, "x") for i, t in enumerate(times.tolist())]
        if number == 3 and sample.time == "t":
            rows[4] = (None, 4, "x")
        sample.write(root / f"part-{number}{sample.ending}", rows, 5)
    return root, sample


@settings(
    max_examples=examples(15),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    deadline=None,
)
@given(bounds=st.tuples(TIMES, TIMES), split_by=st.sampled_from(["file", "directory"]))
def test_a_batch_read_has_the_records_of_the_range_in_every_format(
    written: tuple[Path, Sample], bounds: tuple[int | None, int | None], split_by: str
) -> None:
    root, sample = written
    first, until = bounds
    if first is not None and until is not None:
        first, until = min(first, until), max(first, until) + SECOND
    options = {**sample.options, "eventTimeColumn": sample.time, "splitBy": split_by, "timeZone": "UTC"}
    options["invalidTimestamp"] = "null"
    if sample.needs_schema:
        options["dataSchema"] = DDL
    name = "event_time" if sample.time != "t" else "t"
    everything = read_batch(root, **options).column(name).cast(pa.int64()).to_pylist()
    found = read_batch(root, **options, **of_range(first, until)).column(name).cast(pa.int64()).to_pylist()
    expected = [time for time in everything if is_within(time, first, until)]
    assert len(everything) == 60
    assert sorted(found, key=str) == sorted(expected, key=str)
    if first is not None or until is not None:
        kept = read_batch(root, **options, **of_range(first, until), overlap="keep").column(name)
        assert sorted(kept.cast(pa.int64()).to_pylist(), key=str) == sorted(everything, key=str)
        with (
            pytest.raises(OutOfRangeError, match=r"is outside of eventTime.*, and option overlap is 'fail'")
            if len(expected) < 60
            else nullcontext()
        ):
            read_batch(root, **options, **of_range(first, until), overlap="fail")


@settings(max_examples=examples(15), deadline=None)
@given(bounds=st.tuples(TIMES, TIMES))
def test_a_batch_read_of_a_delta_table_has_the_records_of_the_range(
    bounds: tuple[int | None, int | None], delta_table: Path
) -> None:
    first, until = bounds
    if first is not None and until is not None:
        first, until = min(first, until), max(first, until) + SECOND

    def times(**options: str) -> list[int | None]:
        given = {"path": str(delta_table), "eventTimeColumn": "ts", "invalidTimestamp": "null", **options}
        source = AlignedDataSource.of_format("aligned_delta", given)
        reader = source.batch_reader(source.schema())
        batches = [batch for part in reader.partitions() for batch in reader.read(part)]
        return [us for batch in batches for us in batch.column("ts").cast(pa.int64()).to_pylist()]

    everything = times()
    assert len(everything) == 60
    expected = [time for time in everything if is_within(time, first, until)]
    assert sorted(times(**of_range(first, until)), key=str) == sorted(expected, key=str)


@pytest.fixture(scope="module")
def delta_table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six commits of ten records; one record has no event time."""
    root = tmp_path_factory.mktemp("table")
    for number in range(6):
        times: list[int | None] = (T0 + (number * 10 + np.arange(10)) * SECOND).tolist()
        if number == 3:
            times[4] = None
        append(root, times, n=list(range(10)))
    return root


@pytest.mark.parametrize("split_by", ["file", "directory"])
def test_row_groups_outside_of_the_range_are_not_read(tmp_path: Path, split_by: str) -> None:
    for number in range(4):
        write_file(tmp_path / f"f{number}.parquet", T0 + (number * 100 + np.arange(100)) * SECOND, row_group_size=10)
    options = {"eventTimeColumn": "ts", "splitBy": split_by}
    assert rows_read(data_source(tmp_path, **options)) == 400
    wanted = of_range(T0 + 95 * SECOND, T0 + 121 * SECOND)
    # The row groups with the seconds 90 to 99, and 100 to 129.
    assert rows_read(data_source(tmp_path, **options, **wanted)) == 40
    assert rows_read(data_source(tmp_path, **options, **of_range(T0 + 400 * SECOND, None))) == 0
    found = read_batch(tmp_path, **options, **wanted).column("ts").cast(pa.int64()).to_numpy()
    assert sorted(found.tolist()) == list(range(T0 + 95 * SECOND, T0 + 121 * SECOND, SECOND))


@pytest.mark.parametrize("split_by", ["file", "directory"])
def test_a_pattern_in_the_path_chooses_directories_by_their_columns_and_opens_no_other(
    tmp_path: Path, split_by: str
) -> None:
    for day in range(1, 6):
        write_file(tmp_path / f"day={day}" / "f.parquet", T0 + (day * 100 + np.arange(10)) * SECOND)
    options = {"eventTimeColumn": "ts", "splitBy": split_by}
    everything = read_batch(tmp_path, **options).select(["ts", "day"]).to_pylist()
    for day in (1, 4, 5):
        (tmp_path / f"day={day}" / "f.parquet").write_bytes(b"no Parquet")
    found = read_batch(tmp_path / "day=[23]", **options).select(["ts", "day"]).to_pylist()
    assert len(found) == 20
    assert sorted(found, key=str) == sorted((row for row in everything if row["day"] in (2, 3)), key=str)


def test_a_record_outside_is_not_invalid_and_one_without_an_event_time_is_not_outside(tmp_path: Path) -> None:
    future = 7_000_000_000 * SECOND
    write_file(tmp_path / "a.parquet", [T0, T0 + SECOND, future])
    write_file(tmp_path / "b.parquet", [T0 + SECOND, None])
    options = {"eventTimeColumn": "ts", "maxFutureSkew": "1 day", **of_range(None, T0 + SECOND)}
    found = read_batch(tmp_path, **options, invalidTimestamp="null").column("ts").cast(pa.int64()).to_pylist()
    assert found == [T0, None]
    # As without the range: the file's record of the year 2191 is not there for it.
    with pytest.raises(Exception, match=r"no valid event time in ts = None"):
        read_batch(tmp_path, **options)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"eventTimeFrom": "noon"}, "option eventTimeFrom = 'noon': must be a time such as 2024-01-31T10:00:00Z"),
        ({"overlap": "keep"}, "option overlap = 'keep' is for records outside of a range .*; give eventTimeFrom or"),
        ({"eventTimeUntil": "2024-01-01", "timeZone": "UTC", "overlap": "no"}, "option overlap = 'no'"),
        ({"eventTimeUntil": "2024-13-01"}, "option eventTimeUntil = '2024-13-01': must be a time"),
        (
            {"eventTimeFrom": "2024-01-02", "eventTimeUntil": "2024-01-02T00:00:00Z", "timeZone": "UTC"},
            "no event time lies between them; let the second be later",
        ),
    ],
)
def test_what_is_no_range_is_refused(tmp_path: Path, options: dict[str, str], error: str) -> None:
    with pytest.raises(OptionError, match=error):
        data_source(tmp_path, eventTimeColumn="ts", **options)


@pytest.mark.parametrize(
    ("text", "hour"),
    [
        ("2024-07-01", -2),
        ("2024-07-01 10:00", 8),
        ("2024-07-01T10:00:00.000000", 8),
        ("2024-07-01T10:00:00Z", 10),
        ("2024-07-01 10:00:00+05:30", 4.5),
    ],
)
def test_a_bound_without_a_zone_is_in_that_of_times_without_one(tmp_path: Path, text: str, hour: float) -> None:
    of_option = data_source(tmp_path, eventTimeColumn="ts", eventTimeFrom=text, timeZone="Europe/Berlin").options.times
    assert of_option.from_us == round((1_719_792_000 + hour * 3600) * SECOND)
    has_zone = text.endswith(("Z", "+05:30"))
    given = {"path": str(tmp_path), "eventTimeColumn": "ts", "eventTimeFrom": text}
    if has_zone:
        AlignedDataSource.of_format("aligned_files", given, zone=None)
    else:
        with pytest.raises(OptionError, match=r"has no zone.*write it with one, as in 2024-01-31T10:00:00Z, or add"):
            AlignedDataSource.of_format("aligned_files", given, zone=None)


# ---- streams -----------------------------------------------------------------------------------------------------


class ModelOfLate:
    """Counts, record by record, what a stream of a range must emit and mark: it knows no index and skips nothing."""

    def __init__(self, first: int | None, until: int | None, overlap: str) -> None:
        self.first, self.until, self.keeps = first, until, overlap == "keep"
        self.announced: int | None = None

    def check(self, table: pa.Table, offset: dict[str, Any], name: str) -> list[int | None]:
        times = table.column(name).cast(pa.int64()).to_pylist()
        assert self.keeps or all(is_within(time, self.first, self.until) for time in times)
        late = [time is not None and self.announced is not None and time <= self.announced for time in times]
        assert table.column("_late").to_pylist() == late
        self.announced = offset["watermark"]
        return times


@settings(
    max_examples=examples(25),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    deadline=None,
)
@given(
    bounds=st.tuples(TIMES, TIMES),
    split_by=st.sampled_from(["file", "directory"]),
    max_rows=st.lists(st.none() | st.integers(1, 30), min_size=1, max_size=5),
    out_of_orderness=st.sampled_from([0, 1, 5]),
    restarts=st.sets(st.integers(0, 40)),
    overlap=st.sampled_from(["drop", "keep"]),
)
def test_a_stream_has_the_records_of_the_range_once_in_every_format_and_counts_the_others(
    written: tuple[Path, Sample],
    bounds: tuple[int | None, int | None],
    split_by: str,
    max_rows: list[int | None],
    out_of_orderness: int,
    restarts: set[int],
    overlap: str,
) -> None:
    root, sample = written
    first, until = bounds
    if first is not None and until is not None:
        first, until = min(first, until), max(first, until) + SECOND
    options = {**sample.options, "eventTimeColumn": sample.time, "splitBy": split_by, "timeZone": "UTC"}
    options |= {"invalidTimestamp": "null", "maxOutOfOrderness": f"{out_of_orderness} seconds"}
    if sample.needs_schema:
        options["dataSchema"] = DDL
    name = "event_time" if sample.time != "t" else "t"
    everything = read_batch(root, **options).column(name).cast(pa.int64()).to_pylist()
    options |= {"includeMetadata": "true", "bounded": "true", "watermarkRows": "true", **of_range(first, until)}
    options |= {"overlap": overlap} if (first, until) != (None, None) else {}
    begun, found, batches = Reading(stream_reader(root, **options)), [], 0
    model, expected = ModelOfLate(first, until, overlap), [t for t in everything if is_within(t, first, until)]
    try:
        while batches < 200:
            start = begun.offset
            table = begun.next(max_rows[batches % len(max_rows)])
            if table is None:
                break
            rows = table.filter(pc.is_valid(table["_split"]))
            if batches in restarts:
                # The micro-batch fails, and is read again by a new planner.
                again = Reading(stream_reader(root, **options))
                begun.reader.stop()
                again.offset = begun.offset
                table = again.between(start, begun.offset)
                assert by_position(table.filter(pc.is_valid(table["_split"]))) == by_position(rows)
                begun = again
            found += model.check(rows, begun.offset, name)
            batches += 1
    finally:
        begun.reader.stop()
    assert sorted(found, key=str) == sorted(everything if overlap == "keep" else expected, key=str)
    assert begun.offset.get("out_of_range", 0) == len(everything) - len(expected)
    # 3999-12-31, where watermarks end: the source lets go.
    assert begun.offset["watermark"] == 2**63 - 1
    if out_of_orderness == 5:
        assert sum(entry[3] for entry in begun.offset["splits"] if len(entry) > 3) == 0


def by_position(table: pa.Table) -> list[tuple[Any, ...]]:
    return sorted(zip(table["_split"].to_pylist(), table["_position"].to_pylist(), strict=True))


def test_what_lies_before_and_behind_the_range_takes_no_room_of_a_read_limit(tmp_path: Path) -> None:
    for number in range(4):
        write_file(tmp_path / f"f{number}.parquet", T0 + (number * 100 + np.arange(100)) * SECOND, row_group_size=10)
    for split_by in ("file", "directory"):
        options = {"eventTimeColumn": "ts", "splitBy": split_by, "bounded": "true"}
        reader = stream_reader(tmp_path, **options, **of_range(T0 + 190 * SECOND, T0 + 210 * SECOND))
        begun, read = Reading(reader), []
        while (table := begun.next(max_rows=7)) is not None:
            read.append(table.num_rows)
        reader.stop()
        assert sum(read) == 20
        assert len(read) <= 6, read


def test_records_outside_of_the_range_are_not_late_and_move_the_watermark_behind_it_only(tmp_path: Path) -> None:
    """Live: a file that comes with records before the range makes none late; one behind it lets the watermark go."""
    options = {"eventTimeColumn": "ts", "splitBy": "directory", "late": "drop", "idleTimeout": "none"}
    options |= {"watermarkRows": "true", **of_range(T0 + 100 * SECOND, T0 + 200 * SECOND)}
    write_file(tmp_path / "f0.parquet", [T0, T0 + 99 * SECOND])
    begun = Reading(stream_reader(tmp_path, **options))

    def step() -> tuple[list[int], int | None]:
        table = begun.next()
        rows = [] if table is None else table.column("ts").cast(pa.int64()).to_pylist()
        return [us for us in rows if us < T0 + 10_000 * SECOND], begun.offset["watermark"]

    try:
        assert step() == ([], None)
        write_file(tmp_path / "f1.parquet", [T0 + 150 * SECOND])
        assert step() == ([T0 + 150 * SECOND], T0 + 150 * SECOND - 1)
        write_file(tmp_path / "f2.parquet", [T0 + 120 * SECOND, T0 + 50 * SECOND])
        assert step() == ([], T0 + 150 * SECOND - 1)
        write_file(tmp_path / "f3.parquet", [T0 + 200 * SECOND, T0 + 160 * SECOND, T0 + 130 * SECOND])
        assert step() == ([T0 + 160 * SECOND], T0 + 200 * SECOND - 1)
        write_file(tmp_path / "f4.parquet", [T0 + 199 * SECOND, T0 + 300 * SECOND, T0 + 250 * SECOND])
        assert step() == ([], T0 + 300 * SECOND - 1)
    finally:
        begun.reader.stop()
    # 120 s, 130 s and 199 s: the records outside of the range that are behind the watermark are none of them.
    (entry,) = begun.offset["splits"]
    assert entry[3] == 3


def test_another_range_is_refused_at_a_restart(tmp_path: Path) -> None:
    write_file(tmp_path / "f0.parquet", [T0, T0 + SECOND])
    begun = Reading(stream_reader(tmp_path, eventTimeColumn="ts", eventTimeUntil="2024-01-01T00:00:00Z"))
    begun.next()
    begun.reader.stop()
    for other in ({}, {"eventTimeUntil": "2024-01-02T00:00:00Z"}, {"eventTimeFrom": "2023-01-01T00:00:00Z"}):
        again = Reading(stream_reader(tmp_path, eventTimeColumn="ts", **other))
        again.offset = begun.offset
        with pytest.raises(
            OffsetError, match=r"option eventTime\w+ is .* were passed by, .* use a new checkpointLocation"
        ):
            again.next()
        again.reader.stop()
    # The same moment, written otherwise.
    again = Reading(stream_reader(tmp_path, eventTimeColumn="ts", eventTimeUntil="2024-01-01 01:00:00+01:00"))
    again.offset = begun.offset
    again.next()
    again.reader.stop()


@pytest.mark.parametrize("split_by", ["file", "directory"])
def test_records_outside_fail_before_they_are_read_where_statistics_show_them(tmp_path: Path, split_by: str) -> None:
    """Of a row group that is partly outside the task fails, before it has handed on any of it."""
    write_file(tmp_path / "f0.parquet", T0 + np.arange(100) * SECOND, row_group_size=10)
    options = {"eventTimeColumn": "ts", "splitBy": split_by, "overlap": "fail", "bounded": "true"}
    begun = Reading(stream_reader(tmp_path, **options, **of_range(T0, T0 + 85 * SECOND)))
    with pytest.raises(OutOfRangeError, match=r"split '.*', 10 records from .* event time \S+ to \S+ is outside"):
        begun.next()
    begun.reader.stop()
    begun = Reading(stream_reader(tmp_path, **options, **of_range(T0, T0 + 95 * SECOND)))
    with pytest.raises(
        OutOfRangeError,
        match=r"split '.*', position 95: event time \S+ is outside of eventTimeFrom = \S+ and eventTimeUntil = \S+, "
        r"and option overlap is 'fail'; leave such records to another source with overlap = drop, or",
    ):
        begun.next()
    begun.reader.stop()
    inside = Reading(stream_reader(tmp_path, **options, **of_range(T0, T0 + 100 * SECOND)))
    table = inside.next()
    inside.reader.stop()
    assert table is not None
    assert table.num_rows == 100


def test_kept_records_can_be_late_and_hold_the_watermark_as_others(tmp_path: Path) -> None:
    options = {"eventTimeColumn": "ts", "splitBy": "directory", "includeMetadata": "true", "idleTimeout": "none"}
    options |= {"overlap": "keep", **of_range(T0 + 100 * SECOND, T0 + 200 * SECOND)}
    write_file(tmp_path / "f0.parquet", [T0])
    begun = Reading(stream_reader(tmp_path, **options, maxOutOfOrderness="0 seconds"))
    try:
        begun.next()
        assert begun.offset["watermark"] == T0 - 1
        write_file(tmp_path / "f1.parquet", [T0 + 300 * SECOND])
        begun.next()
        write_file(tmp_path / "f2.parquet", [T0 + 250 * SECOND, T0 + 150 * SECOND])
        table = begun.next()
    finally:
        begun.reader.stop()
    assert table is not None
    assert table["_late"].to_pylist() == [True, True]
    assert begun.offset["out_of_range"] == 3
    assert begun.offset["splits"][0][3] == 2


def test_keep_neither_begins_nor_ends_at_a_restart_and_fail_may(tmp_path: Path) -> None:
    write_file(tmp_path / "f0.parquet", [T0, T0 + SECOND])
    given = {"eventTimeColumn": "ts", **of_range(T0, T0 + 10 * SECOND)}
    for before, after in (("drop", "keep"), ("keep", "drop"), ("fail", "keep"), ("drop", "fail"), ("fail", "drop")):
        begun = Reading(stream_reader(tmp_path, **given, overlap=before))
        begun.next()
        begun.reader.stop()
        again = Reading(stream_reader(tmp_path, **given, overlap=after))
        again.offset = begun.offset
        refused = pytest.raises(
            OffsetError, match=r"option overlap is .* were (handed|passed).*; give it as it was, or use"
        )
        with refused if "keep" in (before, after) else nullcontext():
            again.next()
        again.reader.stop()


def test_files_that_would_be_removed_unread_are_refused(tmp_path: Path) -> None:
    write_file(tmp_path / "f0.parquet", [T0])
    with pytest.raises(OptionError, match=r"with cleanSource .* leave cleanSource out, or the range"):
        stream_reader(tmp_path, eventTimeColumn="ts", cleanSource="delete", **of_range(T0, None))


def test_generated_records_of_a_range_come_once_in_a_stream() -> None:
    """A source with a formula for an index, and no way to leave records out: the readers choose."""
    given = {"rowsPerSplit": "100", "rowsPerSecond": "1", "splits": "2", "bounded": "true", "eventTimeColumn": "ts"}
    given["startTime"] = format_timestamp(T0)
    times: dict[bool, list[int]] = {}
    for bounds in ({}, of_range(T0 + 20 * SECOND, T0 + 60 * SECOND)):
        source = AlignedDataSource.of_format("aligned_datagen", {**given, **bounds})
        begun, found = Reading(source.stream_reader(source.schema())), []
        while (table := begun.next(max_rows=30)) is not None:
            found += table.column("ts").cast(pa.int64()).to_pylist()
        begun.reader.stop()
        times[bool(bounds)] = sorted(found)
    assert 0 < len(times[True]) < len(times[False])
    assert times[True] == [us for us in times[False] if T0 + 20 * SECOND <= us < T0 + 60 * SECOND]


# ---- on Spark --------------------------------------------------------------------------------------------------------


@pytest.mark.spark
def test_files_outside_are_not_read_by_spark(spark: SparkSession, tmp_path: Path) -> None:
    for number in range(3):
        write_file(tmp_path / "in" / f"f{number}.parquet", T0 + (number * 100 + np.arange(100)) * SECOND)
    reader = spark.read.format("aligned_files").options(eventTimeColumn="ts", **of_range(T0 + 90 * SECOND, None))
    reader = reader.options(**of_range(None, T0 + 150 * SECOND))
    frame, everything = reader.load(str(tmp_path / "in")), spark.read.parquet(str(tmp_path / "in"))
    wanted = everything.where(F.unix_micros("ts").between(T0 + 90 * SECOND, T0 + 150 * SECOND - 1))
    expected = sorted(wanted.select("ts", "k", "s").collect())
    assert len(expected) == 60
    assert sorted(frame.select("ts", "k", "s").collect()) == expected
    # Nothing is left of the third file but the footer, which has its bounds.
    damaged = tmp_path / "in" / "f2.parquet"
    content = damaged.read_bytes()
    footer = 8 + int.from_bytes(content[-8:-4], "little")
    damaged.write_bytes(b"PAR1" + b"\0" * (len(content) - 4 - footer) + content[-footer:])
    assert sorted(reader.load(str(tmp_path / "in")).select("ts", "k", "s").collect()) == expected
    with pytest.raises(Exception, match=r"f2\.parquet"):
        spark.read.format("aligned_files").option("eventTimeColumn", "ts").load(str(tmp_path / "in")).count()


@pytest.mark.soak
@pytest.mark.spark
def test_spark_has_what_is_outside_dropped_kept_or_refused_and_its_number(spark: SparkSession, tmp_path: Path) -> None:
    """Of 300 records 90 are before the range and 140 behind it."""
    for number in range(3):
        write_file(tmp_path / "in" / f"f{number}.parquet", T0 + (number * 100 + np.arange(100)) * SECOND)
    given = {"eventTimeColumn": "ts", "bounded": "true", **of_range(T0 + 90 * SECOND, T0 + 160 * SECOND)}

    def run(overlap: str) -> tuple[list[int], dict[str, Any]]:
        frame = read_stream(spark).format("aligned_files").options(**given, overlap=overlap).load(str(tmp_path / "in"))
        out = tmp_path / f"out-{overlap}"
        writer = frame.select(F.unix_micros("ts").alias("us")).writeStream.format("parquet").trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(tmp_path / f"cp-{overlap}")).start(str(out))
        query.awaitTermination()
        assert query.lastProgress is not None
        (source,) = query.lastProgress["sources"]
        explained = " ".join(str(explain(query)).split())
        assert "230 records lie outside of the range of event times (option overlap)." in explained
        metrics = json.loads(source["latestOffset"])["metrics"]
        return sorted(row.us for row in spark.read.parquet(str(out)).collect()), metrics

    rows, metrics = run("drop")
    assert rows == [T0 + s * SECOND for s in range(90, 160)]
    assert metrics["outOfRangeRecords"] == "230"
    rows, metrics = run("keep")
    assert rows == [T0 + s * SECOND for s in range(300)]
    assert metrics["outOfRangeRecords"] == "230"
    with pytest.raises(
        StreamingQueryException, match=r"(?s)split '.*', 100 records from .* option\s+overlap\s+is 'fail'"
    ):
        run("fail")


def test_late_records_of_a_range_are_routed_and_others_outside_of_it_are_not(tmp_path: Path) -> None:
    options = {"splitBy": "directory", "late": "route", "maxOutOfOrderness": "0 seconds"}
    options |= {"lateLocation": str(tmp_path / "log"), **of_range(T0 + 100 * SECOND, T0 + 200 * SECOND)}

    def seconds(twin: Twin) -> list[int]:
        return [(us - T0) // SECOND for (us,) in twin.run().rows]

    # Before the range, in it, and behind it; then the same again, below the watermark by now, and one that is not.
    write_file(tmp_path / "in" / "f0.parquet", T0 + np.array([10, 150, 210]) * SECOND)
    kept = Twin(tmp_path / "cp-kept", frame(tmp_path / "in", **options), answer=Rows("ts"))
    assert seconds(kept) == [150]
    write_file(tmp_path / "in" / "f1.parquet", T0 + np.array([20, 120, 205, 160, 300]) * SECOND)
    assert seconds(kept) == [150]
    of_late = plain_frame(tmp_path / "in", 0, lateRecordsOf=tmp_path / "cp-kept", **options)
    assert seconds(Twin(tmp_path / "cp-late", of_late, answer=Rows("ts"))) == [120, 160]


@pytest.mark.spark
def test_generated_records_and_those_of_a_source_are_chosen_too(spark: SparkSession) -> None:
    source = DataGeneratorSource(splits=2, rows_per_split=100, bounded=True)
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("1 minute").with_timestamp_assigner("ts")

    def times(**options: Any) -> list[int]:
        frame = from_source(spark, source, strategy, "generated", batch=True, **options)
        return sorted(us for (us,) in frame.select(F.unix_micros("ts")).collect())

    everything = times()
    middle, last = everything[60], everything[150]
    chosen = times(event_time_from=format_timestamp(middle), event_time_until=format_timestamp(last))
    assert 0 < len(chosen) < len(everything) == 200
    assert chosen == [us for us in everything if middle <= us < last]


def test_a_query_over_a_range_counts_what_a_batch_over_it_counts(tmp_path: Path) -> None:
    """Windows over a skewed directory: the records before and behind the range close no window and are in none."""
    rng, written = np.random.default_rng(11), []
    for number in range(4):
        times = T0 + (number * 900 + np.arange(1200) + rng.integers(-3, 4, 1200)) * SECOND
        write_file(tmp_path / "in" / f"f{number}.parquet", times, "s", row_group_size=100)
        written.append(times)
    first, until = T0 + 700 * SECOND, T0 + 2500 * SECOND
    options = {"maxOutOfOrderness": "7 seconds", "bounded": "true", "maxRowsPerTrigger": "500"}
    loaded = frame(tmp_path / "in", **options, **of_range(first, until))
    everything = np.concatenate(written)
    wanted = everything[(first <= everything) & (everything < until)]
    assert Twin(tmp_path / "cp", loaded, answer=Windows()).run().rows == naive_windows({"s": wanted})


class Shared(DataSource):
    """One record, `t` = 5; `planned` has the filters that its plan was made with."""

    @classmethod
    def name(cls) -> str:
        return "shared_plan"

    def schema(self) -> str:
        return "t int, planned string"

    def reader(self, schema: StructType) -> DataSourceReader:
        class Reader(DataSourceReader):
            filters = ""

            def pushFilters(self, filters: list[Filter]) -> list[Filter]:
                self.filters = ", ".join(map(str, filters))
                return filters

            def partitions(self) -> list[InputPartition]:
                return [InputPartition(self.filters)]

            def read(self, partition: InputPartition) -> Iterator[tuple[int, str]]:
                yield 5, str(partition.value)

        return Reader()


@pytest.mark.soak
@pytest.mark.spark
def test_filters_of_spark_prune_nothing_because_spark_gives_all_reads_of_a_frame_one_plan(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A source that pruned by its filters would lose rows of every other read. Should it fail, Spark was mended."""
    write_file(tmp_path / "day=1" / "f.parquet", T0 + np.arange(10) * SECOND)
    write_file(tmp_path / "day=2" / "f.parquet", T0 + np.arange(10, 30) * SECOND)
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        spark.dataSource.register(Shared)
        shared = spark.read.format("shared_plan").load()
        (filtered,) = shared.where("t > 3").collect()
        assert "GreaterThan(attribute=('t',), value=3)" in filtered.planned
        # Nothing was filtered here.
        assert shared.collect() == [filtered]
        both = shared.where("t > 4").union(shared.where("t < 9")).select("planned").distinct().collect()
        assert len(both) == 1
        frame = spark.read.format("aligned_files").option("eventTimeColumn", "ts").load(str(tmp_path))
        early, one_day = frame.where(F.unix_micros("ts") < T0 + 5 * SECOND), frame.where("day = 1")
        at = f"timestamp_micros({T0 + 5 * SECOND})"
        assert (frame.where(f"ts < {at}").count(), early.count(), one_day.count(), frame.count()) == (5, 5, 10, 30)
        assert frame.where(f"ts < {at}").union(frame.where("day = 2")).union(frame).count() == 55
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
