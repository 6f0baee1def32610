"""One behaviour of all formats: the rows of plain Python, their numbers and event times, from any cut to any other."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pyarrow import fs
from pyspark.sql.types import LongType, StringType, StructType, TimestampType

from alignment.timestamps import NO_TIMESTAMP, FieldTimestampAssigner
from streaming_source.connectors.files import CsvFormat, FileFormat, JsonFormat, TextFormat
from streaming_source.data_files.file import DataFile, FileBlocks, FileRows, SeekPoint, StoredFile
from streaming_source.data_files.formats import ParquetFormat
from streaming_source.data_files.formats.base import Chunk
from streaming_source.data_files.formats.lines import LineFile, LineFormat
from tests.data_files.samples import SAMPLES, Row, Sample, local_zone, understood
from tests.examples import examples
from tests.files.stores import open_store
from tests.spark.reading import Reading, stream_reader

NO_ROWS: list[Row] = []

every_format = pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.id)

times = st.none() | st.integers(0, 2_000_000_000_000_000)
numbers = st.none() | st.integers(-(2**63), 2**63 - 1)
texts = st.none() | st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
rows_of_files = st.lists(st.tuples(times, numbers, texts), max_size=25)


def fit(rows: Sequence[Row], sample: Sample) -> list[Row]:
    """Without what the format cannot write: line ends where a line is a record, and in text."""
    if sample.line_ends_in_text:
        return list(rows)
    drop = str.maketrans("", "", "\n\r")
    return [(t, n, (s.translate(drop) or None) if s else None) for t, n, s in rows]


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def stored(path: Path) -> StoredFile:
    return StoredFile(fs.LocalFileSystem(), DataFile(str(path)))


def rows_read(
    file_format: FileFormat, path: Path, start: int, stop: int, schema: pa.Schema, point: SeekPoint | None = None
) -> list[tuple[int, tuple[Any, ...]]]:
    """`(number, row)`, times as microseconds."""
    found = []
    for block in file_format.read_rows(FileRows(stored(path), start, stop, point), schema):
        assert block.batch.schema.equals(schema)
        columns = []
        for column in block.batch.columns:
            is_time = pa.types.is_timestamp(column.type)
            columns.append(
                (column.cast(pa.timestamp("us", "UTC"), safe=False).cast(pa.int64()) if is_time else column).to_pylist()
            )
        first = block.positions if isinstance(block.positions, int) else None
        at = range(first, first + len(block.batch)) if first is not None else list(block.positions)  # type: ignore[call-overload]
        found += list(zip(at, zip(*columns, strict=True), strict=True))
    return found


def time_of(row: tuple[Any, ...], sample: Sample) -> int:
    time = row[0]
    if sample.time == "value":
        try:
            time = understood(time)
        except ValueError:
            time = None
    return NO_TIMESTAMP if time is None else time


def points_of(blocks: FileBlocks) -> list[SeekPoint | None]:
    firsts = (np.cumsum(blocks.rows) - blocks.rows).tolist()
    return [None if blocks.offsets is None else SeekPoint(first, blocks.offsets[i]) for i, first in enumerate(firsts)]


@every_format
@given(
    rows=rows_of_files,
    block_rows=st.integers(1, 9),
    block_bytes=st.integers(1, 200),
    cut=st.tuples(st.integers(0, 25), st.integers(0, 25)),
    zone=st.sampled_from(["UTC", "Europe/Berlin", "Pacific/Apia"]),
)
@example(rows=NO_ROWS, block_rows=1, block_bytes=1, cut=(0, 0), zone="UTC")
@example(rows=[(0, 1, "no row of these")] * 2, block_rows=1, block_bytes=1, cut=(1, 1), zone="UTC")
@example(rows=[(0, 1, 'a"b,c;d\r e')] * 3, block_rows=2, block_bytes=30, cut=(1, 3), zone="UTC")
@example(
    rows=[(1_711_850_400_000_001, 1, "left out")] * 2, block_rows=2, block_bytes=9, cut=(0, 2), zone="Europe/Berlin"
)
@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_rows_numbers_and_event_times_are_those_of_plain_python(
    sample: Sample, folder: Path, rows: list[Row], block_rows: int, block_bytes: int, cut: tuple[int, int], zone: str
) -> None:
    path = folder / f"f{sample.ending}"
    sample.write(path, fit(rows, sample), block_rows)
    token = local_zone.set(ZoneInfo(zone))
    naive = sample.read(path)
    assert len(naive) == len(rows)
    file_format = sample.reads_as(block_bytes).in_zone(zone)
    assigner = FieldTimestampAssigner(sample.time, zone=zone)
    schema = sample.schema
    expected = np.array([time_of(row, sample) for row in naive], np.int64)
    local_zone.reset(token)
    if sample.time != "value" and not sample.id.startswith("csv without header"):
        schema = schema.append(pa.field("absent", pa.date32()))
        naive = [(*row, None) for row in naive]

    blocks = file_format.describe(stored(path), schema, assigner, "auto")
    parts = np.split(expected, np.cumsum(blocks.rows)[:-1]) if blocks.rows.size else []
    assert blocks.rows.sum() == len(naive)
    assert blocks.min_us.tolist() == [part.min() for part in parts]
    assert blocks.max_us.tolist() == [part.max() for part in parts]
    assert (blocks.offsets is None) == (not sample.ranges)
    if not file_format.has_statistics:
        counted = file_format.describe_rows(stored(path), schema)
        assert (counted.rows.tolist(), counted.offsets) == (blocks.rows.tolist(), blocks.offsets)
        assert {*counted.min_us, *counted.max_us} <= {NO_TIMESTAMP}

    start, stop = (min(c, len(naive)) for c in sorted(cut))
    chosen = list(enumerate(naive))[start:stop]
    assert rows_read(file_format, path, start, stop, schema) == chosen
    found = file_format.event_times(FileRows(stored(path), start, stop), schema, assigner)
    assert found.tolist() == expected[start:stop].tolist()
    # The same from the block in which the cut is.
    points = [p for p in points_of(blocks) if p is not None and p.row <= start]
    if points:
        assert rows_read(file_format, path, start, stop, schema, points[-1]) == chosen
        found = file_format.event_times(FileRows(stored(path), start, stop, points[-1]), schema, assigner)
        assert found.tolist() == expected[start:stop].tolist()


@every_format
def test_a_reader_of_some_columns_gives_the_rows_the_same_numbers(sample: Sample, folder: Path) -> None:
    rows = [(i * 1_000_000, i, f"x{i}") for i in range(50)]
    path = folder / f"f{sample.ending}"
    sample.write(path, rows, 7)
    some = pa.schema([sample.schema.field(sample.time)])
    if sample.id.startswith("csv without header"):
        some = sample.schema
    naive = sample.read(path)
    expected = [(i, row[: len(some)]) for i, row in enumerate(naive)][20:40]
    assert rows_read(sample.reads_as(100), path, 20, 40, some) == expected


@every_format
def test_a_format_is_a_value(sample: Sample) -> None:
    file_format = sample.reads_as(100)
    assert pickle.loads(pickle.dumps(file_format)) == file_format == sample.reads_as(100)
    assert hash(file_format) == hash(sample.reads_as(100))


FRAME = StructType().add("t", TimestampType()).add("n", LongType()).add("s", StringType())


PLACES: Sequence[tuple[str, int | None, str]] = [
    (kind, max_rows, split_by)
    for kind, max_rows in (("local", None), ("s3", 90), ("fsspec", 37), ("local", 37))
    for split_by in ("directory", "file")
]


def reads() -> Iterator[Any]:
    """Each format in each place; in short runs every other one, in one of them."""
    for number, sample in enumerate(SAMPLES):
        for place in PLACES:
            is_short = number % 2 == 0 and place == PLACES[(number * 3) % len(PLACES)]
            name = f"{sample.id}-{'-'.join(map(str, place))}"
            yield pytest.param(sample, *place, id=name, marks=[] if is_short else pytest.mark.soak)


@pytest.mark.parametrize(("sample", "kind", "max_rows", "split_by"), list(reads()))
def test_micro_batches_have_every_row_once_with_its_position_and_the_naive_watermarks(
    sample: Sample, split_by: str, max_rows: int | None, kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    expected = []
    store = open_store(kind, tmp_path, request)
    for split in "ab":
        position = 0
        for number in range(3):
            path = tmp_path / split / f"f{number}{sample.ending}"
            path.parent.mkdir(exist_ok=True)
            begin = number * 40_000_000 + (split == "b") * 7_000_000
            sample.write(path, [(begin + i * 1_000_000, i, f"{split}{number}") for i in range(40)], 9)
            naive = sample.read(path)
            split_id = split if split_by == "directory" else f"{split}/{path.name}"
            position = position if split_by == "directory" else 0
            expected += [(split_id, position + i, *row) for i, row in enumerate(naive)]
            position += len(naive)
            if kind == "s3":
                store.put(f"{split}/{path.name}", path.read_bytes())
    options = {
        **sample.options,
        **store.options,
        "eventTimeColumn": sample.time,
        "splitBy": split_by,
        "includeMetadata": "true",
        "bounded": "true",
        "maxOutOfOrderness": "10 seconds",
        "numReaders": "3",
    }
    if max_rows is not None:
        options["maxRowsPerTrigger"] = str(max_rows)
    frame = None
    if sample.needs_schema:
        frame = StructType.fromJson(FRAME.jsonValue())
        for name, kind in (("_split", StringType()), ("_position", LongType())):
            frame.add(name, kind)
    reading = Reading(stream_reader(store.uri, frame, **options))
    read, offsets, tables = [], [reading.offset], []
    latest: dict[str, int] = {}
    while (table := reading.next()) is not None:
        offsets.append(reading.offset)
        tables.append(table)
        for column in ("t", "event_time"):
            if column in table.column_names and pa.types.is_timestamp(table.schema.field(column).type):
                at = table.schema.get_field_index(column)
                micros = table.column(column).cast(pa.timestamp("us", "UTC")).cast(pa.int64())
                table = table.set_column(at, column, micros)
        names = ["_split", "_position", *(["value"] if sample.time == "value" else ["t", "n", "s"])]
        read += list(zip(*(table.column(name).to_pylist() for name in names), strict=True))
        event_time = "event_time" if "event_time" in table.column_names else "t"
        timed = zip(table.column("_split").to_pylist(), table.column(event_time).to_pylist(), strict=True)
        for split_id, time in timed:
            latest[split_id] = max(latest.get(split_id, time), time)
        known = {split[1] for split in reading.offset["splits"]} - {None}
        assert known <= {time - 10_000_001 for time in latest.values()}
    reading.reader.stop()
    assert sorted(read) == sorted(expected)
    if max_rows is None:
        assert len(tables) <= 5
    else:
        assert len(tables) >= len(expected) / max_rows
    # A reader that has planned nothing rebuilds the same batches from the offsets.
    for start, end, table in zip(offsets, offsets[1:], tables, strict=False):
        again = Reading(stream_reader(store.uri, frame, **options))
        assert again.between(start, end) == table


def test_stripes_of_orc_are_blocks_that_are_read_alone(folder: Path) -> None:
    sample = next(sample for sample in SAMPLES if sample.id == "orc")
    path = folder / "stripes.orc"
    sample.write(path, [(i, i, f"{i}" * 50) for i in range(5000)], 100)
    blocks = sample.reads_as(0).describe(stored(path), sample.schema, FieldTimestampAssigner("t"), "auto")
    assert blocks.rows.size > 3
    naive = sample.read(path)
    for point, rows in zip(points_of(blocks), blocks.rows.tolist(), strict=True):
        assert point is not None
        stop = point.row + rows
        read = rows_read(sample.reads_as(0), path, point.row, stop, sample.schema, point)
        assert read == list(enumerate(naive))[point.row : stop]


def test_a_large_row_group_of_a_local_file_is_not_held_as_a_whole(folder: Path) -> None:
    rows = 2_000_000
    path = folder / "one_row_group.parquet"
    table = pa.table({name: np.random.default_rng(7).integers(0, 1 << 62, rows) for name in "abcd"})
    pq.write_table(table, path)
    stored_bytes, schema = path.stat().st_size, table.schema
    del table
    before = pa.total_allocated_bytes()
    blocks = ParquetFormat().read_rows(FileRows(stored(path), 0, rows), schema)
    held = [pa.total_allocated_bytes() - before for _ in blocks]
    assert max(held) < stored_bytes / 3


@pytest.mark.parametrize("file_format", [CsvFormat(), JsonFormat(), TextFormat()], ids=lambda one: one.name)
def test_of_a_block_of_lines_only_those_of_the_range_are_decoded(
    file_format: LineFormat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A range that begins and ends inside of blocks would else decode them once for each micro-batch."""
    schema = pa.schema([("value", pa.string())])
    lines = {"csv": "%d", "json": '{"value": "%d"}', "text": "%d"}[file_format.name]
    path = tmp_path / "f"
    path.write_text("".join(lines % i + "\n" for i in range(1000)))
    decoded, decode = list[int](), type(file_format).decoded

    def counted(own: LineFormat, file: LineFile, run: Chunk, columns: pa.Schema) -> Any:
        decoded.append(run.content.count(b"\n"))
        return decode(own, file, run, columns)

    monkeypatch.setattr(type(file_format), "decoded", counted)
    found = rows_read(file_format.with_columns(schema), path, 500, 510, schema)
    assert found == [(i, (str(i),)) for i in range(500, 510)]
    assert decoded == [10]


