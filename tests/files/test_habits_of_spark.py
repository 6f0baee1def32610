"""What a user of Spark's own file source expects: changing columns, `_metadata`, zones, odd files, who wrote them."""

from __future__ import annotations

import io
import json
import logging
import re
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow import fs, orc
from pyarrow import parquet as pq
from pyspark.sql.types import DateType, StringType, StructType, TimestampType

from alignment.exceptions import InvalidTimestampError
from alignment.timestamps import FieldTimestampAssigner
from streaming_source.connectors.files import FileSource, ParquetFormat
from streaming_source.data_files.file import DataFile, StoredFile
from streaming_source.exceptions import OffsetError, OptionError, PathNotFoundError, SchemaError
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

both_layouts = pytest.mark.parametrize("split_by", ["directory", "file"])
UUID = "0b1c2d3e-4f50-4a1b-8c2d-3e4f5a6b7c8d"


def spark_name(number: int, of_job: int) -> str:
    """As Spark's writer names a file: in no order of its jobs."""
    return f"part-{number:05d}-{(7919 * of_job) % 16:x}{UUID[1:]}-c000.snappy.parquet"


def options(**more: Any) -> dict[str, Any]:
    return {"eventTimeColumn": "t", **more}


def text(path: Path, content: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


# ---- who wrote the files -----------------------------------------------------------------------------------------


def test_what_sparks_writer_appends_is_read_whole_without_being_told_so(tmp_path: Path) -> None:
    put(tmp_path / spark_name(0, 0), {"t": stamps(0), "n": [0]})
    reading = Reading(stream_reader(tmp_path, **options(discoveryInterval="1 ms", maxDrift="1 hour")))
    read = reading.next().column("n").to_pylist()
    offsets = [reading.offset]
    for job in range(1, 8):
        put(tmp_path / spark_name(0, job), {"t": stamps(job), "n": [job]})
        while len(read) <= job:
            if (table := reading.next()) is not None:
                read += table.column("n").to_pylist()
                offsets.append(reading.offset)
    reading.reader.stop()
    assert read == [*range(8)]
    # The layout is in the offset: who restarts has it, whatever is there by then.
    for file in tmp_path.glob("part*"):
        if file.name != spark_name(0, 7):
            file.unlink()
    put(tmp_path / "a.parquet", {"t": stamps(9), "n": [9]})
    again = Reading(stream_reader(tmp_path, **options()))
    again.offset = offsets[-1]
    assert again.next().column("n").to_pylist() == [9]
    again.reader.stop()
    with pytest.raises(OffsetError, match=r"splitBy = 'directory': the checkpoint is of splitBy = 'file'"):
        Reading(stream_reader(tmp_path, **options(splitBy="directory"))).between(offsets[-1], again.offset)


@pytest.mark.parametrize(
    ("names", "more", "layout"),
    [
        (["a/1.parquet"], {}, "directory"),
        ([f"a/{UUID}.json"], {}, "file"),
        ([f"2024-01-31T00-{UUID}.parquet"], {}, "directory"),
        (["a/1.parquet"], {"file_order": "name"}, "file"),
        (["a/"], {}, "directory"),
        ([], {}, "file"),
    ],
)
def test_the_layout_is_chosen_by_what_is_there(
    tmp_path: Path, names: list[str], more: dict[str, Any], layout: str
) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).mkdir() if name.endswith("/") else (tmp_path / name).write_text("x")
    assert FileSource(str(tmp_path), **more)._layout() == layout


# ---- changing columns --------------------------------------------------------------------------------------------


