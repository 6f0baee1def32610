"""Which files there are: paths, patterns, names of directories, what comes and goes, and what becomes of it."""

from __future__ import annotations

import json
import logging
import os
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import LongType, StringType, StructType, TimestampNTZType, TimestampType

from alignment import WatermarkStrategy
from streaming_source.connectors.files import CsvFormat, FileSource, file_discovery, finite, listing
from streaming_source.connectors.files.directories import DirectoryDiscovery
from streaming_source.connectors.files.file_discovery import FileDiscovery
from streaming_source.connectors.files.given_columns import partition_schema, values_in
from streaming_source.connectors.files.listing import ListedFile, Lister, list_files
from streaming_source.connectors.files.selection import Selection, split_paths
from streaming_source.exceptions import (
    FileGoneError,
    MalformedDataError,
    OptionError,
    PathNotFoundError,
    SchemaError,
)
from streaming_source.spark.datasource import AlignedDataSource
from streaming_source.testing import FakeClock, SourceHarness
from tests.examples import each_once
from tests.files.test_layout_orders import look_again, rows, strategy, unbounded, write
from tests.spark.reading import Reading, put, read_all, read_batch, stamps, stream_reader
from tests.spark.support import SECOND


def names(*paths: Path | str, pattern: str | None = None) -> list[str]:
    selection = Selection(tuple(map(str, paths)), name_pattern=pattern)
    return sorted(file.relative_path for file in list_files(selection))


def restarted(run: SourceHarness) -> None:
    """Run to the end, restarted between each plan and its reading; a restart alone announces the watermark again."""
    while run.plan():
        run.restart()
        batch = run.read()
        run.commit(batch)
        if not batch.all_records:
            run.run()
            return


def places(table: pa.Table) -> list[tuple[str, int]]:
    return list(zip(table.column("_split").to_pylist(), table.column("_position").to_pylist(), strict=True))


def touch(root: Path, *places: str) -> None:
    for place in places:
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        (root / place).write_bytes(b"x")


# ---- paths and patterns --------------------------------------------------------------------------------------------


def test_several_paths_are_read_below_the_nearest_directory_that_holds_them_all(tmp_path: Path) -> None:
    touch(tmp_path, "a/1", "a/x/2", "b/3", "c/4", "a/_hidden/5", "a/.6")
    assert names(tmp_path) == ["a/1", "a/x/2", "b/3", "c/4"]
    assert names(tmp_path / "a", tmp_path / "b") == ["a/1", "a/x/2", "b/3"]
    assert names(tmp_path / "a", tmp_path / "a" / "x") == ["1", "x/2"]
    assert names(tmp_path / "a" / "x", tmp_path / "a") == ["1", "x/2"]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*", ["a/1.p", "a/x/2.p", "b/3.p", "b/4.q"]),
        ("a", ["1.p", "x/2.p"]),
        ("?/*.p", ["a/1.p", "b/3.p"]),
        ("[b-z]/*", ["b/3.p", "b/4.q"]),
        ("{a,b}/*.{p,q}", ["a/1.p", "b/3.p", "b/4.q"]),
        ("*/x", ["a/x/2.p"]),
        ("*/x/*", ["a/x/2.p"]),
        ("nothing*", []),
        ("*/.h*", ["b/.h"]),
    ],
)
def test_patterns_stand_for_parts_of_names(tmp_path: Path, pattern: str, found: list[str]) -> None:
    touch(tmp_path, "a/1.p", "a/x/2.p", "b/3.p", "b/4.q", "b/.h")
    assert names(tmp_path / pattern) == found


def test_a_directory_whose_name_looks_like_a_pattern_is_that_directory(tmp_path: Path) -> None:
    touch(tmp_path, "[ab]/1", "a/2")
    assert names(tmp_path / "[ab]") == ["1"]
    touch(tmp_path, "x/[ab]c/1", "x/bc/2")
    (tmp_path / "[ab]" / "1").unlink()
    (tmp_path / "[ab]").rmdir()
    assert names(tmp_path / "[ab]") == ["a/2"]


def test_what_comes_to_match_a_pattern_is_found(tmp_path: Path) -> None:
    lister = Lister(Selection((str(tmp_path / "day=*"),)))
    assert [directory.path for directory in lister.list_changed()] == []
    touch(tmp_path, "day=1/a", "night=1/b")
    assert [directory.path for directory in lister.list_changed()] == ["day=1"]


@pytest.mark.parametrize(
    ("value", "paths"),
    [
        ("/a", ("/a",)),
        ("/a,/b", ("/a,/b",)),
        ('["/a,b", "/c"]', ("/a,b", "/c")),
        ("[ab]", ("[ab]",)),
    ],
)
def test_a_comma_is_part_of_a_path_and_several_paths_are_a_json_list(value: str, paths: tuple[str, ...]) -> None:
    assert split_paths("path", value) == paths


def test_names_that_spark_does_not_read_are_left_out(tmp_path: Path) -> None:
    for path in ("a/1", "a/2._COPYING_", "a/_3", "a/.4", "_k=1/5", "_k/6", "a._COPYING_/7"):
        touch(tmp_path, path)
    assert names(tmp_path) == ["_k=1/5", "a/1"]


