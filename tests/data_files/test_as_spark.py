"""CSV, JSON and text beside Spark's own reader: random records of odd values, in random types, read by both."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from streaming_source.api.ddl import schema_of_ddl
from streaming_source.connectors.files import CsvFormat, FileFormat, JsonFormat, TextFormat
from streaming_source.data_files.file import FileRows
from tests.data_files.test_formats import stored

LINES: Final = 150
FEW: Final = 2
MANY: Final = 2_500

TIMES: Final = [
    "2024-01-01",
    "2024-01-01T10:20:30Z",
    "2024-1-5 3:07:09",
    "2024-01-01 00:00:00 UTC",
    "2024-01-01T00:00:00+19:00",
    "2024-01-01 00:00:00.5+1",
    "2024-01-01 00:00:00 Europe/Berlin",
    "2024-01-01T10:20Z",
    "2024-02-30",
    "2024",
    "0001-01-01",
    "9999-12-31T23:59:59.999999",
    "2024-03-31 02:30:00",
    "1582-10-10",
    "soon",
]
NUMBERS: Final = ["1", "-5", "0", "200", "70000", "3000000000", "9223372036854775808", "1e2", "1.0", "1.5", "1.005"]
NUMBERS_OF_CSV: Final = [
    *NUMBERS,
    "+5",
    " 5",
    "5 ",
    "0x1f",
    "007",
    "1d",
    "inf",
    "Inf",
    "-Inf",
    "NaN",
    "nan",
    "1,000.5",
    "1e400",
]
TYPES: Final = ["boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "decimal(8,2)", "decimal(38,10)"]
TYPES_OF_TEXT: Final = ["string", "timestamp", "timestamp_ntz", "date"]

Written = tuple[bytes, str, dict[str, str], FileFormat]
"""A file, its columns, Spark's options, and the format here."""


def json_value(r: random.Random, depth: int = 0) -> str:
    kind = r.randint(0, 12)
    if kind < 2:
        return r.choice([*NUMBERS, "true", "false", "null", "NaN", "-Infinity"])
    if kind < 5:
        return json.dumps(r.choice(TIMES))
    if kind < 8:
        texts = ["", "1", "1.005", "1,000.5", "+1", " 1", "NaN", "+INF", "é\u0301", "😀", 'a"b', "\\", "\0", "it's"]
        return json.dumps(r.choice(texts), ensure_ascii=r.random() < 0.5)
    if kind == 8 or depth > 2:
        return r.choice(["'x'", "'a\"b'", "'2024-01-01'", '"\\ud800"'])
    parts = [json_value(r, depth + 1) for _ in range(r.randint(0, 3))]
    if kind < 11:
        return f"[{r.choice([',', ', ']).join(parts)}]"
    return "{" + ",".join(f'"{r.choice("abk")}": {part}' for part in parts) + "}"


def json_type(r: random.Random, depth: int = 0) -> str:
    kind = r.randint(0, 7)
    if kind == 0 and depth < 2:
        return f"struct<a:{json_type(r, depth + 1)},b:{json_type(r, depth + 1)}>"
    if kind == 1 and depth < 2:
        return f"array<{json_type(r, depth + 1)}>"
    return r.choice([*TYPES, *TYPES_OF_TEXT])


def json_file(r: random.Random) -> Written:
    def record() -> str:
        fields = [f'"{r.choice("xxyyzq")}":{json_value(r)}' for _ in range(r.randint(0, 4))]
        return "{" + ",".join(fields) + "}"

    odd = [
        "5",
        "null",
        "[]",
        '"a"',
        "{",
        "",
        "  ",
        '{"x":1} {"x":2}',
        "[1]",
        '  {"x":1}',
        '{"x":1}}',
        '{"x":1,}',
        "tru",
    ]
    lines = [r.choice(odd) if r.random() < 0.05 else record() for _ in range(LINES)]
    columns = f"x {json_type(r)}, y {json_type(r)}, z {json_type(r)}"
    return r.choice(["\n", "\r\n", "\r"]).join(lines).encode(), columns, {}, JsonFormat()


