"""Directories and files as splits: what is found, in which order, with which columns, and what is refused."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from collections import deque
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import orc
from pyspark.sql.types import IntegerType, LongType, StringType, StructType, TimestampType

from streaming_source.connectors.files import FileSource, finite
from streaming_source.connectors.files.listing import Lister
from streaming_source.data_files.file import DataFile, FileBlocks
from streaming_source.data_files.ranges import FileLog, LoggedFile, cut_ranges
from streaming_source.exceptions import (
    DataLossError,
    MalformedDataError,
    OffsetError,
    OptionError,
    PathNotFoundError,
    SchemaError,
)
from streaming_source.spark.before_4_2 import ReadMaxRows
from tests.spark.reading import (
    SECOND,
    T0,
    Reading,
    data_source,
    micros,
    put,
    read_all,
    read_batch,
    stamps,
    stream_reader,
)


def places(table: pa.Table) -> list[tuple[str, int]]:
    return list(zip(table.column("_split").to_pylist(), table.column("_position").to_pylist(), strict=True))


@pytest.mark.parametrize("readers", [1, 3])
def test_the_metadata_tell_the_split_and_the_number_of_the_record_in_it(tmp_path: Path, readers: int) -> None:
    for split in ("b", "a"):
        for file in range(3):
            table = {"t": stamps(*range(file * 5, file * 5 + 5)), "n": range(file * 5, file * 5 + 5)}
            put(tmp_path / split / f"f{file}.parquet", {**table, "n": list(table["n"])}, row_group_size=2)
    table = read_all(tmp_path, eventTimeColumn="t", includeMetadata="true", numReaders=readers)
    assert table.schema.names[-4:] == ["_split", "_position", "_source_timestamp", "_late"]
    assert sorted(places(table)) == [(split, i) for split in "ab" for i in range(15)]
    assert table.column("_position").to_pylist() == table.column("n").to_pylist()
    assert table.column("_source_timestamp").null_count == 30
    by_file = read_all(tmp_path, eventTimeColumn="t", includeMetadata="true", splitBy="file")
    assert sorted(places(by_file)) == [(f"{s}/f{f}.parquet", i) for s in "ab" for f in range(3) for i in range(5)]


def test_nested_directories_are_splits_of_their_own_and_files_at_the_root_are_one(tmp_path: Path) -> None:
    for place in ("f.parquet", "x/f.parquet", "x/y/f.parquet", "x/z=1/f.parquet"):
        put(tmp_path / place, {"t": stamps(0)})
    table = read_all(tmp_path, eventTimeColumn="t", includeMetadata="true", recursiveFileLookup="true")
    assert sorted(table.column("_split").to_pylist()) == [".", "x", "x/y", "x/z=1"]


def test_hidden_files_and_directories_are_not_read(tmp_path: Path) -> None:
    put(tmp_path / "a" / "f.parquet", {"t": stamps(0)})
    (tmp_path / "a" / "_SUCCESS").touch()
    (tmp_path / "a" / ".f.parquet.crc").write_bytes(b"crc")
    put(tmp_path / "_temporary" / "0" / "g.parquet", {"t": stamps(0)})
    put(tmp_path / "a" / "_g.parquet", {"t": stamps(0)})
    for split_by in ("directory", "file"):
        assert len(read_all(tmp_path, eventTimeColumn="t", splitBy=split_by)) == 1
        assert len(read_batch(tmp_path, eventTimeColumn="t", splitBy=split_by)) == 1


def test_a_path_may_hold_what_a_uri_would_have_to_escape(tmp_path: Path) -> None:
    root = tmp_path / "sp ace#?%41é"
    put(root / "a b" / "f%20.parquet", {"t": stamps(0)})
    assert len(read_all(root, eventTimeColumn="t")) == 1
    assert len(read_all(f"{root}/", eventTimeColumn="t")) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="its file systems take names alone that are UTF-8")
def test_a_name_that_is_not_utf_8_is_shown(tmp_path: Path) -> None:
    put(tmp_path / "f.parquet", {"t": stamps(1)}).rename(os.fsdecode(bytes(tmp_path) + b"/\xff.parquet"))
    with pytest.raises(MalformedDataError, match=r"has a file whose name is not UTF-8: .*xff.*; rename it, or move it"):
        read_all(tmp_path, eventTimeColumn="t")


def test_a_file_uri_is_a_path(tmp_path: Path) -> None:
    put(tmp_path / "a" / "f.parquet", {"t": stamps(0)})
    assert len(read_all(f"file://{tmp_path}", eventTimeColumn="t")) == 1
    with pytest.raises(PathNotFoundError, match=r"cannot be opened as a file system.*gopher"):
        stream_reader("gopher://host/x", eventTimeColumn="t")


@pytest.mark.parametrize("name", ["f.parquet", "_f", "part [1]"])
@pytest.mark.parametrize("split_by", ["directory", "file"])
def test_a_path_may_be_one_file(tmp_path: Path, name: str, split_by: str) -> None:
    put(tmp_path / "k=1" / name, {"t": stamps(0), "n": [0]})
    put(tmp_path / "k=1" / "other", {"t": stamps(1), "n": [1]})
    for read in (read_all, read_batch):
        table = read(tmp_path / "k=1" / name, eventTimeColumn="t", splitBy=split_by)
        # As in Spark, names of directories are columns below the path alone.
        assert table.to_pydict()["n"] == [0]
        assert "k" not in table.schema.names


def test_files_and_row_groups_without_rows_are_no_trouble(tmp_path: Path) -> None:
    nothing, some = pa.table({"t": stamps()}), pa.table({"t": stamps(0, 1)})
    put(tmp_path / "a" / "f0.parquet", nothing)
    with pq.ParquetWriter(tmp_path / "a" / "f1.parquet", some.schema) as writer:
        for part in (nothing, some, nothing, some, nothing):
            writer.write_table(part)
    put(tmp_path / "a" / "f2.parquet", nothing)
    put(tmp_path / "b" / "f0.parquet", nothing)
    for split_by in ("directory", "file"):
        options = {"eventTimeColumn": "t", "splitBy": split_by, "includeMetadata": "true", "maxOutOfOrderness": "1 s"}
        assert micros(read_all(tmp_path, **options)) == [T0, T0 + SECOND] * 2
        assert read_all(tmp_path, **options).column("_position").to_pylist() == [0, 1, 2, 3]
        one_by_one = Reading(stream_reader(tmp_path, bounded="true", maxRowsPerTrigger=1, **options))
        read = [table for _ in range(9) if (table := one_by_one.next()) is not None]
        assert [row for table in read for row in table.column("_position").to_pylist()] == [0, 1, 2, 3]
        assert all(len(entry) == 3 and entry[2] == "finished" for entry in one_by_one.offset["splits"])
        one_by_one.reader.stop()


def test_an_empty_directory_holds_the_watermark_until_it_has_records_or_is_idle(tmp_path: Path) -> None:
    put(tmp_path / "a" / "f.parquet", {"t": stamps(0, 10)})
    (tmp_path / "b").mkdir()
    options = {"eventTimeColumn": "t", "watermarkRows": "true", "discoveryInterval": "5 ms"}
    reading = Reading(stream_reader(tmp_path, idleTimeout="none", **options))
    table = reading.next()
    assert table is not None
    assert micros(table) == [T0, T0 + 10 * SECOND]
    assert reading.offset["watermark"] is None
    put(tmp_path / "b" / "f.parquet", {"t": stamps(4, 5)})
    wait_for_news(reading)
    assert reading.offset["watermark"] == T0 + 5 * SECOND - 1
    reading.reader.stop()
    # A bounded source knows that nothing will come.
    (tmp_path / "c").mkdir()
    bounded = Reading(stream_reader(tmp_path, bounded="true", **options))
    bounded.next()
    assert bounded.offset["watermark"] == 2**63 - 1
    bounded.reader.stop()


def wait_for_news(reading: Reading) -> pa.Table:
    limit = time.monotonic() + 30
    while (table := reading.next()) is None:
        assert time.monotonic() < limit, "nothing was found in 30 s"
        time.sleep(0.002)
    return table


def test_a_schema_of_the_users_own_is_a_projection(tmp_path: Path) -> None:
    table = {
        "t": stamps(0, 1),
        "k": pa.array([1, 2], pa.int32()),
        "wide": ["x", "y"],
        "odd": pa.array([1.0, 2.0], pa.float16()),
    }
    put(tmp_path / "a" / "f.parquet", table)
    wanted = StructType().add("k", LongType()).add("event_time", TimestampType()).add("_split", StringType())
    read = read_all(tmp_path, wanted, eventTimeColumn="t")
    assert read.to_pydict()["k"] == [1, 2]
    assert read.schema.names == ["k", "event_time", "_split"]
    assert read.column("_split").to_pylist() == ["a", "a"]
    assert read_batch(tmp_path, wanted, eventTimeColumn="t").num_rows == 2
    with pytest.raises(SchemaError, match=r"columns \['nope'\] are in the schema, but the data has t, k, wide, odd"):
        read_all(tmp_path, StructType().add("nope", StringType()), eventTimeColumn="t")
    with pytest.raises(SchemaError, match="column 'wide' of type string does not fit int32"):
        read_all(
            tmp_path, StructType().add("wide", IntegerType()).add("event_time", TimestampType()), eventTimeColumn="t"
        )
    # Of a type that Spark has not, the message names the way out.
    with pytest.raises(
        SchemaError, match=r"column 'odd' has type halffloat, which Spark does not have: .* Give readStream a schema"
    ):
        data_source(tmp_path, eventTimeColumn="t").schema()


def test_a_column_twice_in_a_file_is_refused(tmp_path: Path) -> None:
    twice = pa.Table.from_arrays([stamps(0), pa.array([1]), pa.array([2])], names=["t", "k", "k"])
    (tmp_path / "a").mkdir()
    pq.write_table(twice, tmp_path / "a" / "f.parquet")
    with pytest.raises(SchemaError, match="more than one column of the name 'k'"):
        stream_reader(tmp_path, eventTimeColumn="t")


def test_a_file_that_breaks_in_its_middle_is_named_by_whoever_reads_it(tmp_path: Path) -> None:
    path = put(tmp_path / "a" / "f.parquet", {"t": stamps(*range(3000)), "k": list(range(3000))}, compression="none")
    data = path.read_bytes()
    path.write_bytes(data[:4] + b"\xff" * 200 + data[204:])
    broken = r"a/f.parquet: cannot be read as parquet after row 0"
    with pytest.raises(MalformedDataError, match=broken):
        read_all(tmp_path, eventTimeColumn="t", indexing="scan")
    with pytest.raises(MalformedDataError, match=broken):
        read_all(tmp_path, eventTimeColumn="t")
    with pytest.raises(MalformedDataError, match=broken):
        Reading(stream_reader(tmp_path, eventTimeColumn="t", maxRowsPerTrigger=10)).next()


def test_a_file_that_was_replaced_by_a_shorter_one_after_planning_is_told(tmp_path: Path) -> None:
    path = put(tmp_path / "a" / "f.parquet", {"t": stamps(*range(10))})
    reading = Reading(stream_reader(tmp_path, eventTimeColumn="t", watermarkRows="true"))
    end = reading.reader.latestOffset(reading.offset, reading.reader.getDefaultReadLimit())
    put(path, {"t": stamps(0, 1)})
    with pytest.raises(
        DataLossError,
        match=r"f.parquet has \d+ bytes, and had \d+ when its records were planned",
    ):
        reading.between(reading.offset, end)
    reading.reader.stop()


@pytest.mark.parametrize("split_by", ["directory", "file"])
def test_any_two_offsets_give_the_same_rows_to_a_reader_that_has_planned_nothing(tmp_path: Path, split_by: str) -> None:
    rng = np.random.default_rng(5)
    for split in "abc":
        for file in range(3):
            rising = np.sort(rng.integers(0, 500, 20)) + file * 500
            put(tmp_path / split / f"f{file}.parquet", {"t": stamps(*rising.tolist())}, row_group_size=7)
    options = {"eventTimeColumn": "t", "splitBy": split_by, "includeMetadata": "true", "bounded": "true"}
    reading = Reading(stream_reader(tmp_path, **options))
    offsets, tables = [reading.offset], []
    while (table := reading.next(max_rows=37)) is not None:
        offsets.append(reading.offset)
        tables.append(table)
    assert sum(map(len, tables)) == 180
    for start, end, table in zip(offsets, offsets[1:], tables, strict=False):
        assert Reading(stream_reader(tmp_path, **options)).between(start, end) == table
    reading.reader.stop()


def test_a_look_with_nothing_new_gives_the_very_same_offset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listings: list[int] = []
    listed = Lister.list_changed
    monkeypatch.setattr(Lister, "list_changed", lambda lister: (listings.append(1), listed(lister))[-1])
    put(tmp_path / "a" / "f.parquet", {"t": stamps(0, 1)})
    reading = Reading(stream_reader(tmp_path, eventTimeColumn="t", watermarkRows="true", discoveryInterval="1 ms"))
    reading.next()
    before = reading.offset
    until = len(listings) + 20
    while len(listings) < until:
        assert reading.reader.latestOffset(before, reading.reader.getDefaultReadLimit()) is before
    reading.reader.stop()


def test_a_split_that_is_gone_at_a_restart_is_told_where_nothing_could_be_added_to_it(tmp_path: Path) -> None:
    for split in "ab":
        put(tmp_path / split / "f.parquet", {"t": stamps(*range(10))})
    options = {"eventTimeColumn": "t", "splitBy": "file", "watermarkRows": "true"}
    reading = Reading(stream_reader(tmp_path, **options))
    reading.next(max_rows=8)
    reading.reader.stop()
    (tmp_path / "b" / "f.parquet").unlink()
    again = stream_reader(tmp_path, **options)
    with pytest.raises(DataLossError, match=r"b/f.parquet is gone, and only the records .* before position 4 were"):
        again.latestOffset(reading.offset, again.getDefaultReadLimit())
    again.stop()


def test_a_planned_batch_whose_file_is_gone_fails_and_says_which(tmp_path: Path) -> None:
    for split in "ab":
        put(tmp_path / split / "1.parquet", {"t": stamps(*range(10))})
    reading = Reading(stream_reader(tmp_path, eventTimeColumn="t", splitBy="directory"))
    start = reading.offset
    reading.next()
    reading.reader.stop()
    (tmp_path / "b" / "1.parquet").unlink()
    again = stream_reader(tmp_path, eventTimeColumn="t", splitBy="directory")
    with pytest.raises(DataLossError, match=r"split 'b' has changed: the records 0 to 10 that were planned"):
        again.partitions(start, reading.offset)
    again.stop()


@pytest.mark.parametrize(("read", "lost"), [(8, True), (10, False)])
def test_a_file_of_a_log_may_go_once_it_is_read_and_not_before(tmp_path: Path, read: int, lost: bool) -> None:
    put(tmp_path / "log" / "1.parquet", {"t": stamps(*range(10))})
    options = {"eventTimeColumn": "t", "includeMetadata": "true", "maxDrift": "1 hour"}
    reading = Reading(stream_reader(tmp_path, **options))
    reading.next(max_rows=read)
    reading.reader.stop()
    put(tmp_path / "log" / "2.parquet", {"t": stamps(*range(10, 15))})
    (tmp_path / "log" / "1.parquet").unlink()
    reading.reader = stream_reader(tmp_path, **options)
    if lost:
        with pytest.raises(DataLossError, match=r"log/1.parquet is gone, and only the records"):
            reading.next()
    else:
        start = reading.offset
        rows = reading.next()
        assert rows is not None
        assert places(rows) == [("log", position) for position in range(10, 15)]
        assert stream_reader(tmp_path, **options).partitions(start, reading.offset)
    reading.reader.stop()


@pytest.mark.parametrize("read", [8, 10])
def test_a_file_under_an_earlier_name_is_told_also_when_it_came_while_nothing_was_running(
    tmp_path: Path, read: int
) -> None:
    for name in ("2", "5"):
        put(tmp_path / "log" / f"{name}.parquet", {"t": stamps(*range(int(name), int(name) + 5))})
    options = {"eventTimeColumn": "t", "maxDrift": "1 hour", "discoveryInterval": "1 ms"}
    reading = Reading(stream_reader(tmp_path, **options))
    reading.next(max_rows=read)
    reading.reader.stop()
    reading.reader = stream_reader(tmp_path, **options)
    while reading.next() is not None:
        pass  # nothing is wrong yet
    put(tmp_path / "log" / "3.parquet", {"t": stamps(20)})
    with pytest.raises(MalformedDataError, match="splitBy = file"):
        deque(iter(reading.next, ...), maxlen=0)
    reading.reader.stop()
    again = Reading(stream_reader(tmp_path, **options))
    again.offset = reading.offset
    with pytest.raises(MalformedDataError, match=r"others were added later under earlier names.*splitBy = file"):
        again.next()
    again.reader.stop()


def test_a_path_without_files_can_be_read_with_a_schema_of_the_users_own(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    schema = StructType().add("t", TimestampType()).add("n", LongType())
    options = {"eventTimeColumn": "t", "discoveryInterval": "1 ms", "maxDrift": "1 hour"}
    reading = Reading(stream_reader(tmp_path, schema, **options))
    assert reading.next() is not None  # the split itself is news
    put(tmp_path / "log" / "1.parquet", {"t": stamps(1, 2, zone="UTC"), "n": [1, 2]})
    rows = None
    while not rows:
        rows = reading.next()
    assert rows.column("n").to_pylist() == [1, 2]
    reading.reader.stop()


@pytest.mark.parametrize("order", ["eventTime", "name", "modificationTime"])
def test_files_that_come_late_are_read_however_many_were_forgotten(
    tmp_path: Path, order: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(finite, "RECENT_FILES", 2)

    def write(name: str, modified_s: int) -> None:
        put(tmp_path / name, {"t": stamps(modified_s)}, modified_s=1_600_000_000 + modified_s)

    options = {
        "eventTimeColumn": "t",
        "splitBy": "file",
        "fileOrder": order,
        "includeMetadata": "true",
        "discoveryInterval": "5 ms",
        "maxOutOfOrderness": "1 hour",
    }
    write("m0.parquet", 0)
    reading = Reading(stream_reader(tmp_path, **options))
    for number in range(6):
        write(f"m{number}.parquet", 10 * number)
        assert places(wait_for_news(reading)) == [(f"m{number}.parquet", 0)]
    assert reading.offset["enumerator"][1]["forgotten"]
    # While it runs: by an earlier name, and of the time of one that was read.
    write("a.parquet", 10)
    assert places(wait_for_news(reading)) == [("a.parquet", 0)]
    reading.reader.stop()
    # While it is down; two that were read go.
    write("b.parquet", 10)
    write("z.parquet", 11)
    for gone in ("a", "m1"):
        (tmp_path / f"{gone}.parquet").unlink()
    again = Reading(stream_reader(tmp_path, **options))
    again.offset = reading.offset
    came = places(wait_for_news(again))
    while len(came) < 2:
        came += places(wait_for_news(again))
    assert sorted(came) == [("b.parquet", 0), ("z.parquet", 0)]
    again.reader.stop()
    assert not [record.message for record in caplog.records if "gone" in record.message]


@given(
    files=st.lists(st.lists(st.integers(1, 9), max_size=4), max_size=5),
    cut=st.tuples(st.integers(0, 60), st.integers(0, 60)),
    rows_per_range=st.integers(1, 30),
)
def test_ranges_cover_exactly_the_records_between_two_positions_in_order(
    files: list[list[int]], cut: tuple[int, int], rows_per_range: int
) -> None:
    log = FileLog()
    for number, groups in enumerate(files):
        position = log.files[-1].end if log.files else 0
        rows = np.array(groups, np.int64)
        blocks = FileBlocks(rows, rows, rows, rows, tuple(range(len(groups))))
        log.files.append(LoggedFile(DataFile(f"/f{number}"), position, blocks))
    records = [(file.file.path, row) for file in log.files for row in range(file.end - file.position)]
    start, stop = (min(c, len(records)) for c in sorted(cut))
    parts = cut_ranges(log.files, start, stop, rows_per_range)
    read = [(r.file.path, row) for ranges, _ in parts for r in ranges for row in range(r.start, r.stop)]
    assert read == records[start:stop]
    assert [r.position for ranges, _ in parts for r in ranges] == [
        records.index((r.file.path, r.start)) for ranges, _ in parts for r in ranges
    ]
    assert all(rows == sum(r.stop - r.start for r in ranges) > 0 for ranges, rows in parts)
    # No part is larger than asked for by more than a row group, and none but the last is smaller.
    assert all(rows < rows_per_range + 9 for _, rows in parts)
    assert all(rows >= rows_per_range for _, rows in parts[:-1])


@pytest.mark.parametrize("invalid", ["null", "drop"])
def test_records_without_an_event_time_keep_to_the_read_limit_and_are_all_read(tmp_path: Path, invalid: str) -> None:
    nulls = [None] * 10
    times = pa.array([*nulls, T0, None, T0 + SECOND, *nulls], pa.timestamp("us"))
    put(tmp_path / "a" / "f.parquet", {"t": times}, row_group_size=4)
    put(tmp_path / "b" / "f.parquet", {"t": stamps(0, 1, 2)})
    options = {"eventTimeColumn": "t", "invalidTimestamp": invalid, "bounded": "true", "includeMetadata": "true"}
    reading = Reading(stream_reader(tmp_path, maxRowsPerTrigger=3, watermarkRows="true", **options))
    read = []
    while (table := reading.next()) is not None:
        read += [place for place in places(table) if place[0] is not None]
        assert len(table) <= 3 + 1
    reading.reader.stop()
    kept = [i for i, t in enumerate(times.to_pylist()) if invalid == "null" or t is not None]
    assert sorted(read) == [("a", i) for i in kept] + [("b", i) for i in range(3)]
    assert reading.offset["watermark"] == 2**63 - 1


# ---- the source in Python ---------------------------------------------------------------------------------------


def test_the_same_durations_in_other_words_are_the_same_source() -> None:
    words = FileSource("/data/in", discovery_interval="1500 ms", max_file_age="2 weeks")
    objects = FileSource("/data/in", discovery_interval=timedelta(seconds=1.5), max_file_age=timedelta(days=14))
    parsed = FileSource.options().parse({"path": "/data/in", "discoveryInterval": "1.5 s", "maxFileAge": "336 hours"})
    copies = (replace(words, bounded=False), pickle.loads(pickle.dumps(words)))
    for same in (objects, FileSource.from_options(parsed), *copies):
        assert (same, hash(same), same.identity) == (words, hash(words), words.identity)
        assert (same.discovery_interval_us, same.max_file_age_us) == (1_500_000, 1_209_600_000_000)
    defaults = FileSource.from_options(FileSource.options().parse({"path": "/data/in"}))
    assert defaults == FileSource("/data/in") != words


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"discovery_interval": 50_000}, "discovery_interval = 50000 is not a duration.*no unit"),
        ({"discovery_interval": "50"}, "discovery_interval = '50' is not a duration"),
        ({"discovery_interval": "999 us"}, "discovery_interval = '999 us' .* at least 1 millisecond"),
        ({"max_file_age": None}, "max_file_age = None is not a duration"),
        ({"max_file_age": "1 month"}, "max_file_age = '1 month' is ambiguous"),
        ({"max_file_age": timedelta(days=-1)}, "max_file_age = .* at least 1 millisecond"),
        ({"split_by": "row"}, "split_by = 'row': must be one of"),
    ],
)
def test_attributes_are_checked_when_the_source_is_made(values: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        FileSource("/data/in", **values)


@pytest.mark.parametrize("split_by", ["directory", "file"])
def test_what_a_bounded_source_ended_is_not_gone_on_with_by_an_unbounded_one(tmp_path: Path, split_by: str) -> None:
    options = {"eventTimeColumn": "t", "splitBy": split_by, "maxOutOfOrderness": "1 minute"}
    put(tmp_path / "a" / "f0.parquet", {"t": stamps(0)})
    bounded = Reading(stream_reader(tmp_path, bounded="true", **options))
    assert bounded.next() is not None
    put(tmp_path / "a" / "f1.parquet", {"t": stamps(1)})
    unbounded = stream_reader(tmp_path, **options)
    with pytest.raises(OffsetError, match=r"bounded = true.*later files would never be read.*new checkpointLocation"):
        unbounded.latestOffset(bounded.offset, ReadMaxRows(10))
    # The other way round a query may be brought to its end.
    other = Reading(stream_reader(tmp_path, **options))
    other.reader.prepareForTriggerAvailableNow()
    while other.next() is not None:
        pass
    put(tmp_path / "a" / "f2.parquet", {"t": stamps(2)})
    last = Reading(stream_reader(tmp_path, bounded="true", **options))
    last.offset = other.offset
    assert micros(last.next() or pa.table({})) == [T0 + 2 * SECOND]
    for reader in (bounded.reader, other.reader, last.reader):
        reader.stop()


def test_a_source_is_made_without_what_only_its_plans_need(tmp_path: Path) -> None:
    """Spark makes it in several processes, of which one plans. What is imported for good is no garbage to look for."""
    put(tmp_path / "a" / "f.parquet", {"t": stamps(1, 2, zone="UTC")})
    code = (
        "import gc, sys\n"
        "from streaming_source.spark.format_class import format_class\n"
        f"made = format_class('aligned_files')({{'path': {str(tmp_path)!r}, 'eventTimeColumn': 't'}})\n"
        "made.streamReader(made.schema())\n"
        "assert gc.isenabled()\n"
        "assert gc.get_freeze_count() > 10_000\n"
        "of_plans = {'pyarrow.compute', 'streaming_source.monitoring.report', 'alignment.explain'}\n"
        "sys.exit(of_plans & set(sys.modules) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("kind", ["parquet", "orc", "csv", "json"])
def test_neither_a_plan_nor_a_task_loads_pandas(kind: str, tmp_path: Path) -> None:
    """It would take a third of a second of each process, before its first micro-batch."""
    first, second = tmp_path / "a" / f"1.{kind}", tmp_path / "a" / f"2.{kind}"
    columns = pa.table({"n": [1, 2, None], "t": pa.array([T0 + 7, T0, None], pa.timestamp("us", "UTC"))})
    texts = {
        "csv": "1,2024-01-01 10:00:07\n2,2024-01-01 10:00:03\n,\n",
        "json": '{"n": 1, "t": "2024-01-01T10:00:07Z"}\n{"n": 2, "t": "2024-01-01T10:00:03Z"}\n{"t": null}\n',
    }
    first.parent.mkdir()
    if kind in texts:
        first.write_text(texts[kind])
    else:
        {"parquet": pq.write_table, "orc": orc.write_table}[kind](columns, first)
    options = {"fileFormat": kind, "invalidTimestamp": "null", "watermarkRows": "true"}
    options |= {"dataSchema": "n bigint, t timestamp"} if kind in texts else {}
    code = (
        "import shutil, sys\n"
        "from tests.spark.reading import stream_reader\n"
        f"reader = stream_reader({str(tmp_path)!r}, eventTimeColumn='t', **{options!r})\n"
        "end, rows = reader.initialOffset(), 0\n"
        "for _ in range(2):\n"
        f"    shutil.copy({str(first)!r}, {str(second)!r}) if rows else None\n"
        "    start, end = end, reader.latestOffset(end, reader.getDefaultReadLimit())\n"
        "    parts = reader.partitions(start, end)\n"
        "    rows += sum(batch.num_rows for part in parts for batch in reader.read(part))\n"
        "assert rows > 3, rows\n"
        "sys.exit('pandas was loaded' if 'pandas' in sys.modules else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