def test_paths_that_cannot_be_are_refused(tmp_path: Path) -> None:
    touch(tmp_path, "a/1")
    with pytest.raises(PathNotFoundError, match=r"nope' does not exist"):
        names(tmp_path / "a", tmp_path / "nope")
    for wrong in ("[1]", "[]", '["/a", ""]'):
        with pytest.raises(OptionError, match="must be a JSON list of paths"):
            split_paths("path", wrong)
    with pytest.raises(OptionError, match="path is empty"):
        split_paths("path", " ")
    with pytest.raises(PathNotFoundError, match=r"several paths are a JSON list, as in"):
        names(f"{tmp_path}/a,{tmp_path}/b")


def test_only_files_whose_names_match_are_there(tmp_path: Path) -> None:
    touch(tmp_path, "a/1.csv", "a/1.csv.tmp", "b/2.json", "b/README")
    assert names(tmp_path, pattern="*.csv") == ["a/1.csv"]
    assert names(tmp_path, pattern="*.{csv,json}") == ["a/1.csv", "b/2.json"]


@pytest.mark.parametrize("split_by", ["directory", "file"])
def test_options_of_spark_choose_the_files(tmp_path: Path, split_by: str) -> None:
    for place in ("a/1.parquet", "b/2.parquet", "c/3.parquet"):
        put(tmp_path / place, {"t": stamps(int(place[2]))})
    touch(tmp_path, "a/1.txt")
    options = {"eventTimeColumn": "t", "splitBy": split_by, "pathGlobFilter": "*.parquet", "includeMetadata": "true"}
    both = json.dumps([str(tmp_path / "a"), str(tmp_path / "b")])
    for path in (f"{tmp_path}/{{a,b}}", both):
        for read in (read_all, read_batch):
            assert len(read(path, **options)) == 2
    with pytest.raises(OptionError, match=r"latestFirst = true: .* would carry the watermark past all older ones"):
        read_all(tmp_path, **options, latestFirst="true")
    assert len(read_all(tmp_path, **options, latestFirst="false")) == 3


@pytest.mark.parametrize("split_by", ["directory", "file"])
def test_a_restart_reads_the_ranges_of_what_a_pattern_chose(tmp_path: Path, split_by: Any) -> None:
    for place in ("a/1.p", "a/2.p", "a/2.q", "b/3.p"):
        write(tmp_path / place, [float(place[2])] * 3)
    source = FileSource(f"{tmp_path}/*/*.p", split_by, bounded=True)
    run = SourceHarness(source, strategy("10 seconds"), max_rows=2)
    restarted(run)
    assert len(rows(run)) == 9
    run.close()


# ---- listing again -------------------------------------------------------------------------------------------------


PLACES = st.sampled_from(["", "a", "b", "a/c"])


@given(
    steps=st.lists(st.lists(st.tuples(PLACES, st.integers(0, 3), st.booleans()), max_size=4), max_size=6),
    settled=st.booleans(),
)
def test_what_a_lister_finds_over_its_looks_is_what_is_there(
    tmp_path_factory: pytest.TempPathFactory, steps: list[list[tuple[str, int, bool]]], settled: bool
) -> None:
    root = tmp_path_factory.mktemp("in")
    lister = Lister(Selection((str(root),)))
    known: dict[str, dict[str, ListedFile]] = {}
    with pytest.MonkeyPatch.context() as patch:
        if settled:
            # As if all directories had changed long ago; then they must be changed noticeably.
            patch.setattr(listing, "_SETTLED_NS", -(10**18))
        for number, changes in enumerate(steps, 1):
            for place, name, is_new in changes:
                path = root / place / f"f{name}"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(b"x") if is_new else path.unlink(missing_ok=True)
                for directory in (path.parent, *path.parent.parents):
                    if directory.is_relative_to(root):
                        os.utime(directory, (number * 1000, number * 1000))
            for found in lister.list_changed():
                known[found.path] = {file.name: file for file in found.files}
            seen = sorted(file.relative_path for files in known.values() for file in files.values())
            assert seen == names(root)


def test_a_directory_that_has_not_changed_is_not_listed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path, *(f"{n}/file" for n in range(20)))
    for directory in (tmp_path, *tmp_path.iterdir()):
        os.utime(directory, (1_600_000_000, 1_600_000_000))
    lister = Lister(Selection((str(tmp_path),)))
    assert len(list(lister.list_changed())) == 21
    assert list(lister.list_changed()) == []
    touch(tmp_path, "7/other")
    assert [directory.path for directory in lister.list_changed()] == ["7"]
    # It has changed just now, and may again at the same time as told.
    assert [directory.path for directory in lister.list_changed()] == ["7"]
    monkeypatch.setattr(listing, "_FULL_EVERY_S", 0.0)
    assert len(list(lister.list_changed())) == 21