def test_a_range_of_lines_reads_little_more_than_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of many splits has a small range in a micro-batch, and it ends inside of a block."""
    schema, lines = pa.schema([("value", pa.string())]), 1 << 16
    path = tmp_path / "f.csv"
    path.write_text("".join(f"{i:063}\n" for i in range(lines)))
    counted, count = list[int](), CsvFormat.count
    monkeypatch.setattr(CsvFormat, "count", lambda own, data: counted.append(len(data)) or count(own, data))
    # Of blocks of 1 MiB, the last lines of the first and the first of the second.
    found = rows_read(CsvFormat(), path, 16_000, 17_000, schema)
    assert [number for number, _ in found] == list(range(16_000, 17_000))
    assert sum(counted) < 1.2 * (1 << 20)


@given(st.lists(st.sampled_from(["", "a", "1,2", "\r", "\r\r", "#no", "a#", "b\r"]), max_size=6), st.booleans())
@example(["\r\r", "1,2"], True)
def test_lines_of_csv_are_counted_as_they_are_split(lines: list[str], ends: bool) -> None:
    for file_format in (CsvFormat(), CsvFormat(comment="#")):
        data = file_format._with_line_ends("\n".join([*lines, *([""] if ends else [])]).encode())
        assert file_format.count(data) == len(file_format._split(data))
