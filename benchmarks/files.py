"""Formats of files: ours next to pyarrow alone, on one core, and next to Spark's own sources, as ratios."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import csv, fs, ipc, orc
from pyarrow import json as arrow_json
from pyarrow import parquet as pq

from alignment.timestamps import FieldTimestampAssigner
from benchmarks.on_spark import session
from benchmarks.report import Report, in_turn, ratio
from streaming_source.connectors.files import (
    ArrowFormat,
    CsvFormat,
    FileFormat,
    JsonFormat,
    OrcFormat,
    ParquetFormat,
    TextFormat,
)
from streaming_source.data_files.file import DataFile, FileRows, StoredFile

SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("k", pa.int32()), ("v", pa.float64()), ("s", pa.string())])
DDL = "ts timestamp, k int, v double, s string"
TEXT = pa.schema([("value", pa.string())])
START_US = 1_700_000_000_000_000
LOCAL = fs.LocalFileSystem()


@dataclass(frozen=True)
class Contestant:
    name: str
    reads_as: FileFormat
    write: Callable[[pa.Table, Path], None]
    alone: Callable[[Path], Any]
    options: dict[str, str]
    schema: pa.Schema = SCHEMA


def _write_csv(data: pa.Table, path: Path) -> None:
    csv.write_csv(_with_text(data), path, csv.WriteOptions(quoting_style="needed"))


def _write_json(data: pa.Table, path: Path) -> None:
    columns = [column.to_pylist() for column in _with_text(data).columns]
    lines = (f'{{"ts": "{t}", "k": {k}, "v": {v!r}, "s": "{s}"}}\n' for t, k, v, s in zip(*columns, strict=True))
    path.write_text("".join(lines))


def _write_arrow(data: pa.Table, path: Path) -> None:
    with ipc.new_file(path, data.schema) as writer:
        writer.write_table(data, 65_536)


def _write_text(data: pa.Table, path: Path) -> None:
    csv.write_csv(_with_text(data).select(["ts"]), path, csv.WriteOptions(include_header=False, quoting_style="none"))


def _with_text(data: pa.Table) -> pa.Table:
    """Times as text in ISO-8601."""
    return data.set_column(0, "ts", data.column("ts").cast(pa.string()))


def _csv_alone(path: Path) -> Any:
    types = {field.name: field.type for field in SCHEMA}
    convert = csv.ConvertOptions(column_types=types)
    return list(csv.open_csv(path, csv.ReadOptions(use_threads=False, block_size=4 << 20), None, convert))


def _json_alone(path: Path) -> Any:
    options = arrow_json.ReadOptions(use_threads=False, block_size=4 << 20)
    return arrow_json.read_json(path, options, arrow_json.ParseOptions(explicit_schema=SCHEMA))


def _text_alone(path: Path) -> Any:
    options = csv.ReadOptions(use_threads=False, block_size=4 << 20, column_names=["value"])
    parse = csv.ParseOptions(delimiter="\x01", quote_char=False)
    return list(csv.open_csv(path, options, parse, csv.ConvertOptions(column_types={"value": pa.string()})))


CONTESTANTS = (
    Contestant(
        "parquet",
        ParquetFormat(),
        lambda data, path: pq.write_table(data, path, row_group_size=250_000),
        lambda path: list(pq.ParquetFile(path).iter_batches(65_536, use_threads=False)),
        {},
    ),
    Contestant("arrow", ArrowFormat(), _write_arrow, lambda path: ipc.open_file(path).read_all(), {}),
    Contestant("orc", OrcFormat(), orc.write_table, orc.read_table, {}),
    Contestant("csv", CsvFormat(header=True), _write_csv, _csv_alone, {"header": "true"}),
    Contestant("json", JsonFormat(), _write_json, _json_alone, {}),
    Contestant("text", TextFormat(), _write_text, _text_alone, {}, TEXT),
)


def run(report: Report, folder: Path, *, quick: bool) -> None:
    rows = 500_000 if quick else 2_000_000
    rounds = 3 if quick else 7
    data = _data(rows)
    paths = {}
    for contestant in CONTESTANTS:
        path = folder / "formats" / contestant.name / "split" / "part-0"
        path.parent.mkdir(parents=True)
        contestant.write(data, path)
        paths[contestant.name] = path
    _alone(report, paths, rows, rounds)
    _under_spark(report, paths, rows, rounds)


def _alone(report: Report, paths: dict[str, Path], rows: int, rounds: int) -> None:
    lines = []
    pa.set_cpu_count(1)
    for contestant in CONTESTANTS:
        path = paths[contestant.name]

        def ours(contestant: Contestant = contestant, path: Path = path) -> int:
            blocks = contestant.reads_as.read_rows(
                FileRows(StoredFile(LOCAL, DataFile(str(path))), 0, rows), contestant.schema
            )
            return sum(block.batch.num_rows for block in blocks)

        def index(contestant: Contestant = contestant, path: Path = path) -> int:
            assigner = FieldTimestampAssigner(contestant.schema.names[0])
            blocks = contestant.reads_as.describe(
                StoredFile(LOCAL, DataFile(str(path))), contestant.schema, assigner, "auto"
            )
            return int(blocks.rows.sum())

        def alone(contestant: Contestant = contestant, path: Path = path) -> None:
            contestant.alone(path)

        seconds = in_turn({"ours": ours, "alone": alone, "index": index}, rounds)
        rate = rows / statistics.median(seconds["ours"]) / 1e6
        against = ratio(seconds["alone"], seconds["ours"])
        lines.append([contestant.name, f"{rate:.1f} M/s", against, ratio(seconds["index"], seconds["ours"])])
    header = ["format", "median rate", "speed against pyarrow alone", "time of the index against a read"]
    report.table(f"{rows:,} rows of a file, on one core ({rounds} rounds in turn)", header, lines)


def _under_spark(report: Report, paths: dict[str, Path], rows: int, rounds: int) -> None:
    spark = session()
    lines = []
    for contestant in CONTESTANTS:
        if contestant.name == "arrow":
            continue  # Spark has no source for it
        path = str(paths[contestant.name].parent)

        def ours(contestant: Contestant = contestant, path: str = path) -> None:
            reader = spark.read.format("aligned_files").options(fileFormat=contestant.name, **contestant.options)
            if contestant.name in ("csv", "json"):
                reader = reader.option("dataSchema", DDL)
            time = contestant.schema.names[0]
            frame = reader.options(eventTimeColumn=time, eventTimeAs="et").load(path)
            frame.write.format("noop").mode("overwrite").save()

        def sparks(contestant: Contestant = contestant, path: str = path) -> None:
            reader = spark.read.format(contestant.name).options(**contestant.options)
            if contestant.name != "text":
                reader = reader.schema(DDL)
            reader.load(path).write.format("noop").mode("overwrite").save()

        seconds = in_turn({"ours": ours, "spark": sparks}, rounds)
        rates = [f"{rows / statistics.median(seconds[name]) / 1e6:.1f} M/s" for name in ("ours", "spark")]
        lines.append([contestant.name, *rates, ratio(seconds["spark"], seconds["ours"])])
    header = ["format", "ours", "Spark's own", "speed of ours against it"]
    report.table(f"A file of {rows:,} rows into a no-op sink, as a batch ({rounds} rounds in turn)", header, lines)
    spark.stop()


def _data(rows: int) -> pa.Table:
    rng = np.random.default_rng(7)
    words = pa.array([f"word-{n}" for n in range(1000)])
    times = START_US + np.arange(rows) * 2_000 + rng.integers(0, 5_000_000, rows)
    columns = [
        pa.array(times, pa.timestamp("us", "UTC")),
        pa.array(rng.integers(0, 100, rows), pa.int32()),
        pa.array(rng.random(rows)),
        words.take(pa.array(rng.integers(0, 1000, rows))),
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)