@pytest.mark.parametrize("split_by", ["directory", "file"])
def test_directories_that_are_named_like_files_are_directories(tmp_path: Path, split_by: Any) -> None:
    write(tmp_path / "a.parquet" / "b.parquet", [1.0, 2.0])
    write(tmp_path / "a.parquet" / "c.parquet" / "d.parquet", [1.0])
    (tmp_path / "e.parquet").mkdir()
    source = FileSource(str(tmp_path), split_by, bounded=True, path_glob_filter="*.parquet")
    run = SourceHarness(source, strategy("10 seconds"))
    run.run()
    b, d = ("a.parquet", "a.parquet/c.parquet")
    if split_by == "file":
        b, d = f"{b}/b.parquet", f"{d}/d.parquet"
    assert rows(run) == [(b, 0), (b, 1), (d, 0)]
    run.close()


def test_links_that_lead_up_are_not_followed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    touch(tmp_path, "a/b/1", "elsewhere/2")
    (tmp_path / "a" / "b" / "loop").symlink_to(tmp_path / "a")
    (tmp_path / "a" / "other").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "a" / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "a" / "named.parquet").mkdir()
    assert names(tmp_path / "a") == ["b/1", "other/2"]
    assert caplog.records[0].message.startswith("b/loop is a link to a directory above it")


# ---- columns in names ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "data_type"),
    [
        (["1", "-20"], pa.int32()),
        (["1", "3000000000"], pa.int64()),
        (["1", "2.5"], pa.float64()),
        (["2024-01-31"], pa.date32()),
        (["2024-01-31 10:00:00"], pa.timestamp("us", "UTC")),
        (["2024-01-31 10:00:00.5", "2024-01-31"], pa.timestamp("us", "UTC")),
        (["-0001-01-01 00:00:00"], pa.timestamp("us", "UTC")),
        (["2024-01-31T10:00:00"], pa.string()),
        (["2024-01-31 10:00:00.25"], pa.string()),
        (["2024-01-31 10:00:00Z"], pa.string()),
        (["2024-01-31 24:00:00"], pa.string()),
        (["2024-01-31 10:00"], pa.string()),
        (["2024-02-30 10:00:00"], pa.string()),
        (["1", "9223372036854775808"], pa.decimal128(19, 0)),
        (["3000000000", "12345678901234567890123"], pa.decimal128(23, 0)),
        (["9" * 39], pa.string()),
        (["1.5", "9223372036854775808"], pa.string()),
        (["1.5", "1e3"], pa.string()),
        (["+5", "1"], pa.int32()),
        (["NaN", "1d", ".5", "-0.0", "2", "Infinity"], pa.float64()),
        (["1", "x"], pa.string()),
        (["1_000"], pa.string()),
        (["nan"], pa.string()),
        (["__HIVE_DEFAULT_PARTITION__", "3"], pa.int32()),
        (["__HIVE_DEFAULT_PARTITION__"], pa.string()),
        ([""], pa.string()),
    ],
)
def test_columns_in_names_have_the_narrowest_type(values: list[str], data_type: pa.DataType) -> None:
    directories = [f"a/k={value}/b" for value in values]
    assert partition_schema(directories, zone="Europe/Berlin") == pa.schema([("k", data_type)])
    assert partition_schema(directories, infers=False) == pa.schema([("k", pa.string())])
    assert partition_schema(directories, [pa.field("k", pa.string())]) == pa.schema([("k", pa.string())])