def csv_file(r: random.Random) -> Written:
    types = [r.choice([*TYPES, *TYPES_OF_TEXT]) for _ in range(3)]

    def field() -> str:
        text = r.choice(r.choice([TIMES, NUMBERS_OF_CSV, ["", '""', "true", "tRue", "1", " true", "é", "NA"]]))
        return f'"{text}"' if r.random() < 0.2 else text

    lines = [
        sep.join(field() for _ in range(r.choice([3, 3, 3, 3, 2, 4])))
        for sep in [r.choice(",;|")]
        for _ in range(LINES)
    ]
    lines += ["", "  ", "\t"]
    r.shuffle(lines)
    sep = next((mark for mark in ",;|" if all(mark in line for line in lines if line.strip())), ",")
    null = r.choice(["", "NA"])
    options = {"sep": sep, "nullValue": null}
    columns = ", ".join(f"x{number} {kind}" for number, kind in enumerate(types))
    return r.choice(["\n", "\r\n", "\r"]).join(lines).encode(), columns, options, CsvFormat(sep=sep, null_value=null)


def quoted_csv_file(r: random.Random) -> Written:
    letters, escape = r.choice(['a",\\ ', 'a"",\\b\t', '"a,', '"\\a,', 'a" ,']), r.choice(["\\", '"'])
    lines = ["".join(r.choice(letters) for _ in range(r.randint(0, 9))) for _ in range(LINES)]
    columns = "x1 string, x2 string, x3 string, _corrupt_record string"
    return "\n".join(lines).encode(), columns, {"escape": escape}, CsvFormat(escape=escape)


def text_file(r: random.Random) -> Written:
    data = "".join(r.choice("ab \t\n\n\ré") for _ in range(10 * LINES))
    return data.encode(), "value string", {}, TextFormat()


FILES: Final = {"json": json_file, "csv": csv_file, "csv with quotes": quoted_csv_file, "text": text_file}


def plain(value: Any) -> Any:
    """A scalar in Python, with times as numbers: those of Spark may be beyond Python's."""
    kind = value.type
    if not value.is_valid:
        return None
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return value.value
    if pa.types.is_struct(kind):
        return {field.name: plain(value[field.name]) for field in kind}
    if pa.types.is_list(kind):
        return [plain(one) for one in value.values]
    number = value.as_py()
    return str(number + 0.0) if isinstance(number, float) else number


def rows(columns: Sequence[Any], count: int) -> list[tuple[Any, ...]]:
    return [tuple(plain(column[row]) for column in columns) for row in range(count)]


def read_here(path: Path, columns: str, file_format: FileFormat) -> list[tuple[Any, ...]]:
    schema = schema_of_ddl("dataSchema", columns)
    file_format = file_format.with_columns(schema)
    count = int(file_format.describe_rows(stored(path), schema).rows.sum())
    blocks = file_format.read_rows(FileRows(stored(path), 0, count), schema)
    return [row for block in blocks for row in rows(block.batch.columns, block.batch.num_rows)]


@pytest.mark.spark
@pytest.mark.parametrize("size", [FEW, pytest.param(MANY, marks=pytest.mark.soak)], ids=["few", "many"])
@pytest.mark.parametrize("kind", FILES)
def test_files_of_odd_values_are_read_as_spark_reads_them(
    spark: SparkSession, kind: str, size: int, tmp_path: Path
) -> None:
    make: Callable[[random.Random], Written] = FILES[kind]
    for seed in range(size):
        data, columns, options, file_format = make(random.Random(seed))
        path = tmp_path / str(seed)
        path.write_bytes(data)
        reader = spark.read.schema(columns).options(**options)
        read = {"json": reader.json, "text": reader.text}.get(kind, reader.csv)(str(path)).toArrow()
        expected, found = rows(read.columns, read.num_rows), read_here(path, columns, file_format)
        lines = [line for line in re.split(rb"\r\n|\r|\n", data) if line.strip() or kind == "text"]
        for number, (here, there) in enumerate(zip(found, expected, strict=False)):
            assert here == there, f"seed {seed}, {columns}, {options}, near {lines[max(number - 2, 0) : number + 3]}"
        assert len(found) == len(expected), f"seed {seed}, {columns}, {options}"
