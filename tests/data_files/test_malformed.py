"""Malformed files and records: the error, or the row, that the mode asks for; naming file and record."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import ipc, orc
from pyarrow import parquet as pq
from pyspark.sql.types import LongType, StringType, StructType, TimestampType

from alignment.exceptions import AlignmentError, InvalidTimestampError
from alignment.timestamps import FieldTimestampAssigner
from streaming_source.connectors.files import (
    ArrowFormat,
    CsvFormat,
    FileFormat,
    JsonFormat,
    OrcFormat,
    ParquetFormat,
    TextFormat,
)
from streaming_source.data_files.file import FileRows
from streaming_source.data_files.formats import json_values, lines
from streaming_source.data_files.formats.json_values import elements_in
from streaming_source.exceptions import DataLossError, MalformedDataError, SchemaError
from tests.data_files.samples import SAMPLES, SCHEMA, TEXT_SCHEMA, Sample, understood
from tests.data_files.test_formats import rows_read, stored
from tests.examples import each_once, examples
from tests.spark.reading import read_all, read_batch

WITH_CORRUPT = SCHEMA.append(pa.field("_corrupt_record", pa.string()))
BY_T = FieldTimestampAssigner("t")
DAY = understood("2024-01-01")
NOTHING = (None, None, None)


def read(file_format: FileFormat, path: Path, schema: pa.Schema = SCHEMA) -> list[tuple[int, tuple[Any, ...]]]:
    """All rows as the planner counts them."""
    assigner = FieldTimestampAssigner(schema.names[0])
    rows = int(file_format.describe(stored(path), schema, assigner, "auto").rows.sum())
    return rows_read(file_format, path, 0, rows, schema)


# ---- records -------------------------------------------------------------------------------------------------------

# What stands in the file beside two good records; what of it can be read; why it cannot all be.
CSV_RECORDS = {
    "too few columns": (b"2024-01-01,1", (DAY, 1, None), "Expected 3 columns, got 2"),
    "too many columns": (b"2024-01-01,1,a,b", (DAY, 1, "a"), "Expected 3 columns, got 4"),
    "a quote that does not end": (b'2024-01-01,"1,a', (DAY, None, None), "Expected 3 columns, got 2"),
    "a time that is none": (b"soon,1,a", (None, 1, "a"), "'soon' is not ISO-8601, or out of range"),
    "a time beyond microseconds": (b"300000-01-01,1,a", (None, 1, "a"), "is not ISO-8601, or out of range"),
    "a 30th of February": (b"2024-02-30,1,a", (None, 1, "a"), "is not ISO-8601, or out of range"),
    "a number that is none": (b"2024-01-01,one,a", (DAY, None, "a"), "n = 'one' is no bigint"),
    "a number that is too large": (
        b"2024-01-01,9223372036854775808,a",
        (DAY, None, "a"),
        "'9223372036854775808' is no",
    ),
    "a fraction": (b"2024-01-01,1.5,a", (DAY, None, "a"), "'1.5' is no bigint"),
    "a number after a blank": (b"2024-01-01, 1,a", (DAY, None, "a"), "' 1' is no bigint"),
    "a number before a blank": (b"2024-01-01,1 ,a", (DAY, None, "a"), "'1 ' is no bigint"),
    "a number after a tab": (b"2024-01-01,\t1,a", (DAY, None, "a"), "'\\t1' is no bigint"),
    "a number after a quoted blank": (b'2024-01-01," 1",a', (DAY, None, "a"), "' 1' is no bigint"),
    "a number in hexadecimal digits": (b"2024-01-01,0x1f,a", (DAY, None, "a"), "'0x1f' is no bigint"),
    "text between a quote and a separator": (b'2024-01-01,"1" x,a', (DAY, None, "a"), "'\"1\" x' is no bigint"),
}
JSON_RECORDS = {
    "no JSON": (b"t: 2024-01-01", NOTHING, "Invalid value at character 0: 't'"),
    "half an object": (b'{"t": "2024-01-01", "n": 1', NOTHING, "a comma or } is missing at character"),
    "an object in which something is missing": (b'{"t": "2024-01-01", "n": }', NOTHING, "Invalid value"),
    "a number": (b"5", NOTHING, "no JSON object"),
    "null": (b"null", NOTHING, "no JSON object"),
    "an array of others than objects": (b'[1, {"n": 2}]', NOTHING, "no JSON object"),
    "invalid UTF-8": (b'{"t": "2024-01-01", "s": "\xff"}', NOTHING, "invalid start byte"),
    "a control character": (b'{"t": "2024-01-01", "s": "a\tb"}', NOTHING, "has a character that it must not have"),
    "a text for a number": (b'{"t": "2024-01-01", "n": "1"}', (DAY, None, None), "n = '1' is no bigint"),
    "a fraction for a number": (b'{"t": "2024-01-01", "n": 1.0}', (DAY, None, None), "n = 1.0 is no bigint"),
    "a fraction for a time": (b'{"t": 1.5, "n": 1}', (None, 1, None), "t = 1.5 is no timestamp"),
    "empty text for a time": (b'{"t": "", "n": 1}', (None, 1, None), "t = '' is no timestamp"),
    "a time that is none": (b'{"t": "soon", "s": "a"}', (None, None, "a"), "is not ISO-8601, or out of range"),
    "a number that is too large": (
        b'{"t": "2024-01-01", "n": 9223372036854775808}',
        (DAY, None, None),
        "9223372036854775808 is no bigint",
    ),
    "a name twice, the second of another type": (
        b'{"t": "2024-01-01", "n": 1, "n": "2"}',
        (DAY, 1, None),
        "n = '2' is no bigint",
    ),
}
GOOD = {"csv": b"2024-01-01,7,good", "json": b'{"t": "2024-01-01", "n": 7, "s": "good"}'}
GOOD_ROW = (DAY, 7, "good")

malformed_records = pytest.mark.parametrize(
    ("name", "record", "readable", "reason"),
    [("csv", *case) for case in CSV_RECORDS.values()] + [("json", *case) for case in JSON_RECORDS.values()],
    ids=[f"csv: {case}" for case in CSV_RECORDS] + [f"json: {case}" for case in JSON_RECORDS],
)


@pytest.mark.parametrize("name", ["csv", "json"])
def test_what_cannot_be_read_is_null_and_the_first_record_of_each_file_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    record = {"csv": b"2024-01-01,one,a", "json": b'{"t": "2024-01-01", "n": "one", "s": "a"}'}[name]
    (tmp_path / "f").write_bytes(b"\n".join([GOOD[name], record, record]))
    rows = rows_read(format_named(name), tmp_path / "f", 0, 3, SCHEMA)
    assert [row for _, row in rows] == [GOOD_ROW, (DAY, None, "a"), (DAY, None, "a")]
    (line,) = [record.message for record in caplog.records]
    assert "f: record 1 is malformed: n = 'one' is no bigint. It is kept, null where it cannot be read" in line
    caplog.clear()
    rows_read(format_named(name), tmp_path / "f", 0, 3, WITH_CORRUPT)
    assert not caplog.records


def format_named(name: str, **attributes: Any) -> FileFormat:
    return CsvFormat(**attributes) if name == "csv" else JsonFormat(**attributes)


@malformed_records
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_a_malformed_record_is_kept_left_out_or_fails_and_the_others_keep_their_numbers(
    name: str, record: bytes, readable: tuple[Any, ...], reason: str, end: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "f"
    path.write_bytes(end.join([GOOD[name], record, GOOD[name], b""]))
    text = record.decode("utf-8", "replace")
    kept = read(format_named(name, mode="PERMISSIVE"), path, WITH_CORRUPT)
    assert kept == [(0, (*GOOD_ROW, None)), (1, (*readable, text)), (2, (*GOOD_ROW, None))]
    assert read(format_named(name, mode="PERMISSIVE"), path) == [(i, row[:3]) for i, row in kept]
    assert read(format_named(name, mode="DROPMALFORMED"), path) == [(0, GOOD_ROW), (2, GOOD_ROW)]
    message = rf"(?s)^{re.escape(str(path))}, record 1 is malformed: .*{re.escape(reason)}.*Option mode = PERMISSIVE"
    with pytest.raises(MalformedDataError, match=message):
        rows_read(format_named(name, mode="FAILFAST"), path, 0, 3, SCHEMA)


POOLS = {
    "csv": [case[0] for case in CSV_RECORDS.values()]
    + [GOOD["csv"], b"", b",,", b',"",""', b'"a""b",2,"c"x', b'a"b,,"'],
    "json": [case[0] for case in JSON_RECORDS.values()]
    + [GOOD["json"], b"", b" ", b"{}", b'{"z": [1, {}]}', b"}", b"{"],
}


@pytest.mark.parametrize(("name", "multi_line"), each_once(["csv", "json"], [False, True]))
@given(data=st.data())
@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_becomes_of_a_record_depends_neither_on_its_neighbours_nor_on_the_columns_that_are_read(
    name: str, multi_line: bool, tmp_path: Path, data: st.DataObject
) -> None:
    if name == "json" and multi_line:
        multi_line = False  # one document has no records that could be cut apart
    # A first line that names a column fails, whatever the mode.
    anything = st.binary(max_size=20).filter(
        lambda record: not {b"t", b"n", b"s"} & {*re.findall(rb"\w+", record.lower())}
    )
    records = data.draw(st.lists(st.sampled_from(POOLS[name]) | anything, max_size=12))
    path = tmp_path / "f"
    path.write_bytes(b"\n".join(records))

    def having(size: int) -> FileFormat:
        return format_named(name, block_bytes=size, multi_line=multi_line)

    together = read(having(1 << 20), path, WITH_CORRUPT)
    assert read(having(1), path, WITH_CORRUPT) == together
    if not multi_line:
        blanks = bytes(range(33)) if name == "csv" else b" \t\r\n"
        lines_of_file = [line for line in re.split(rb"\r\n|\r|\n", path.read_bytes()) if line.strip(blanks)]
        if not any(line.lstrip().startswith(b"[") for line in lines_of_file):
            assert len(together) == len(lines_of_file)
    for columns in (["t"], ["n"], ["s", "t"]):
        some = pa.schema([SCHEMA.field(column) for column in columns])
        projected = (
            having(50) if name == "json" else CsvFormat(names=("t", "n", "s"), block_bytes=50, multi_line=multi_line)
        )
        places = [SCHEMA.get_field_index(column) for column in columns]
        expected = [(number, tuple(row[i] for i in places)) for number, row in together]
        assert rows_read(projected, path, 0, len(together), some) == expected
    times = having(30).event_times(FileRows(stored(path), 0, len(together)), SCHEMA, BY_T)
    assert times.tolist() == [-(2**63) if row[0] is None else row[0] for _, row in together]


JSON = st.recursive(
    st.sampled_from([None, True, False, 0, -12, 1.5e-7, 1e40, "", "a", 'é"\\\n\u2028', "[{"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b c", "é", ""]), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(
    st.lists(st.dictionaries(st.sampled_from(["a", "é"]), JSON, max_size=3) | JSON, max_size=4),
    st.sampled_from([None, 1]),
    st.lists(
        st.tuples(st.integers(0, 200), st.sampled_from([*"'\"\\{}[],:0 \n\t.-+eNx", "true", "Infinity"])), max_size=2
    ),
)
def test_objects_of_a_document_are_found_at_once_as_they_are_value_by_value(
    records: list[object], indent: int | None, written_over: list[tuple[int, str]]
) -> None:
    document = json.dumps(records, indent=indent, ensure_ascii=False)
    for at, text in written_over:
        document = document[:at] + text + document[at + 1 :]

    def found() -> list[str] | str:
        try:
            return list(elements_in(document))
        except ValueError as error:
            return str(error)

    at_once = found()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_values, "_object_near", lambda: re.compile("(?!)"))
        assert at_once == found()


@pytest.mark.parametrize("multi_line", [False, True])
def test_a_quoted_line_end_ends_a_record_unless_multi_line_says_otherwise(multi_line: bool, tmp_path: Path) -> None:
    path = tmp_path / "f.csv"
    path.write_bytes(b't,n,s\n2024-01-01,1,"a\nb"\n2024-01-01,2,"c""\r\n"\n2024-01-01,3,d')
    rows = read(CsvFormat(header=True, escape='"', multi_line=multi_line), path)
    if multi_line:
        assert [row for _, row in rows] == [(DAY, 1, "a\nb"), (DAY, 2, 'c"\r\n'), (DAY, 3, "d")]
    else:
        broken = [(DAY, 1, "a"), NOTHING, (DAY, 2, 'c"'), NOTHING]
        assert [row for _, row in rows] == [*broken, (DAY, 3, "d")]


@pytest.mark.parametrize("size", range(1, 50))
def test_a_block_that_ends_behind_an_escape_ends_no_record(size: int, tmp_path: Path) -> None:
    path = tmp_path / "f.csv"
    path.write_bytes(b'2024-01-01,1,"a\n\\"b\\\\"\n2024-01-01,2,"c\\"\nd"\n')
    rows = read(CsvFormat(escape="\\", multi_line=True, block_bytes=size), path)
    assert rows == [(0, (DAY, 1, 'a\n"b\\')), (1, (DAY, 2, 'c"\nd'))]


@pytest.mark.parametrize("name", ["csv", "json", "text"])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"], ids=["LF", "CRLF"])
@pytest.mark.parametrize("last", [True, False], ids=["ended", "not ended"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["no mark", "byte order mark"])
@pytest.mark.parametrize("size", [1, 20, 1000])
def test_lines_end_as_they_will_and_may_begin_with_a_byte_order_mark(
    name: str, end: bytes, last: bool, mark: bytes, size: int, tmp_path: Path
) -> None:
    path = tmp_path / "f"
    line = GOOD.get(name, b"2024-01-01")
    path.write_bytes(mark + end.join([line] * 3) + end * last)
    schema = TEXT_SCHEMA if name == "text" else SCHEMA
    file_format = TextFormat(block_bytes=size) if name == "text" else format_named(name, block_bytes=size)
    assert read(file_format, path, schema) == [(i, ("2024-01-01",) if name == "text" else GOOD_ROW) for i in range(3)]


# ---- files ---------------------------------------------------------------------------------------------------------


def parquet_bytes() -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table([[0], [1], ["a"]], schema=SCHEMA), out)
    return out.getvalue()


def arrow_bytes(new: Any = ipc.new_file) -> bytes:
    out = io.BytesIO()
    with new(out, SCHEMA) as writer:
        writer.write_table(pa.table([[0] * 100, [1] * 100, ["a"] * 100], schema=SCHEMA))
    return out.getvalue()


def orc_bytes() -> bytes:
    out = io.BytesIO()
    orc.write_table(pa.table([[0], [1], ["a"]], schema=SCHEMA), out)
    return out.getvalue()


CSV = CsvFormat(header=True)
BROKEN_FILES: dict[str, tuple[FileFormat, str, bytes, str]] = {
    "truncated Parquet": (ParquetFormat(), "f.parquet", parquet_bytes()[:-9], "is not a readable Parquet file"),
    "another magic": (ParquetFormat(), "f.parquet", b"ZIP!" + orc_bytes(), "is not a readable Parquet file"),
    "no bytes of Parquet": (ParquetFormat(), "f.parquet", b"", "is not a readable Parquet file.*size is 0 bytes"),
    "a file of notes": (ParquetFormat(), "README.md", b"notes", "is not a readable .*another kind .*pathGlobFilter"),
    "truncated ORC": (OrcFormat(), "f.orc", orc_bytes()[:-9], "is not a readable ORC file"),
    "Parquet as ORC": (OrcFormat(), "f.orc", parquet_bytes(), "is not a readable ORC file"),
    "no bytes of ORC": (OrcFormat(), "f.orc", b"", "is not a readable ORC file"),
    "truncated Arrow file": (ArrowFormat(), "f.arrow", arrow_bytes()[:-9], "is not a readable Arrow file"),
    "truncated Arrow stream": (
        ArrowFormat(),
        "f.arrow",
        arrow_bytes(ipc.new_stream)[:-400],
        "cannot be read as arrow after row 0: Expected to be able to read",
    ),
    "Parquet as Arrow": (ArrowFormat(), "f.arrow", parquet_bytes(), "is not a readable Arrow file"),
    "no bytes of Arrow": (ArrowFormat(), "f.arrow", b"", "is not a readable Arrow file"),
    "Feather of version 1": (ArrowFormat(), "f.feather", b"FEA1" + b"\0" * 50, "Feather file of version 1"),
    "no gzip": (CSV, "f.csv.gz", b"t,n,s\n2024-01-01,1,a\n", "incorrect header check"),
    "truncated gzip": (CSV, "f.csv.gz", gzip.compress(b"t,n,s\n2024-01-01,1,a\n")[:-12], "Truncated compressed stream"),
    "gzip in which a bit is wrong": (
        CSV,
        "f.csv.gz",
        gzip.compress(b"t,n,s\n" + b"2024-01-01,1,a\n" * 9, mtime=0)[:15] + b"\xff" * 30,
        "cannot be read after byte",
    ),
    "snappy": (CSV, "f.csv.snappy", b"", "does not decompress this in parts; compress it with gzip"),
    "an encoding that it has not": (
        CsvFormat(encoding="ascii"),
        "f.csv",
        b"2024-01-01,1,\xe9\n",
        "can't decode byte 0xe9",
    ),
    "half of UTF-16": (CsvFormat(encoding="utf-16-le"), "f.csv", b"\x00\xd8" * 3, "cannot be read after byte"),
}


@pytest.mark.parametrize(("file_format", "name", "data", "reason"), BROKEN_FILES.values(), ids=BROKEN_FILES)
def test_a_file_that_cannot_be_read_at_all_is_an_error_whatever_the_mode(
    file_format: FileFormat, name: str, data: bytes, reason: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(MalformedDataError, match=rf"(?s){re.escape(str(path))}.*{reason}"):
        read(file_format, path)


MANY_LINES = b"".join(b"2024-01-01,%d,a\n" % number for number in range(20_000))
COMPRESSED = {
    "gz": gzip.compress(MANY_LINES, mtime=0),
    "bz2": bz2.compress(MANY_LINES, 1),
    "zst": pa.compress(MANY_LINES, "zstd", asbytes=True),
}


@pytest.mark.parametrize("ending", COMPRESSED)
def test_the_place_where_a_compressed_file_breaks_is_named(ending: str, tmp_path: Path) -> None:
    whole = COMPRESSED[ending]
    path = tmp_path / f"f.csv.{ending}"
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(MalformedDataError, match="cannot be read after byte") as raised:
        read(CsvFormat(), path)
    place = re.search(r"after byte (\d+)", str(raised.value))
    assert place is not None
    # Of zstd and bz2 a block is read as a whole.
    assert len(MANY_LINES) / 5 < int(place[1]) < len(MANY_LINES)


@pytest.mark.parametrize("parts", [[MANY_LINES, b"", b"2025-01-01,1,b\n"], [b"", MANY_LINES], [MANY_LINES, b""]])
@pytest.mark.parametrize("ending", ["gz", "bz2"])
def test_empty_parts_of_a_compressed_file_are_read_over(ending: str, parts: list[bytes], tmp_path: Path) -> None:
    compress = gzip.compress if ending == "gz" else bz2.compress
    path = tmp_path / f"f.csv.{ending}"
    path.write_bytes(b"".join(map(compress, parts)))
    assert len(read(CsvFormat(), path)) == b"".join(parts).count(b"\n")


# Bytes of a footer, and others of the same length that say something else; 51 rows of one row group.
CONTRADICTIONS = {
    "a type that is not the column's": ("1c 15 04 19", "1c 15 0a 19", "'t' of row group 0 is DOUBLE, but INT64 by the"),
    "a type that there is not": (
        "1c 15 04 19",
        "1c 15 20 19",
        "'t' of row group 0 is UNKNOWN, but INT64 by the schema",
    ),
    "fewer values": ("15 02 16 66", "15 02 16 64", "'t' of row group 0 has 50 values for 51 rows"),
    "a chunk that is too long": (
        "16 b8 05",
        "16 b8 75",
        "'t' of row group 0 lies at bytes 4 to 7520, but the file has",
    ),
    "a chunk before the file": ("26 08 1c", "26 09 1c", "'t' of row group 0 lies at bytes -5 to"),
    "a row group with fewer rows": ("16 66 26", "16 64 26", "51 rows in all, and in its row groups 50"),
    "a row group with less than no rows": ("16 66 26", "16 65 26", "51 rows in all, and in its row groups -51"),
    "more rows in all": ("00 16 66 19", "00 16 68 19", "52 rows in all, and in its row groups 51"),
    "an end before its begin": (
        "28 08 32 00 00 00 00 00 00 00",
        "28 08 32 ff ff ff ff ff ff ff",
        "row group 0 begins at event time 0 and ends at -206",
    ),
}


@pytest.mark.parametrize(("there", "instead", "reason"), CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_a_footer_that_contradicts_itself_is_refused_before_it_is_believed(
    there: str, instead: str, reason: str, tmp_path: Path
) -> None:
    schema = pa.schema([SCHEMA.field("t"), SCHEMA.field("n")])
    path = tmp_path / "f.parquet"
    pq.write_table(pa.table([list(range(51))] * 2, schema=schema), path, store_schema=False)
    content = path.read_bytes()
    assert len(read(ParquetFormat(), path, schema)) == 51
    length = 8 + int.from_bytes(content[-8:-4], "little")
    footer = content[-length:].replace(bytes.fromhex(there), bytes.fromhex(instead), 1)
    assert footer != content[-length:]
    path.write_bytes(content[:-length] + footer)
    message = rf"{re.escape(str(path))} is not a readable Parquet file: its footer contradicts itself: .*{reason}"
    with pytest.raises(MalformedDataError, match=message):
        read(ParquetFormat(), path, schema)


@pytest.mark.parametrize(
    "file_format", [CsvFormat(), CSV, JsonFormat(), JsonFormat(multi_line=True), TextFormat()], ids=str
)
def test_a_file_of_lines_without_bytes_has_no_records(file_format: FileFormat, tmp_path: Path) -> None:
    path = tmp_path / "f"
    for data in (b"", b"\xef\xbb\xbf"):
        path.write_bytes(data)
        assert read(file_format, path, TEXT_SCHEMA if file_format == TextFormat() else SCHEMA) == []


def test_a_header_alone_is_no_record(tmp_path: Path) -> None:
    path = tmp_path / "f"
    for header in (b"t,n,s", b"s,t,n\n", b'\r\n"t",n,"s"\r\n', b"t,n,s\n\n\n"):
        path.write_bytes(header)
        assert read(CSV, path) == []


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"t;n;s\n2024-01-01;1;a\n", "has no column 't' nor any other that is read; it has t;n;s. Look at options"),
        (b"t,n,n,s\n", "has more than one column of the name 'n'; rename them"),
    ],
)
def test_a_header_must_name_one_of_the_columns_and_none_twice(header: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(header)
    with pytest.raises(SchemaError, match=f"{re.escape(str(path))} {message}"):
        read(CSV, path)


@pytest.mark.parametrize("data_type", [pa.int64(), pa.float64(), pa.bool_(), pa.string(), pa.timestamp("us")], ids=str)
def test_a_single_column_may_be_quoted(data_type: pa.DataType, tmp_path: Path) -> None:
    path = tmp_path / "f"
    value = {"timestamp[us]": b'"2024-01-01"', "bool": b'"true"'}.get(str(data_type), b'"1"')
    path.write_bytes(b"\n".join([value, b"", value, value[:-1], b'""', value]))
    rows = rows_read(CsvFormat(), path, 0, 5, pa.schema([("a", data_type)]))
    good = rows[0][1][0]
    assert good is not None
    open_quote = value[1:-1].decode() if data_type == pa.string() else good
    assert [row[0] for _, row in rows] == [good, good, open_quote, None, good]


def test_a_type_that_a_format_has_not_is_named(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"2024-01-01,1,a\n")
    nested = pa.schema([SCHEMA.field("t"), SCHEMA.field("n"), pa.field("s", pa.list_(pa.int64()))])
    with pytest.raises(SchemaError, match=r"a type that csv cannot be read as: CSV conversion to list.* not supported"):
        read(CsvFormat(), path, nested)
    with pytest.raises(SchemaError, match=r"column '_corrupt_record' is int64: .* must be string"):
        read(CsvFormat(), path, SCHEMA.append(pa.field("_corrupt_record", pa.int64())))
    with pytest.raises(SchemaError, match=r"columns t timestamp.*: text has one column of type string"):
        read(TextFormat(), path)


def test_a_record_that_does_not_end_does_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "LONGEST_RECORD", 1000)
    path = tmp_path / "f"
    path.write_bytes(b"2024-01-01,1,a\n" + b'2024-01-01,1,"' + b"a\n" * 2000)
    assert len(read(CsvFormat(block_bytes=100), path)) == 2001
    with pytest.raises(MalformedDataError, match="the record at byte 15 has no end within"):
        read(CsvFormat(block_bytes=100, multi_line=True), path)


def test_a_document_that_is_no_json_is_one_malformed_record(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b'[{"t": "2024-01-01"},\n {"t": ')
    assert read(JsonFormat(multi_line=True), path, WITH_CORRUPT) == [(0, (*NOTHING, '[{"t": "2024-01-01"},  {"t": '))]
    path.write_bytes(b"[" * 100_000)
    assert len(read(JsonFormat(multi_line=True), path)) == 1


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.id)
def test_a_file_that_is_gone_or_has_fewer_rows_is_a_loss(sample: Sample, tmp_path: Path) -> None:
    path = tmp_path / f"f{sample.ending}"
    with pytest.raises(DataLossError, match=f"{path} is gone"):
        rows_read(sample.reads_as(100), path, 0, 3, sample.schema)
    sample.write(path, [(0, 1, "a"), (0, 1, "a")], 1)
    with pytest.raises(DataLossError, match=f"{path} has 2 rows, but rows 1 to 3 were planned: it was replaced"):
        rows_read(sample.reads_as(100), path, 1, 3, sample.schema)


# ---- anything ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.id)
@given(data=st.data())
@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_is_in_a_file_gives_rows_or_an_error_of_this_library(
    sample: Sample, tmp_path: Path, data: st.DataObject
) -> None:
    path = tmp_path / f"f{sample.ending}"
    sample.write(path, [(i * 1_000_003, i, "xy"[: i % 3] or None) for i in range(20)], 9)
    content, footer = bytearray(path.read_bytes()), b""
    if sample.reads_as(0) == ParquetFormat():
        # There are footers, well formed as they are, over which pyarrow ends the process and not just the call: those
        # whose histograms of levels do not fit the schema.
        length = 8 + int.from_bytes(content[-8:-4], "little")
        content, footer = content[:-length], bytes(content[-length:])
    if data.draw(st.booleans(), label="mutated"):
        for _ in range(data.draw(st.integers(1, 4))):
            begin = data.draw(st.integers(0, len(content)))
            end = data.draw(st.integers(begin, min(begin + 12, len(content))))
            content[begin:end] = data.draw(st.binary(max_size=8))
    else:
        content, footer = bytearray(data.draw(st.binary(max_size=200))), b""
    path.write_bytes(content + footer)
    file_format = sample.reads_as(50)
    error = None
    try:
        found = file_format.describe(stored(path), sample.schema, FieldTimestampAssigner(sample.time), "auto")
        rows = int(found.rows.sum())
        blocks = list(file_format.read_rows(FileRows(stored(path), 0, rows), sample.schema))
        assert sum(block.batch.num_rows for block in blocks) == rows
        start = data.draw(st.integers(0, rows), label="start")
        stop = data.draw(st.integers(start, rows), label="stop")
        whole = rows_read(file_format, path, 0, rows, sample.schema)
        assert rows_read(file_format, path, start, stop, sample.schema) == whole[start:stop]
    except AlignmentError as expected:
        error = str(expected)
    assert error is None or str(path) in error


@pytest.mark.parametrize("unit", [0, 1, 2], ids=["months", "days and milliseconds", "months, days and nanoseconds"])
def test_an_interval_in_arrow_is_refused_by_its_column_and_can_be_left_out(unit: int, tmp_path: Path) -> None:
    interval = pa.month_day_nano_interval()
    schema = pa.schema([("t", pa.timestamp("us", "UTC")), ("i", interval)])
    sink = pa.BufferOutputStream()
    with ipc.new_stream(sink, schema) as writer:
        writer.write_batch(
            pa.record_batch([pa.array([0], schema.field("t").type), pa.nulls(1, interval)], schema=schema)
        )
    data, name = sink.getvalue().to_pybytes(), ("month_interval", "day_time_interval", str(interval))[unit]
    # Python makes the last kind alone: others differ in one byte of the schema.
    for place in (place for place in range(len(schema.serialize())) if data[place] == 2):
        changed = data[:place] + bytes([unit]) + data[place + 1 :]
        try:
            if str(ipc.open_stream(changed).schema.field("i").type) == name:
                break
        except (pa.ArrowException, OSError, KeyError):
            continue
    (tmp_path / "f.arrow").write_bytes(changed)
    options = {"fileFormat": "arrow", "eventTimeColumn": "t"}
    with pytest.raises(SchemaError, match=f"column 'i' has type {name}, which Spark does not have"):
        read_batch(tmp_path, **options)
    assert read_batch(tmp_path, columns="t", **options).num_rows == 1


# ---- through the source --------------------------------------------------------------------------------------------

FRAME = (
    StructType()
    .add("t", TimestampType())
    .add("n", LongType())
    .add("s", StringType())
    .add("_corrupt_record", StringType())
    .add("_position", LongType())
)
LINES = b"2024-01-01,1,a\n2024-01-02,two,b\nbroken\n2024-01-04,4,d\n"


def test_modes_through_the_source(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "log").mkdir()
    path = tmp_path / "log" / "f.csv"
    path.write_bytes(LINES)
    options = {"fileFormat": "csv", "eventTimeColumn": "t", "includeMetadata": "true", "invalidTimestamp": "null"}
    kept = read_all(tmp_path, FRAME, **options)
    assert kept.column("_corrupt_record").to_pylist() == [None, "2024-01-02,two,b", "broken", None]
    assert kept.column("t").is_valid().to_pylist() == [True, True, False, True]
    assert kept.column("n").to_pylist() == [1, None, None, 4]
    caplog.set_level(logging.WARNING)
    left = read_all(tmp_path, FRAME, mode="dropMalformed", maxRowsPerTrigger="2", **options)
    assert left.column("_position").to_pylist() == [0, 3]
    assert sum("dropped 2 malformed" in r.message or "dropped 1 malformed" in r.message for r in caplog.records) >= 1
    # The planner reads the time column ahead, readers all columns.
    for indexing, record in (("scan", 2), ("auto", 1)):
        with pytest.raises(MalformedDataError, match=f"{path}, record {record} is malformed"):
            read_all(tmp_path, FRAME, mode="FAILFAST", indexing=indexing, **options)
    options.pop("invalidTimestamp")
    with pytest.raises(InvalidTimestampError, match="split 'log', position 2: no valid event time in t = None"):
        read_all(tmp_path, FRAME, **options)


UNREAD = {
    "csv": (b"2024-05-19T10:38:46Z,1\n01/02/2024 10:00,2\n", "t timestamp", "t", "t is '01/02/2024 10:00'"),
    "csv date": (b"2024-05-19,1\n01/02/2024,2\n", "t date", "t", "t is '01/02/2024'"),
    "json": (b'{"t":"2024-05-19T10:38:46Z"}\n{"t":"1/2/2024"}\n', "t timestamp", "t", "t is '1/2/2024'"),
    "json nested": (
        b'{"a":{"t":"2024-05-19"}}\n{"a":{"t":"1/2/2024"}}\n',
        "a struct<t timestamp>",
        "a.t",
        'a is \'{"t":"1/2/2024"}\'',
    ),
}


@pytest.mark.parametrize("kind", UNREAD)
@pytest.mark.parametrize("read", [read_all, read_batch])
def test_a_time_that_cannot_be_read_is_named_with_its_text_file_record_and_option(
    read: Callable[..., pa.Table], kind: str, tmp_path: Path
) -> None:
    data, columns, column, told = UNREAD[kind]
    file_format = kind.partition(" ")[0]
    (tmp_path / f"1.{file_format}").write_bytes(data)
    columns = f"{columns}, n int" if file_format == "csv" else columns
    option = "dateFormat" if "date" in kind else "timestampFormat"
    with pytest.raises(
        InvalidTimestampError, match=rf"/1\.\w+, record 1, where {re.escape(told)}: .*option {option}, as in"
    ):
        read(tmp_path, fileFormat=file_format, dataSchema=columns, eventTimeColumn=column)


def test_a_record_without_a_time_is_named_with_what_it_is(tmp_path: Path) -> None:
    options = {"fileFormat": "json", "dataSchema": "t timestamp", "eventTimeColumn": "t"}
    for record, told in (("no object", ", which is 'no object'"), ('{"n":1}', "")):
        (tmp_path / "1.json").write_text(f'{{"t":"2024-05-19T10:38:46Z"}}\n{record}\n')
        with pytest.raises(InvalidTimestampError, match=f"/1.json, record 1{told}: split"):
            read_batch(tmp_path, **options)


@pytest.mark.parametrize("mode", ["PERMISSIVE", "FAILFAST"])
def test_a_line_of_names_that_is_read_as_a_record_is_refused_with_the_option(tmp_path: Path, mode: str) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "1.csv").write_text('"at";N\n2024-01-01;1\n', encoding="utf-8")
    options = {"fileFormat": "csv", "sep": ";", "mode": mode, "dataSchema": "at timestamp, n bigint"}
    with pytest.raises(MalformedDataError, match="It is a line of names; set option header = true"):
        read_all(tmp_path, eventTimeColumn="at", **options)