def test_times_in_names_are_in_the_zone_of_the_session_where_it_is_known(tmp_path: Path) -> None:
    put(tmp_path / "k=2024-01-31 10%3A00%3A00" / "f.parquet", {"t": pa.array([0], pa.timestamp("us", "UTC"))})
    found = {
        zone: AlignedDataSource.of_format("aligned_files", {"path": str(tmp_path), "eventTimeColumn": "t"}, zone)
        for zone in ("Europe/Berlin", None)
    }
    kinds = [made.schema()["k"].dataType for made in found.values()]
    assert kinds == [TimestampType(), TimestampNTZType()]
    local_us = 1_706_695_200_000_000
    for options, expected in (
        ({"timeZone": "Europe/Berlin"}, local_us - 3_600 * SECOND),
        ({"timeZone": "Europe/Berlin", "dataSchema": "t timestamp, k timestamp_ntz"}, local_us),
        ({"dataSchema": "t timestamp, k date"}, local_us // (86_400 * SECOND)),
    ):
        assert read_batch(tmp_path, eventTimeColumn="t", **options)["k"][0].value == expected
    source = FileSource(str(tmp_path), data_schema=pa.schema([("k", pa.timestamp("us", "UTC"))]))
    with pytest.raises(SchemaError, match="it has no zone; set option timeZone"):
        source.given_columns(source.schema()).of(next(iter(list_files(source.root))), "")


def test_numbers_in_names_are_read_as_java_writes_them(tmp_path: Path) -> None:
    for name in ("k=1d", "k=.5", "k=NaN", "k=+2"):
        put(tmp_path / name / "f.parquet", {"t": pa.array([0], pa.timestamp("us", "UTC"))})
    found = read_batch(tmp_path, eventTimeColumn="t")["k"].to_pylist()
    assert sorted(map(str, found)) == ["0.5", "1.0", "2.0", "nan"]


def test_names_are_unescaped_and_what_has_no_name_is_no_column() -> None:
    assert values_in("x/k=a%2Fb%3D/l=__HIVE_DEFAULT_PARTITION__/=3/m=") == {"k": "a/b=", "l": None, "m": ""}
    # Spark writes other letters as they are, and reads an escape as one character.
    assert values_in("ü=日本/k=%e9%zz") == {"ü": "日本", "k": "é%zz"}


@pytest.mark.parametrize(("split_by", "indexing"), each_once(["directory", "file"], ["auto", "scan"]))
def test_columns_in_names_are_read_beside_those_of_the_files(tmp_path: Path, split_by: str, indexing: str) -> None:
    for day, region in ((1, "eu"), (2, "us")):
        put(
            tmp_path / f"day=2024-01-0{day}" / f"region={region}" / "f.parquet",
            {"t": stamps(day, day + 1), "n": [day, day], "region": ["?", "?"]},
        )
    options = {"eventTimeColumn": "t", "splitBy": split_by, "indexing": indexing}
    for read, path in ((read_all, tmp_path), (read_batch, tmp_path), (read_all, tmp_path / "day=*" / "*")):
        table = read(path, **options)
        assert table.schema.field("day").type == pa.date32()
        found = [(str(row["day"]), row["region"], row["n"]) for row in table.to_pylist()]
        assert sorted(found) == [("2024-01-01", "eu", 1)] * 2 + [("2024-01-02", "us", 2)] * 2
    # A query that reads such columns alone still has as many rows.
    frame = StructType().add("region", StringType()).add("event_time", TimestampType())
    assert sorted(read_all(tmp_path, frame, **options).column("region").to_pylist()) == ["eu", "eu", "us", "us"]
    own = read_all(tmp_path, **options, recursiveFileLookup="true")
    assert own.schema.names[:3] == ["t", "n", "region"]
    assert set(own.column("region").to_pylist()) == {"?"}


def next_rows(reading: Reading) -> pa.Table:
    """The rows of the next micro-batch that has some."""
    while (table := reading.next()) is None or not table.num_rows:
        continue
    return table


@pytest.mark.parametrize("split_by", ["directory", "file"])
@pytest.mark.parametrize("other", ["region=us", "area=us/day=1", "."])
def test_a_directory_of_other_columns_that_comes_later_is_refused_before_its_rows_are_read(
    tmp_path: Path, split_by: str, other: str
) -> None:
    put(tmp_path / "region=eu" / "day=1" / "a.parquet", {"t": stamps(0), "n": [0]})
    options = {"eventTimeColumn": "t", "splitBy": split_by, "discoveryInterval": "1 ms"}
    reading = Reading(stream_reader(tmp_path, **options))
    regions: list[str] = []
    while len(regions) < 2:
        regions += next_rows(reading).column("region").to_pylist()
        if not (later := tmp_path / "REGION=us" / "Day=1" / "b.parquet").exists():
            put(later, {"t": stamps(1), "n": [1]})
    assert regions == ["eu", "us"]
    put(tmp_path / other / "c.parquet", {"t": stamps(2), "n": [2]})
    with pytest.raises(SchemaError, match="let all files lie in directories of the same columns"):
        next_rows(reading)
    reading.reader.stop()
    # So it is at the next start.
    with pytest.raises(SchemaError, match="let all files lie in directories of the same columns"):
        stream_reader(tmp_path, **options)


def test_the_event_time_may_be_in_a_name(tmp_path: Path) -> None:
    for hour in (1, 2):
        put(tmp_path / f"hour=2024-01-01 0{hour}%3A00%3A00" / "f.parquet", {"n": [hour] * 3}, row_group_size=2)
    for options in ({}, {"maxRowsPerTrigger": 2}, {"splitBy": "file", "indexing": "scan"}):
        table = read_all(tmp_path, eventTimeColumn="hour", **options)
        assert len(table) == 6
        assert {(row["n"], row["hour"].hour) for row in table.to_pylist()} == {(1, 1), (2, 2)}
    frame = StructType().add("event_time", TimestampType())
    assert len(read_all(tmp_path, frame, eventTimeColumn="hour")) == 6


def test_the_names_of_a_directory_are_parsed_once_for_all_of_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for hour in (1, 2):
        for file in range(3):
            put(tmp_path / f"hour={hour}" / f"{file}.parquet", {"t": stamps(60 * hour + file)})
    reader = stream_reader(tmp_path, eventTimeColumn="t", bounded="true", maxRowsPerTrigger=1)
    parsed: list[str] = []

    def counting(directory: str) -> dict[str, str | None]:
        parsed.append(directory)
        return values_in(directory)

    monkeypatch.setattr("streaming_source.connectors.files.given_columns.values_in", counting)
    reading, hours = Reading(reader), []
    while (table := reading.next()) is not None:
        hours += table.column("hour").to_pylist()
    reader.stop()
    assert sorted(hours) == [1, 1, 1, 2, 2, 2]
    assert sorted(parsed) == ["hour=1", "hour=2"]


def test_directories_of_different_columns_and_values_of_another_type_are_refused(tmp_path: Path) -> None:
    put(tmp_path / "k=1" / "f.parquet", {"t": stamps(0)})
    source = FileSource(str(tmp_path), bounded=True)
    schema = source.schema()
    assert schema.field("k").type == pa.int32()
    put(tmp_path / "k=x" / "f.parquet", {"t": stamps(0)})
    file = next(file for file in list_files(source.root) if file.directory == "k=x")
    with pytest.raises(SchemaError, match=r"k=x: the directory k=x cannot be read as int32.*'k' in dataSchema"):
        source.given_columns(schema).of(file, str(tmp_path / file.relative_path))
    put(tmp_path / "f.parquet", {"t": stamps(0)})
    with pytest.raises(SchemaError, match=r"have columns \(none\) and, in 'k=1', k .* recursiveFileLookup = true"):
        source.schema()


def test_the_type_of_a_column_in_names_can_be_given(tmp_path: Path) -> None:
    put(tmp_path / "k=007" / "f.parquet", {"t": stamps(0), "n": [1]})
    options = {"eventTimeColumn": "t"}
    assert read_all(tmp_path, **options).column("k").to_pylist() == [7]
    given = read_all(tmp_path, **options, dataSchema="t timestamp_ntz, n bigint, k string")
    assert given.column("k").to_pylist() == ["007"]
    frame = StructType().add("k", LongType()).add("event_time", TimestampType())
    assert read_all(tmp_path, frame, **options).column("k").to_pylist() == [7]


# ---- files that are gone or broken ---------------------------------------------------------------------------------


@pytest.mark.parametrize("split_by", ["directory", "file"])
@pytest.mark.parametrize("order", ["eventTime", "name"])
def test_a_broken_file_is_an_error_or_ignored_and_counted(
    tmp_path: Path, split_by: Any, order: Any, caplog: pytest.LogCaptureFixture
) -> None:
    if split_by == "directory" and order == "name":
        return
    for n in range(4):
        write(tmp_path / f"{n}.parquet", [n * 10.0, n * 10 + 1.0], n)
    (tmp_path / "1.parquet").write_bytes(b"PAR1 this is not Parquet PAR1")
    strict = FileSource(str(tmp_path), split_by, bounded=True, file_order=order)
    with pytest.raises(MalformedDataError, match=r"1.parquet is not a readable Parquet file"):
        SourceHarness(strict, strategy()).run()
    lenient = FileSource(str(tmp_path), split_by, bounded=True, file_order=order, ignore_corrupt_files=True)
    run = SourceHarness(lenient, strategy())
    restarted(run)
    assert len(rows(run)) == 6
    assert any("ignored: " in record.message and "1.parquet" in record.message for record in caplog.records)
    run.close()


@pytest.mark.parametrize("order", ["eventTime", "name", "modificationTime"])
def test_a_broken_file_that_is_mended_is_read(tmp_path: Path, order: Any) -> None:
    write(tmp_path / "0.parquet", [1.0, 2.0], 0)
    (tmp_path / "1.parquet").write_bytes(b"PAR1")
    run = unbounded(tmp_path, order, "100 seconds", ignore_corrupt_files=True)
    look_again(run)
    assert rows(run) == [("0.parquet", 0), ("0.parquet", 1)]
    write(tmp_path / "1.parquet", [3.0], 2_000_000_000 - 1_600_000_000)
    look_again(run)
    assert ("1.parquet", 0) in rows(run)
    run.close()


@pytest.mark.parametrize(
    ("order", "moment"), each_once(["eventTime", "name"], ["waiting", "planned", "begun and restarted"])
)
@pytest.mark.parametrize("tolerant", ["true", "false"])
def test_a_file_that_is_deleted_before_it_is_read_is_an_error_or_ignored(
    tmp_path: Path, order: str, moment: str, tolerant: str
) -> None:
    for n in range(6):
        write(tmp_path / f"{n}.parquet", [n * 10.0 + second for second in range(4)], n)
    options = {"eventTimeColumn": "t", "splitBy": "file", "fileOrder": order, "bounded": "true"}
    options |= {"ignoreMissingFiles": tolerant, "maxRowsPerTrigger": "2", "includeMetadata": "true"}
    reading = Reading(stream_reader(tmp_path, **options))
    tables = [reading.next()]
    gone = "5.parquet" if moment == "waiting" else "0.parquet"
    start = reading.offset
    if moment == "planned":
        reading.offset = reading.reader.latestOffset(start, reading.reader.getDefaultReadLimit())
    (tmp_path / gone).unlink()
    if moment == "begun and restarted":
        reading.reader.stop()
        reading.reader = stream_reader(tmp_path, **options)

    def rest() -> list[tuple[str, int]]:
        if moment == "planned":
            tables.append(reading.between(start, reading.offset))
        while (table := reading.next()) is not None:
            tables.append(table)
        return [place for table in tables if table is not None for place in places(table)]

    if tolerant == "true":
        read = rest()
        assert len(read) == len(set(read))
        missing = {(gone, row) for row in range(4)} - set(read)
        assert set(read) | missing == {(f"{n}.parquet", row) for n in range(6) for row in range(4)}
        assert missing
    else:
        with pytest.raises(FileGoneError, match=f"{gone} is gone"):
            rest()
    reading.reader.stop()


def test_what_is_tolerated_is_what_was_asked_for() -> None:
    gone, broken = FileGoneError("x is gone"), MalformedDataError("x is broken")
    without_missing = FileSource("/data/in", ignore_missing_files=True)
    without_corrupt = FileSource("/data/in", ignore_corrupt_files=True)
    for tolerance, error in ((without_missing, gone), (without_corrupt, broken)):
        tolerance.skip(error)
    for tolerance, error in ((without_missing, broken), (without_corrupt, gone)):
        with pytest.raises(type(error), match=str(error)):
            tolerance.skip(error)


# ---- what becomes of files that were read --------------------------------------------------------------------------


@pytest.mark.parametrize("split_by", ["directory", "file"])
@pytest.mark.parametrize("what", ["archive", "delete"])
@pytest.mark.parametrize("restarts", [False, True])
def test_files_leave_once_what_was_read_of_them_is_committed(
    tmp_path: Path, split_by: Any, what: Any, restarts: bool
) -> None:
    for n in range(8):
        write(tmp_path / "in" / "log" / f"{n}.parquet", [n * 10.0, n * 10 + 1.0], n)
    archive = {"source_archive_dir": str(tmp_path / "archive")} if what == "archive" else {}
    # As for any stream of files that leave: who comes back when there are none must know the columns.
    columns = pa.schema([("t", pa.timestamp("us"))])
    source = FileSource(str(tmp_path / "in"), split_by, bounded=True, clean_source=what, data_schema=columns, **archive)
    run = SourceHarness(source, strategy(), max_rows=2)
    while run.plan():
        there = {path.stem for path in (tmp_path / "in" / "log").iterdir()}
        # Nothing leaves before its micro-batch is committed: it may be read again.
        batch = run.read()
        assert run.read().all_records == batch.all_records
        assert there == {path.stem for path in (tmp_path / "in" / "log").iterdir()}
        run.commit(batch)
        if restarts and batch.all_records:
            run.restart()
    assert len(rows(run)) == 16
    left = {path.name for path in (tmp_path / "in" / "log").iterdir()}
    if restarts and split_by == "directory":
        assert left
    else:
        assert len(left) <= 2
    moved = {path.name for path in (tmp_path / "archive").rglob("*.parquet")}
    assert moved == ({f"{n}.parquet" for n in range(8)} - left if what == "archive" else set())
    if split_by == "file":
        run.restart()
        run.run()
        assert not list((tmp_path / "in" / "log").iterdir())
    run.close()


def discovery_of(selection: Selection) -> tuple[DirectoryDiscovery, Callable[[], list[str]]]:
    """Discovery over a path, and a look that gives the names of the new files."""
    found = DirectoryDiscovery(lambda files: [(file, None) for file in files], {}, frozenset())
    lister = Lister(selection)

    def look() -> list[str]:
        new = [one.file.relative_path for one in found.find_new(lister).new]
        lister.name_empty()
        return new

    return found, look


def test_nothing_is_remembered_of_files_and_directories_that_left(tmp_path: Path) -> None:
    discovery, look = discovery_of(Selection((str(tmp_path),)))
    touch(tmp_path, "log/0")
    for number in range(40):
        touch(tmp_path, f"log/{number:03d}", f"day={number:03d}/a", f"day={number:03d}/b")
        for name in "ab":
            # By the clock of a file system, which stands still for milliseconds, the directory would be a renamed one.
            os.utime(tmp_path / f"day={number:03d}" / name, (number, number))
        assert f"log/{number:03d}" in look()
        (tmp_path / f"log/{number:03d}").unlink()
        for name in "ab":
            (tmp_path / f"day={number:03d}" / name).unlink()
        (tmp_path / f"day={number:03d}").rmdir()
        # Of each of the last two looks, and the one that stays.
        assert discovery.remembered() <= 2 * 3 + 1
    look()
    look()
    assert discovery.remembered() == 1


@pytest.mark.parametrize("name", ["a", "b"])
def test_a_file_that_left_and_comes_again_is_out_of_order(name: str, tmp_path: Path) -> None:
    _, look = discovery_of(Selection((str(tmp_path),)))
    touch(tmp_path, "log/a", "log/b")
    assert look() == ["log/a", "log/b"]
    (tmp_path / "log" / name).unlink()
    assert look() == []
    touch(tmp_path, f"log/{name}")
    # One listing may lack a file that is there.
    assert look() == []
    (tmp_path / "log" / name).unlink()
    assert look() == look() == []
    touch(tmp_path, f"log/{name}")
    with pytest.raises(
        MalformedDataError, match=f"log/{name} (was deleted, and a file of that name is there again|appeared after b)"
    ):
        look()


def test_nothing_is_remembered_of_empty_files_that_have_bytes_now(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lister = Lister(Selection((str(tmp_path),)))
    for number in range(20):
        (tmp_path / f"{number:03d}").touch()
        list(lister.list_changed())
        lister.name_empty()
        (tmp_path / f"{number:03d}").write_text("x")
    assert sum("files of 0 bytes" in record.message for record in caplog.records) == 20
    list(lister.list_changed())
    lister.name_empty()
    assert (lister._empty, lister._named_empty, lister._holding_empty) == (set(), set(), set())


@pytest.mark.parametrize("clean_source", ["off", "delete"])
def test_a_query_that_runs_for_long_keeps_no_name_of_a_file_that_was_cleaned(
    clean_source: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[DirectoryDiscovery] = []
    init = DirectoryDiscovery.__init__

    def remember(self: DirectoryDiscovery, *args: Any) -> None:
        init(self, *args)
        found.append(self)

    monkeypatch.setattr(DirectoryDiscovery, "__init__", remember)
    write(tmp_path / "log" / "000.parquet", [0])
    clock = FakeClock()
    source = FileSource(str(tmp_path), "directory", clean_source=clean_source)
    run = SourceHarness(source, strategy(), clock=clock)
    for number in range(1, 30):
        run.run()
        write(tmp_path / "log" / f"{number:03d}.parquet", [number])
        look_again(run)
    files = len(list((tmp_path / "log").iterdir()))
    assert files == 30 if clean_source == "off" else files <= 3
    assert sum(discovery.remembered() for discovery in found) <= files + 2
    run.close()


def test_of_a_directory_the_file_that_is_read_to_its_end_leaves_although_no_other_comes(tmp_path: Path) -> None:
    write(tmp_path / "log" / "000.parquet", [0])
    run = SourceHarness(FileSource(str(tmp_path), "directory", clean_source="delete"), strategy(), clock=FakeClock())
    run.run()
    for number in range(1, 4):
        write(tmp_path / "other" / f"{number:03d}.parquet", [number])
        look_again(run)
        run.run()
    assert not list((tmp_path / "log").iterdir())
    run.close()


@pytest.mark.parametrize(("clean_source", "order"), each_once(["off", "delete"], ["eventTime", "name"]))
def test_a_query_over_finite_files_keeps_no_mark_of_one_that_was_forgotten_and_has_left(
    order: Any, clean_source: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[FileDiscovery] = []
    init = FileDiscovery.__init__

    def remember(self: FileDiscovery, *args: Any) -> None:
        init(self, *args)
        found.append(self)

    monkeypatch.setattr(FileDiscovery, "__init__", remember)
    monkeypatch.setattr(finite, "RECENT_FILES", 8)
    # Each look lists all directories.
    monkeypatch.setattr(listing, "_FULL_EVERY_S", 0.0)
    monkeypatch.setattr(file_discovery, "_KEPT_S", 0.0)
    clock = FakeClock()
    write(tmp_path / "in" / "log" / "000.parquet", [0])
    source = FileSource(
        str(tmp_path / "in"), "file", file_order=order, max_file_age="10 seconds", clean_source=clean_source
    )
    run = SourceHarness(source, strategy(), clock=clock)
    for number in range(1, 60):
        run.run()
        write(tmp_path / "in" / "log" / f"{number:03d}.parquet", [number], number)
        look_again(run)
    files = len(list((tmp_path / "in" / "log").iterdir()))
    assert files == 60 if clean_source == "off" else files <= 3
    assert len(rows(run)) == 60
    # Those that are there, and those that the offset remembers.
    assert found[-1].remembered() <= max(files, 15) + 3
    run.close()


@pytest.mark.parametrize("order", ["eventTime", "name"])
def test_nothing_is_remembered_of_damaged_files_that_were_left_out_and_have_left(
    order: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "_FULL_EVERY_S", 0.0)
    write(tmp_path / "log" / "000.parquet", [0])
    source = FileSource(str(tmp_path), "file", file_order=order, ignore_corrupt_files=True)
    run = SourceHarness(source, strategy(), clock=FakeClock())
    run.run()
    for number in range(1, 6):
        damaged = tmp_path / "log" / f"{number:03d}.parquet"
        damaged.write_bytes(b"nothing that Parquet knows")
        look_again(run)
        run.run()
        damaged.unlink()
        look_again(run)
        run.run()
    left_out = run.coordinator.host.enumerator._left_out  # type: ignore[attr-defined]
    assert len(left_out) <= 1
    # One of the same name that is whole is another file.
    write(damaged, [5], 5)
    look_again(run)
    run.run()
    assert len(rows(run)) == 2
    run.close()


def test_cleaning_leaves_what_it_cannot_be_sure_of(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", [1.0], 0)
    write(tmp_path / "b.parquet", [2.0], 1_000_000)
    run = unbounded(tmp_path, bound="100 seconds", max_file_age="1 minute", clean_source="delete")
    look_again(run)
    write(tmp_path / "c.parquet", [3.0], 2_000_000)
    look_again(run)
    # Came too late, and cannot be told from what was read and forgotten: it is not read, and not deleted.
    write(tmp_path / "late.parquet", [4.0], 1)
    run.restart()
    look_again(run)
    assert (tmp_path / "late.parquet").exists()
    assert not (tmp_path / "a.parquet").exists()
    run.close()


def test_a_file_that_cannot_be_moved_is_told_and_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for n in range(4):
        write(tmp_path / "in" / f"{n}.parquet", [n * 10.0], n)
    (tmp_path / "archive").write_bytes(b"a file where a directory should be")
    archive = str(tmp_path / "archive" / "x")
    source = FileSource(str(tmp_path / "in"), "file", bounded=True, clean_source="archive", source_archive_dir=archive)
    run = SourceHarness(source, strategy(), max_rows=1)
    run.run()
    assert len(rows(run)) == 4
    told = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert any("cleanSource = archive" in message and "is left where it is" in message for message in told)
    run.close()


def test_an_archive_that_would_be_read_again_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", [1.0])

    def source(archive: Path) -> FileSource:
        return FileSource(str(tmp_path), "file", clean_source="archive", source_archive_dir=str(archive))

    with pytest.raises(OptionError, match=r"sourceArchiveDir .* is below path"):
        SourceHarness(source(tmp_path / "archive"), strategy())
    SourceHarness(source(tmp_path / "_archive"), strategy()).close()
    for wrong in ({"clean_source": "archive"}, {"source_archive_dir": "/x"}):
        with pytest.raises(OptionError, match="to archive needs a directory"):
            FileSource("/data/in", **wrong)  # type: ignore[arg-type]


def test_a_batch_read_leaves_no_trace(tmp_path: Path) -> None:
    write(tmp_path / "in" / "a.parquet", [1.0])
    options = {
        "eventTimeColumn": "t",
        "splitBy": "file",
        "fileOrder": "name",
        "stateLocation": str(tmp_path / "state"),
        "cleanSource": "delete",
    }
    assert len(read_batch(tmp_path / "in", **options)) == 1
    assert len(read_batch(tmp_path / "in", **options)) == 1
    assert not (tmp_path / "state").exists()


# ---- listings that are not of one moment -----------------------------------------------------------------------------


def test_a_file_that_a_listing_missed_comes_before_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1, 5):
        write(tmp_path / "a" / f"{number}.parquet", [number * 10.0], number)
    list_one = listing.Lister._list_one
    misses = iter(["1.parquet 4.parquet", "4.parquet", "3.parquet", ""])

    def listed(self: Any, path: str, directory: str) -> Any:
        found, below = list_one(self, path, directory)
        missed = next(misses, "").split() if directory == "a" else ()
        return replace(found, files=[file for file in found.files if file.name not in missed]), below

    source = FileSource(str(tmp_path), "directory", discovery_interval="1 second")
    run = SourceHarness(source, strategy(), clock=FakeClock())
    monkeypatch.setattr(listing.Lister, "_list_one", listed)
    look_again(run)
    assert run.records() == {"a": [(position, (position + 1) * 10 * SECOND) for position in range(4)]}


# ---- many at once ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("files_ahead", "patience_s"), [({}, 0.2), ({"filesAhead": "4"}, 30.0)], ids=["local", "far"])
def test_two_local_files_a_core_are_scanned_at_once_and_more_where_the_path_leads_over_a_network(
    files_ahead: dict[str, str], patience_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        (tmp_path / f"{number}.csv").write_text(f"2024-01-0{number + 1}\n")
    met: list[bool] = []
    three = threading.Barrier(3, lambda: met.append(True))
    count = CsvFormat.count

    def count_together(self: CsvFormat, data: bytes) -> int:
        with suppress(threading.BrokenBarrierError):
            if not met:
                three.wait(patience_s)
        return count(self, data)

    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    monkeypatch.setattr(CsvFormat, "count", count_together)
    schema = StructType().add("t", TimestampType())
    assert read_all(tmp_path, schema, fileFormat="csv", eventTimeColumn="t", **files_ahead).num_rows == 3
    assert bool(met) is bool(files_ahead)


@pytest.mark.parametrize("split_by", ["file", "directory"])
def test_a_path_that_is_deleted_under_a_query_ends_it(tmp_path: Path, split_by: str) -> None:
    put(tmp_path / "in/a/0.parquet", {"ts": stamps(0, 1)})
    source = FileSource(str(tmp_path / "in"), split_by=split_by)
    bound = WatermarkStrategy.for_bounded_out_of_orderness("1 second").with_timestamp_assigner("ts")
    done = SourceHarness(source, bound, schema=source.schema())
    done.run()
    shutil.rmtree(tmp_path / "in")
    done.clock.advance("2 seconds")
    with pytest.raises(PathNotFoundError, match=r"/in' does not exist; give an existing directory in option path"):
        done.run()