@both_layouts
def test_a_column_that_a_later_file_lacks_is_null_and_one_that_it_adds_is_named_once(
    tmp_path: Path, split_by: str, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path / "1.parquet", {"t": stamps(1, 2), "k": ["a", "b"]})
    put(tmp_path / "2.parquet", {"t": stamps(3), "k": ["c"], "v": [1]})
    put(tmp_path / "3.parquet", {"t": stamps(4, 5), "v": [2, 3]})
    read = read_all(tmp_path, **options(splitBy=split_by))
    assert read.sort_by("t").to_pydict()["k"] == ["a", "b", "c", None, None]
    named = [record.message for record in caplog.records if "columns that the query does not read" in record.message]
    assert len(named) == 1
    assert ".parquet has new columns that the query does not read: v. They are ignored" in named[0]
    with pytest.raises(
        SchemaError, match=r"\d.parquet has new columns that the query does not read: v. Set schemaEvol"
    ):
        read_all(tmp_path, **options(splitBy=split_by, schemaEvolution="fail"))
    merged = read_all(tmp_path, **options(splitBy=split_by, schemaEvolution="addAtRestart")).sort_by("t")
    assert merged.column_names == ["t", "k", "v"]
    assert merged.to_pydict()["v"] == [None, None, 1, 2, 3]
    with pytest.raises(OptionError, match="schemaEvolution = addAtRestart: the columns are given by dataSchema"):
        read_all(tmp_path, **options(schemaEvolution="addAtRestart", dataSchema="t timestamp"))


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("wrapped", ["plain", "in a list", "in a map"])
def test_fields_in_structs_are_ignored_or_added_or_fail_the_query_as_columns_do(
    order: int, wrapped: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def column(value: dict[str, int]) -> pa.Array:
        kind: pa.DataType = pa.struct([(name, pa.int64()) for name in value])
        if wrapped == "in a list":
            return pa.array([[value]], pa.list_(kind))
        return pa.array([[("k", value)]], pa.map_(pa.string(), kind)) if wrapped == "in a map" else pa.array([value])

    files = [{"a": 1, "b": 2}, {"a": 3, "c": 4}][::order]
    for number, value in enumerate(files):
        put(tmp_path / f"{number}.parquet", {"t": stamps(number), "s": column(value)})
    new = "s.c" if order > 0 else "s.b"
    first = read_all(tmp_path, **options())["s"].type
    assert first == column(files[0]).type
    assert f"1.parquet has new columns that the query does not read: {new}. They are ignored" in caplog.text
    with pytest.raises(SchemaError, match=f"has new columns that the query does not read: {new}. Set schemaEvol"):
        read_all(tmp_path, **options(schemaEvolution="fail"))
    every = {**files[0], **files[1]}
    merged = read_all(tmp_path, **options(schemaEvolution="addAtRestart"))["s"]
    rows = [{name: value.get(name) for name in every} for value in files]
    found = merged.to_pylist()
    assert found == {"plain": rows, "in a list": [[row] for row in rows]}.get(wrapped, [[("k", row)] for row in rows])


def test_a_file_that_lacks_the_event_time_has_none_and_one_of_other_columns_is_refused(tmp_path: Path) -> None:
    put(tmp_path / "1.parquet", {"t": stamps(1), "k": ["a"]})
    put(tmp_path / "2.parquet", {"k": ["b"]})
    with pytest.raises(InvalidTimestampError, match="option invalidTimestamp = null keeps such records"):
        read_all(tmp_path, **options())
    assert read_all(tmp_path, **options(invalidTimestamp="null"))["k"].to_pylist() == ["a", "b"]
    put(tmp_path / "3.parquet", {"x": [1]})
    with pytest.raises(SchemaError, match=r"3.parquet has no column 't' nor any other that is read; it has x. Read it"):
        read_all(tmp_path, **options(invalidTimestamp="null"))


@pytest.mark.parametrize(
    ("first", "later", "values"),
    [
        (pa.int64(), pa.int32(), [7]),
        (pa.int64(), pa.uint16(), [7]),
        (pa.float64(), pa.float32(), [0.5]),
        (pa.float64(), pa.int32(), [7.0]),
        (pa.string(), pa.null(), [None]),
        (pa.struct([("a", pa.int64()), ("b", pa.string())]), pa.struct([("a", pa.int8())]), [{"a": 1, "b": None}]),
        (pa.list_(pa.int64()), pa.list_(pa.int32()), [[1]]),
        (pa.decimal128(20, 3), pa.decimal128(10, 2), [Decimal("1.25")]),
        (pa.string(), pa.dictionary(pa.int32(), pa.string()), ["x"]),
        (pa.timestamp("us", "UTC"), pa.timestamp("ns", "UTC"), None),
        (pa.timestamp("us"), pa.timestamp("ms"), None),
        (pa.decimal128(12, 2), pa.int32(), [Decimal(-(2**31))]),
        (pa.decimal128(20, 0), pa.int64(), [Decimal(-(2**63))]),
        (pa.decimal128(20, 0), pa.uint64(), [Decimal(2**64 - 1)]),
    ],
    ids=str,
)
def test_a_narrower_type_widens_to_that_of_the_query(
    tmp_path: Path, first: pa.DataType, later: pa.DataType, values: list[Any] | None
) -> None:
    given = {pa.struct([("a", pa.int8())]): [{"a": 1}]}.get(later, values or [1])
    narrow = pa.array(given, pa.int64()).cast(later) if values is None else pa.array(given, later)
    put(tmp_path / "1.parquet", {"t": stamps(1), "v": pa.nulls(1, first)})
    put(tmp_path / "2.parquet", {"t": stamps(2, unit="ms"), "v": narrow})
    read = read_all(tmp_path, **options())
    assert micros(read) == [T0 + SECOND, T0 + 2 * SECOND]
    found = read["v"].to_pylist()[1]
    assert found == (values[0] if values else narrow.cast(first, safe=False)[0].as_py())


MICROS = [("at", pa.int64()), ("all", pa.list_(pa.int64()))]


@pytest.mark.parametrize("first", ["us", "ns"])
def test_nanoseconds_are_cut_in_structs_and_lists_too(tmp_path: Path, first: str) -> None:
    def column(times: list[int | None], unit: str) -> pa.Array:
        kind = pa.timestamp(unit)
        fields = [pa.array(times, kind), pa.array([[None, *times], None, []], pa.list_(kind))]
        return pa.StructArray.from_arrays(fields, ["at", "all"], mask=pa.array([False, False, True]))

    put(tmp_path / "1.parquet", {"t": stamps(1, 2, 3), "s": column([0, 0, None], first)})
    put(tmp_path / "2.parquet", {"t": stamps(4, 5, 6), "s": column([-1, 1_001, None], "ns")}, row_group_size=2)
    found = read_all(tmp_path, **options())["s"].cast(pa.struct(MICROS))
    assert found.to_pylist()[3:] == [{"at": -1, "all": [None, -1, 1, None]}, {"at": 1, "all": None}, None]


def test_a_date_is_its_midnight_where_others_have_times_without_a_zone(tmp_path: Path) -> None:
    put(tmp_path / "1.parquet", {"t": stamps(1)})
    put(tmp_path / "2.parquet", {"t": pa.array([20_000, 20_001], pa.date32())}, row_group_size=1)
    given = options(timeZone="Europe/Berlin", eventTimeFrom="2024-10-05T00:00:00")
    # 2024-10-04 and 2024-10-05, an hour or two after the midnight of UTC.
    assert micros(read_all(tmp_path, **given)) == [(20_001 * 86_400 - 7_200) * SECOND]


@pytest.mark.parametrize(
    ("first", "later"),
    [
        (pa.int32(), pa.int64()),
        (pa.int64(), pa.float64()),
        (pa.float64(), pa.int64()),
        (pa.string(), pa.int64()),
        (pa.timestamp("us", "UTC"), pa.timestamp("us")),
        (pa.timestamp("ms", "UTC"), pa.timestamp("us", "UTC")),
        (pa.decimal128(10, 2), pa.decimal128(10, 3)),
        (pa.decimal128(11, 2), pa.int32()),
        (pa.timestamp("us", "UTC"), pa.date32()),
    ],
    ids=str,
)
def test_a_type_that_holds_more_is_refused_with_both(tmp_path: Path, first: pa.DataType, later: pa.DataType) -> None:
    put(tmp_path / "1.parquet", {"t": stamps(1), "v": pa.nulls(1, first)})
    put(tmp_path / "2.parquet", {"t": stamps(2), "v": pa.nulls(1, later)})
    with pytest.raises(
        SchemaError, match=re.escape(f"has column 'v' as {later}; the query reads it as {first}, which")
    ):
        read_all(tmp_path, **options())
    wider = {(pa.int32(), pa.int64()), (pa.timestamp("ms", "UTC"), pa.timestamp("us", "UTC"))}
    if (first, later) in wider:
        assert len(read_all(tmp_path, **options(schemaEvolution="addAtRestart"))) == 2


def test_orc_and_json_change_their_columns_as_parquet_does(tmp_path: Path) -> None:
    for number, columns in enumerate(({"t": stamps(1), "k": ["a"]}, {"t": stamps(2), "v": [1]})):
        orc.write_table(pa.table(columns), tmp_path / f"{number}.orc")
        text(tmp_path / "json" / f"{number}.json", json.dumps({"t": "2024-01-01", "kv"[number]: "a"}) + "\n")
    read = read_all(tmp_path, **options(fileFormat="orc", pathGlobFilter="*.orc"))
    assert read["k"].to_pylist() == ["a", None]
    read = read_all(tmp_path / "json", **options(fileFormat="json", dataSchema="t timestamp, k string"))
    assert read["k"].to_pylist() == ["a", None]


# ---- which files there are ---------------------------------------------------------------------------------------


@both_layouts
@pytest.mark.parametrize("kind", ["parquet", "orc", "csv"])
def test_a_file_of_0_bytes_is_skipped_with_a_word_until_it_has_some(
    tmp_path: Path, split_by: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / f"2.{kind}").touch()
    more = options(
        fileFormat=kind, splitBy=split_by, dataSchema="t timestamp_ntz", discoveryInterval="1 ms", maxDrift="1 d"
    )
    reading = Reading(stream_reader(tmp_path, **more))
    reading.next()
    for _ in range(3):
        assert reading.next() is None
    assert [r.message for r in caplog.records if r.levelno >= logging.WARNING] == [
        f"files of 0 bytes are skipped until they have some: {tmp_path}/2.{kind}"
    ]
    table = pa.table({"t": stamps(1)})
    if kind == "csv":
        (tmp_path / "2.csv").write_text("2024-01-01 00:00:00\n")
    else:
        content = io.BytesIO()
        (orc if kind == "orc" else pq).write_table(table, content)
        (tmp_path / f"2.{kind}").write_bytes(content.getvalue())
    while (read := reading.next()) is None or not len(read):
        pass
    reading.reader.stop()


@both_layouts
def test_files_are_chosen_by_when_they_were_modified_in_the_zone_of_the_session(tmp_path: Path, split_by: str) -> None:
    for hour in (1, 2, 3):
        put(tmp_path / f"{hour}.parquet", {"t": stamps(hour), "n": [hour]}, modified_s=1_704_067_200 + hour * 3600)

    def chosen(**more: str) -> list[int]:
        tables = (read(tmp_path, **options(splitBy=split_by, **more)) for read in (read_all, read_batch))
        one, other = (sorted(table["n"].to_pylist()) for table in tables)
        assert one == other
        return one

    assert chosen(modifiedAfter="2024-01-01T01:00:00") == [2, 3]
    assert chosen(modifiedBefore="2024-01-01T03:00:00") == [1, 2]
    assert chosen(modifiedAfter="2024-01-01T02:00:00", modifiedBefore="2024-01-01 05:00", timeZone="GMT+1") == [2, 3]
    with pytest.raises(OptionError, match="option modifiedAfter = 'noon': must be a time such as 2024-01-31T00:00:00"):
        data_source(tmp_path, **options(modifiedAfter="noon"))


@pytest.mark.parametrize(
    "more", [{}, {"fileOrder": "name"}, {"stateLocation": "state"}, {"cleanSource": "delete"}], ids=str
)
def test_with_file_name_only_a_name_is_read_once_wherever_it_lies(tmp_path: Path, more: dict[str, str]) -> None:
    put(tmp_path / "in/a/1.parquet", {"t": stamps(1)})
    put(tmp_path / "in/b/1.parquet", {"t": stamps(2)})
    if "stateLocation" in more:
        more = {"stateLocation": str(tmp_path / "state")}
    arguments = options(fileNameOnly="true", discoveryInterval="1 ms", maxOutOfOrderness="1 hour", **more)
    reading = Reading(stream_reader(tmp_path / "in", **arguments))
    (first,) = micros(reading.next())
    first_read = tmp_path / ("in/a/1.parquet" if first == T0 + SECOND else "in/b/1.parquet")
    put(tmp_path / "in/c/1.parquet", {"t": stamps(3)})
    put(tmp_path / "in/c/2.parquet", {"t": stamps(4)})
    while (table := reading.next()) is None or not len(table):
        pass
    assert micros(table) == [T0 + 4 * SECOND]
    reading.reader.stop()
    first_read.unlink()
    again = Reading(stream_reader(tmp_path / "in", **arguments))
    again.offset = reading.offset
    put(tmp_path / "in/d/2.parquet", {"t": stamps(5)})
    put(tmp_path / "in/d/3.parquet", {"t": stamps(6)})
    while (table := again.next()) is None or not len(table):
        pass
    assert micros(table) == [T0 + 6 * SECOND]
    assert len([*tmp_path.glob("in/*/1.parquet")]) == 2
    again.reader.stop()


def test_a_comma_in_a_path_is_a_comma(tmp_path: Path) -> None:
    put(tmp_path / "a,b" / "1.parquet", {"t": stamps(1)})
    assert len(read_all(tmp_path / "a,b", **options())) == 1


def test_what_sparks_file_sink_has_written_is_not_cleaned(tmp_path: Path) -> None:
    (tmp_path / "_spark_metadata").mkdir()
    more = options(cleanSource="delete", dataSchema="t timestamp")
    with pytest.raises(OptionError, match=r"cleanSource = delete: .* is the output of Spark's file sink"):
        Reading(stream_reader(tmp_path, **more)).next()


# ---- _metadata ---------------------------------------------------------------------------------------------------


@both_layouts
def test_metadata_is_that_of_spark(tmp_path: Path, split_by: str) -> None:
    for day in (1, 2):
        put(tmp_path / f"day={day}" / f"a b%{day}.parquet", {"t": stamps(day, day + 5)}, modified_s=1_700_000_000 + day)
    for more in ({}, {"recursiveFileLookup": "true"}, {"columns": "t"}):
        arguments = options(splitBy=split_by, fileMetadata="true", **more)
        for read in (read_all(tmp_path, **arguments), read_batch(tmp_path, **arguments)):
            assert ("day" in read.column_names) == (not more)
            for row in read.select(["t", "_metadata"]).to_pylist():
                file = row["_metadata"]
                path = next(tmp_path.glob(f"*/{unquote(file['file_name'])}"))
                assert file["file_path"] == f"file:{quote(str(path), safe='/=')}"
                assert file["file_size"] == path.stat().st_size
                assert file["file_modification_time"].timestamp() == path.stat().st_mtime
            assert pc.count_distinct(pc.struct_field(read["_metadata"], "file_path")).as_py() == 2
    own = put(tmp_path / "own" / "1.parquet", {"t": stamps(1), "_metadata": ["x"]})
    with pytest.raises(SchemaError, match="the data has a column '_metadata' of its own, which fileMetadata or"):
        data_source(own.parent, **options(fileMetadata="true")).schema()


@pytest.mark.parametrize("own", [["x"], [{"file_path": "x"}], [{"file_path": "x", "file_size": None}]])
def test_a_column_of_the_data_that_has_the_name_of_metadata_is_read(tmp_path: Path, own: list[Any]) -> None:
    put(tmp_path / "day=1" / "1.parquet", {"t": stamps(1), "_metadata": own})
    for read in (read_all(tmp_path, **options()), read_batch(tmp_path, **options())):
        assert read.column("_metadata").to_pylist() == own


def test_metadata_may_be_the_event_time(tmp_path: Path) -> None:
    put(tmp_path / "1.parquet", {"n": [1, 2]}, modified_s=1_700_000_000)
    read = read_all(tmp_path, eventTimeColumn="_metadata.file_modification_time", fileMetadata="true")
    assert micros(read) == [1_700_000_000 * SECOND] * 2


# ---- zones -------------------------------------------------------------------------------------------------------

NOON_IN_TOKYO = 1_704_078_000_000_000


@pytest.mark.parametrize("kind", ["csv", "json", "pattern", "text", "ntz", "date"])
def test_a_time_without_a_zone_is_in_that_of_the_session(tmp_path: Path, kind: str) -> None:
    of_format: dict[str, Any] = {"fileFormat": "csv", "dataSchema": "t timestamp, n timestamp_ntz"}
    noon = "2024-01-01 12:00:00"
    if kind == "json":
        text(tmp_path / "f", json.dumps({"t": noon, "n": noon}) + "\n")
        of_format["fileFormat"] = "json"
    elif kind in ("ntz", "date"):
        when = pa.array([NOON_IN_TOKYO // SECOND + 9 * 3600], pa.int64()).cast(pa.timestamp("s"))
        put(tmp_path / "f", {"t": when.cast(pa.date32() if kind == "date" else pa.timestamp("us"), safe=False)})
        of_format = {}
    else:
        text(tmp_path / "f", f"{noon},{noon}\n" if kind != "pattern" else "1.1.24 12h,1.1.24 12h\n")
        if kind == "pattern":
            of_format["timestampFormat"] = "d.M.yy H'h'"
        if kind == "text":
            of_format["dataSchema"] = "t string, n string"
    read = read_all(tmp_path, **options(timeZone="Asia/Tokyo", **of_format))
    assert micros(read) == [NOON_IN_TOKYO - (12 * 3600 * SECOND if kind == "date" else 0)]
    if kind in ("csv", "json", "pattern"):
        # What has no zone by its type stays as it is written.
        assert str(read["n"][0]) == noon


def test_statistics_of_times_without_a_zone_are_trusted_only_where_clocks_go_on_evenly(tmp_path: Path) -> None:
    # On 2024-03-31 at 2:00 the clocks of Berlin went on to 3:00: 2:59 is written, and means 3:59.
    local = ["2024-03-31 01:00", "2024-03-31 02:59", "2024-03-31 03:01"]
    column = pa.array(local).cast(pa.timestamp("us"))
    path = put(tmp_path / "1.parquet", {"t": column})
    schema, assigner = pa.schema([("t", column.type)]), FieldTimestampAssigner("t", zone="Europe/Berlin")
    blocks = ParquetFormat().describe(StoredFile(fs.LocalFileSystem(), DataFile(str(path))), schema, assigner, "auto")
    times = assigner.extract(pa.record_batch({"t": column}), None)
    midnight = 1_711_843_200_000_000
    assert times.values.tolist() == [midnight + minutes * 60 * SECOND for minutes in (0, 119, 61)]
    assert (blocks.min_us[0], blocks.max_us[0]) == (times.min(), times.max())


def test_a_zone_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="option timeZone = 'Mars/Base': there is no such zone; give one such as"):
        data_source(tmp_path, **options(timeZone="Mars/Base"))


def test_the_column_of_text_may_be_named_and_every_column_may_be_null(tmp_path: Path) -> None:
    assert "value" in data_source(tmp_path, fileFormat="text", eventTimeColumn="value").schema().names
    text(tmp_path / "f", "2024-01-01\n")
    more = {"fileFormat": "text", "eventTimeColumn": "line"}
    assert read_all(tmp_path, **more, dataSchema="line string")["line"].to_pylist() == ["2024-01-01"]
    required = pa.schema([pa.field("t", pa.timestamp("us"), nullable=False)])
    put(tmp_path / "p" / "f", pa.table({"t": stamps(1)}, schema=required))
    assert all(field.nullable for field in data_source(tmp_path / "p", **options()).schema())
    with pytest.raises(SchemaError, match="columns line string, n int64: text has one column of type string"):
        read_all(tmp_path, **more, dataSchema="line string, n bigint")


# ---- CSV under Spark's names -------------------------------------------------------------------------------------


@pytest.mark.parametrize("multi_line", ["false", "true"])
def test_comments_and_dates_are_read_as_spark_reads_them(tmp_path: Path, multi_line: str) -> None:
    frame = StructType().add("t", TimestampType()).add("d", DateType()).add("s", StringType())
    text(tmp_path / "f", '#"of\nt|d|s\n2024-01-01|31.12.2023|a#b\n# one "\n2024-01-02|1.1.2024|c\n#')
    read = read_all(
        tmp_path,
        frame,
        **options(fileFormat="csv", header="true", delimiter="|", comment="#", dateFormat="d.M.yyyy", charset="utf-8"),
        multiLine=multi_line,
    )
    assert [str(day) for day in read["d"]] == ["2023-12-31", "2024-01-01"]
    assert read["s"].to_pylist() == ["a#b", "c"]
    with pytest.raises(OptionError, match=r"options sep = ';' and delimiter = '\|' are the same: give one of"):
        data_source(tmp_path, **options(fileFormat="csv", sep=";", delimiter="|"))
    with pytest.raises(OptionError, match="dateFormat = 'q': the letter q is not known"):
        data_source(tmp_path, **options(fileFormat="csv", dateFormat="q"))


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_what_has_no_place_is_rescued_as_json(tmp_path: Path, kind: str) -> None:
    rows = [{"t": "2024-01-01", "n": "1"}, {"t": "2024-01-01", "n": "x", "more": "é,"}, {"t": "2024-01-01", "n": ""}]
    if kind == "json":
        rows = [{**row, "n": 1} if row["n"] == "1" else row for row in rows]  # type: ignore[dict-item]
        text(
            tmp_path / "f", "".join(json.dumps(row) + "\n" for row in [*rows, {"t": "2024-01-01", "deep": {"a": [1]}}])
        )
    else:
        text(tmp_path / "f", 't,n,more\n2024-01-01,1,\n2024-01-01,x,"é,"\n2024-01-01,,\n1,2\n')
    more = options(fileFormat=kind, dataSchema="t timestamp, n int", rescuedDataColumn="_rescued_data")
    header = {"header": "true"} if kind == "csv" else {}
    for read in (read_all, read_batch):
        found = read(tmp_path, **more, **header, invalidTimestamp="null")
        assert found.column_names == ["t", "n", "_rescued_data"]
        assert found["n"].to_pylist() == [1, None, None, None if kind == "json" else 2]
        rescued = [None if one is None else json.loads(one) for one in found["_rescued_data"].to_pylist()]
        last = {"n": "", "_file_path": f"{tmp_path}/f"} if kind == "json" else None
        deep = {**({"deep": {"a": [1]}} if kind == "json" else {"t": "1"}), "_file_path": f"{tmp_path}/f"}
        assert rescued == [None, {"n": "x", "more": "é,", "_file_path": f"{tmp_path}/f"}, last, deep]


# ---- secrets -----------------------------------------------------------------------------------------------------


def test_a_secret_is_struck_out_where_it_stands_by_itself() -> None:
    with pytest.raises(PathNotFoundError, match=r"knows the scheme '\*\*\*': pyarrow knows file, s3,"):
        data_source("nope://bucket/path", **options(**{"storage.key": "nope", "storage.user": "s"})).schema()
