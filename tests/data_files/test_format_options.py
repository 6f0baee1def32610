"""Options of formats: which format takes which, what they do, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import fs
from pyspark.sql.types import LongType, StringType, StructType, TimestampType

from streaming_source.connectors.files import CsvFormat, FileSource, JsonFormat, OrcFormat, ParquetFormat
from streaming_source.data_files.file import DataFile, FileRows, StoredFile
from streaming_source.exceptions import MalformedDataError, NoDataError, OptionError, SchemaError
from streaming_source.spark.options import STRATEGY_OPTIONS
from tests.spark.reading import data_source, micros, put, read_all, read_batch, stamps

FRAME = StructType().add("t", TimestampType()).add("n", LongType())


def put_text(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="")
    return path


def source(**options: Any) -> FileSource:
    return FileSource.from_options(FileSource.options().parse({"path": "/data", **options}))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"header": "true"}, "option header is not one of fileFormat = parquet, but of csv; leave it out"),
        ({"fileFormat": "json", "sep": ";"}, "option sep is not one of fileFormat = json, but of csv"),
        ({"fileFormat": "orc", "compression": "gzip"}, "option compression is not .* orc, but of csv, json, text"),
        ({"fileFormat": "text", "mode": "FAILFAST"}, "option mode is not one of fileFormat = text, but of csv, json"),
        ({"fileFormat": "csv", "sep": ",,"}, "option sep = ',,': must be a single ASCII character"),
        ({"fileFormat": "csv", "sep": "é"}, "option sep = 'é': must be a single ASCII character"),
        ({"fileFormat": "csv", "sep": "\n"}, r"option sep = '\\n': must be a single ASCII character that ends no line"),
        ({"fileFormat": "csv", "sep": '"'}, "option sep, quote, escape and comment .* must differ"),
        ({"fileFormat": "csv", "encoding": "utf-9"}, "option encoding = 'utf-9': Python knows no such encoding"),
        ({"fileFormat": "csv", "mode": "lenient"}, "option mode = 'lenient': must be one of PERMISSIVE, DROPMALFORMED"),
        ({"fileFormat": "json", "compression": "snappy"}, "option compression = 'snappy': must be one of auto, none"),
        ({"indexing": "off"}, "indexing = 'off': which records .* decided by their event times, ahead of reading"),
        ({"fileFormat": "csv", "indexing": "statistics"}, "indexing = 'statistics': files of format csv have no stat"),
        ({"fileFormat": "orc", "indexing": "statistics"}, "files of format orc have no .*, only those of parquet have"),
        (
            {"fileFormat": "arrow", "indexing": "statistics"},
            "files of format arrow have no .* use auto or scan, which re",
        ),
        ({"allowComments": "true"}, "option allowComments is .* fileFormat = text and parse .* with from_json"),
        ({"emptyValue": "-"}, "option emptyValue is .* read the column as string and convert it in the query"),
        ({"lineSep": ";"}, "option lineSep is .* write the files with such ends"),
        ({"columns": "a,,b"}, "option columns = 'a,,b': must be different names separated by commas"),
        ({"columns": "a,a"}, "option columns = 'a,a': must be different names"),
    ],
)
def test_what_a_format_does_not_take_is_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        source(**options)


@pytest.mark.parametrize("first", ["path", "header"])
def test_options_that_are_imported_when_one_is_given_change_no_other(first: str) -> None:
    given = {"path": "/data", "header": "true", "fileFormat": "csv", "maxDrift": "1 minute"}
    # As a frame has it: the options of every format, and those of this one.
    options = STRATEGY_OPTIONS | FileSource.options()
    parsed = options.parse({first: given[first], **given})
    assert (parsed["path"], parsed["fileFormat"], parsed["header"]) == ("/data", "csv", True)
    assert parsed["maxDrift"] == 60_000_000
    assert {option.name for option in options} >= {"delimiter", "path", "maxDrift"}


def test_options_make_the_format() -> None:
    made = source(
        fileFormat="CSV",
        HEADER="true",
        sep=r"\t",
        quote="",
        escape="\\",
        nullValue="NA",
        mode="failfast",
        multiLine="true",
        inferSchema="true",
        encoding="latin-1",
        compression="GZIP",
        columnNameOfCorruptRecord="bad",
    )
    assert made.format == CsvFormat(
        header=True,
        sep="\t",
        quote="",
        escape="\\",
        null_value="NA",
        mode="FAILFAST",
        multi_line=True,
        infer_schema=True,
        encoding="latin-1",
        compression="gzip",
        corrupt_column="bad",
    )
    assert source(fileFormat="orc").format == OrcFormat()
    assert source().format == ParquetFormat()


def test_a_source_of_other_rows_has_another_identity() -> None:
    one = {FileSource("/data").identity, source().identity, source(fileFormat="parquet").identity}
    others = [
        source(fileFormat="csv"),
        source(fileFormat="csv", header="true"),
        source(fileFormat="csv", multiLine="true"),
        source(fileFormat="csv", multiLine="true", quote="'"),
        source(fileFormat="json"),
        source(fileFormat="orc"),
        source(fileFormat="csv", comment="#"),
        replace(source(fileFormat="csv"), time_zone="Europe/Berlin"),
    ]
    assert len(one) == 1
    assert len(one | {other.identity for other in others}) == 1 + len(others)
    # What says only how rows are read changes none of their numbers.
    assert source(fileFormat="csv", mode="FAILFAST", nullValue="-").identity == source(fileFormat="csv").identity
    # The offset itself has the layout.
    assert source(splitBy="file").identity == source().identity == replace(source(), time_zone="Asia/Tokyo").identity


@pytest.mark.parametrize("name", ["csv", "json"])
def test_a_stream_of_lines_needs_a_schema_or_leave_to_infer_one(name: str, tmp_path: Path) -> None:
    put_text(tmp_path / "a" / "f", "2024-01-01,1\n" if name == "csv" else '{"t": "2024-01-01", "n": 1}\n')
    options = {"fileFormat": name, "eventTimeColumn": "t"}
    with pytest.raises(
        SchemaError, match=f"fileFormat = {name}: .* with option dataSchema, .* with inferSchema = true"
    ):
        data_source(tmp_path, **options).schema()
    assert read_all(tmp_path, FRAME, **options).column("n").to_pylist() == [1]
    with pytest.raises(OptionError, match=r"columns = t cannot be found: fileFormat = "):
        read_all(tmp_path, FRAME, columns="t", **options)


def test_csv_with_a_header_is_inferred_by_name(tmp_path: Path) -> None:
    put_text(tmp_path / "a" / "f.csv", "t,n,x,e\n2024-01-01 00:00:00,1,1.5,\n2024-01-02T00:00:00Z,2,z,\n1,2\n")
    options = {"fileFormat": "csv", "header": "true", "inferSchema": "true"}
    put_text(tmp_path / "a" / "g.csv", "n,t\n3,2024-01-03\n")
    schema = FileSource(str(tmp_path), format=CsvFormat(header=True, infer_schema=True)).schema()
    assert schema == pa.schema([("t", pa.string()), ("n", pa.int64()), ("x", pa.string()), ("e", pa.string())])
    read = read_all(tmp_path, eventTimeColumn="t", columns="n,t", invalidTimestamp="null", **options)
    assert read.column("n").to_pylist() == [1, 2, 2, 3]
    assert read.column_names == ["n", "t", "event_time"]


def test_csv_without_a_header_is_inferred_by_number(tmp_path: Path) -> None:
    put_text(tmp_path / "a" / "f.csv", "\n2024-01-01 00:00:00,1,\n2024-01-02,2,\n")
    options = {"fileFormat": "csv", "inferSchema": "true", "eventTimeColumn": "_c0"}
    read = read_all(tmp_path, **options)
    assert read.column_names == ["_c0", "_c1", "_c2"]
    assert read.column("_c1").to_pylist() == [1, 2]
    assert read_all(tmp_path, columns="_c0,_c1", **options).column("_c1").to_pylist() == [1, 2]


def test_a_line_of_names_is_not_inferred_to_be_a_record(tmp_path: Path) -> None:
    put_text(tmp_path / "a" / "f.csv", "t,n\n2024-01-01 00:00:00,1\n")
    with pytest.raises(SchemaError, match=r"its first line alone is text in every column.* set option header = true"):
        FileSource(str(tmp_path), format=CsvFormat(infer_schema=True)).schema()


def test_json_is_inferred_with_its_structs(tmp_path: Path) -> None:
    records = [{"t": "2024-01-01T00:00:00", "in": {"at": "2024-01-01", "l": [None]}}, {"u": None, "in": {"x": True}}]
    put_text(tmp_path / "a" / "f.json", "\n".join(["null", *map(json.dumps, records)]))
    schema = FileSource(str(tmp_path), format=JsonFormat(infer_schema=True)).schema()
    time = pa.timestamp("us", "UTC")
    inner = pa.struct([("at", time), ("l", pa.list_(pa.string())), ("x", pa.bool_())])
    assert schema == pa.schema([("t", time), ("in", inner), ("u", pa.string())])
    options = {"fileFormat": "json", "inferSchema": "true", "invalidTimestamp": "drop"}
    assert len(read_all(tmp_path, eventTimeColumn="in.at", **options)) == 1


@pytest.mark.parametrize(
    ("file_format", "text"),
    [
        (CsvFormat(infer_schema=True), "\n\n"),
        (CsvFormat(infer_schema=True, header=True), "\n"),
        (JsonFormat(infer_schema=True), "5\n"),
    ],
)
def test_there_must_be_a_record_to_infer_from(file_format: CsvFormat, text: str, tmp_path: Path) -> None:
    put_text(tmp_path / "a" / "f", text)
    with pytest.raises(NoDataError, match="has no record yet whose columns could be inferred; name them"):
        FileSource(str(tmp_path), format=file_format).schema()


def test_what_cannot_be_inferred_is_told(tmp_path: Path) -> None:
    put_text(tmp_path / "a" / "f", '{"a": 1}\n{"a": "x"}\n')
    with pytest.raises(MalformedDataError, match=r"columns cannot be inferred, name them .*: .* to string"):
        FileSource(str(tmp_path), format=JsonFormat(infer_schema=True)).schema()


def test_the_schema_of_a_source_in_python_is_that_of_all_columns_in_their_order(tmp_path: Path) -> None:
    put_text(tmp_path / "a" / "f.csv", "x;1;2024-01-01\n")
    schema = pa.schema([("s", pa.string()), ("n", pa.int32()), ("t", pa.timestamp("us"))])
    made = FileSource(str(tmp_path), format=CsvFormat(sep=";"), data_schema=schema, columns=("n", "t"))
    assert made.schema() == pa.schema([schema.field("n"), schema.field("t")])
    assert made.format == CsvFormat(sep=";", names=("s", "n", "t"))
    rows = FileRows(StoredFile(made.root.open()[0], DataFile(f"{tmp_path}/a/f.csv")), 0, 1)
    blocks = list(made.format.read_rows(rows, made.schema()))
    assert blocks[0].batch.column("n").to_pylist() == [1]
    assert made != FileSource(str(tmp_path), format=CsvFormat(sep=";"), data_schema=schema)
    assert hash(made) == hash(
        FileSource(str(tmp_path), format=CsvFormat(sep=";"), data_schema=schema, columns=("n", "t"))
    )
    with pytest.raises(SchemaError, match="columns: 'x' are not in the data; choose among s, n, t"):
        FileSource(str(tmp_path), data_schema=schema, columns=("x",)).schema()


def test_columns_are_read_alone(tmp_path: Path) -> None:
    put(tmp_path / "a" / "f.parquet", {"t": stamps(0, 1), "n": [1, 2], "odd": pa.array([1, 2], pa.uint16())})
    # The column of a type that Spark has not is no trouble where it is not read.
    for read in (read_all, read_batch):
        table = read(tmp_path, eventTimeColumn="t", columns=" n , t ")
        assert table.column_names == ["n", "t"]
        assert table.column("n").to_pylist() == [1, 2]


def test_nulls_quotes_and_escapes_of_csv(tmp_path: Path) -> None:
    put_text(
        tmp_path / "a" / "f.csv",
        r"""2024-01-01|NA|'a\'b|'|
2024-01-02|2|''|x
2024-01-03||a|'c\'d'
""",
    )
    frame = StructType().add("t", TimestampType()).add("n", LongType())
    frame = frame.add("s", StringType()).add("u", StringType())
    options = {"fileFormat": "csv", "sep": "|", "quote": "'", "escape": "\\", "nullValue": "NA"}
    for multi_line in ("false", "true"):
        table = read_all(tmp_path, frame, eventTimeColumn="t", multiLine=multi_line, mode="FAILFAST", **options)
        assert table.column("n").to_pylist() == [None, 2, None]
        assert table.column("s").to_pylist() == ["a'b|", "", "a"]
        assert table.column("u").to_pylist() == [None, "x", "c'd"]


def test_csv_without_quotes_has_numbers_and_quotes_as_text(tmp_path: Path) -> None:
    put_text(tmp_path / "a" / "f.csv", '2024-01-01,7,"a\n2024-01-02,0x8,b"c"\n')
    frame = StructType().add("t", TimestampType()).add("n", LongType()).add("s", StringType())
    for multi_line in ("false", "true"):
        table = read_all(tmp_path, frame, fileFormat="csv", eventTimeColumn="t", quote="", multiLine=multi_line)
        assert table.column("n").to_pylist() == [7, None]
        assert table.column("s").to_pylist() == ['"a', 'b"c"']


@pytest.mark.parametrize("name", ["csv", "json"])
def test_times_are_iso_8601_with_and_without_a_zone(name: str, tmp_path: Path) -> None:
    texts = ["1970-01-01", "1970-01-01 00:00:01", "1970-01-01T00:00:02.5Z", "1970-01-01T01:00:03+01:00"]
    lines = [text if name == "csv" else json.dumps({"t": text}) for text in texts]
    put_text(tmp_path / "a" / "f", "\n".join(lines))
    frame = StructType().add("t", TimestampType())
    table = read_all(tmp_path, frame, fileFormat=name, eventTimeColumn="t")
    assert micros(table) == [0, 1_000_000, 2_500_000, 3_000_000]


@pytest.mark.parametrize("name", ["csv", "json"])
def test_dates_and_times_of_all_units_are_read(name: str, tmp_path: Path) -> None:
    text = "2024-02-29T12:34:56.789012"
    put_text(tmp_path / "f", text if name == "csv" else json.dumps({"a": text}))
    file_format = CsvFormat() if name == "csv" else JsonFormat()
    expected = pa.scalar(1_709_210_096_789_012, pa.timestamp("us"))
    for data_type in (pa.timestamp("s"), pa.timestamp("ms", "UTC"), pa.timestamp("ns"), pa.date32(), pa.date64()):
        schema = pa.schema([("a", data_type)])
        made = FileSource(str(tmp_path), format=file_format, data_schema=schema)
        rows = FileRows(StoredFile(made.root.open()[0], DataFile(f"{tmp_path}/f")), 0, 1)
        block = next(iter(file_format.read_rows(rows, schema)))
        read = block.batch.column(0)
        assert read.type == data_type
        assert read[0] == pa.array([expected]).cast(data_type, safe=False)[0]


def test_a_schema_may_be_given_as_an_option_and_is_that_of_all_columns(tmp_path: Path) -> None:
    put_text(tmp_path / "a" / "f.csv", "2024-01-01,1,x\nbroken\n")
    ddl = "t TIMESTAMP, `the n`: bigint, s string, _corrupt_record string"
    options = {"fileFormat": "csv", "eventTimeColumn": "t", "dataSchema": ddl, "invalidTimestamp": "null"}
    table = read_all(tmp_path, columns="the n,t,_corrupt_record", **options)
    assert table.column_names == ["the n", "t", "_corrupt_record"]
    assert table.column("the n").to_pylist() == [1, None]
    assert table.column("_corrupt_record").to_pylist() == [None, "broken"]


def test_a_map_in_json_whose_keys_are_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "f.json").write_text('{"t": "2024-01-01T00:00:00Z", "m": {"1": 1}}\n')
    options = {"fileFormat": "json", "eventTimeColumn": "t", "dataSchema": "t timestamp, m map<int, int>"}
    with pytest.raises(SchemaError, match="json cannot be read as"):
        read_all(tmp_path, **options)


def test_a_map_in_json_is_read_by_the_names_of_its_fields(tmp_path: Path) -> None:
    (tmp_path / "f.json").write_text('{"t": "2024-01-01T00:00:00Z", "m": {"a": 1, "b": 2, "a": 3}}\n')
    options = {"fileFormat": "json", "eventTimeColumn": "t", "dataSchema": "t timestamp, m map<string, int>"}
    assert read_all(tmp_path, **options)["m"].to_pylist() == [[("a", 1), ("b", 2), ("a", 3)]]


@pytest.mark.parametrize("value", ['{"x": 1}', "[1]", "7"])
def test_a_field_of_nulls_has_any_type_until_a_value_comes(value: str, tmp_path: Path) -> None:
    nulls = b'{"t": "2024-01-01", "a": {"v": null}}\n'
    path = tmp_path / "1.json"
    path.write_bytes(nulls * 9 + f'{{"t": "2024-01-02", "a": {{"v": {value}}}}}\n'.encode())
    found = JsonFormat(infer_schema=True, block_bytes=2 * len(nulls)).schema_of(
        StoredFile(fs.LocalFileSystem(), DataFile(str(path)))
    )
    assert found.field("a").type.field("v").type in (pa.struct([("x", pa.int64())]), pa.list_(pa.int64()), pa.int64())
