"""Bounds of event times in manifests: they may lack or be wide, and one that is wrong is found."""

from __future__ import annotations

import struct
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.types import LongType

from alignment import WatermarkStrategy
from alignment.timestamps import FieldTimestampAssigner
from streaming_source.connectors.iceberg import IcebergSource
from streaming_source.exceptions import MalformedDataError
from streaming_source.spark.datasource import AlignedDataSource
from streaming_source.testing import SourceHarness
from tests.iceberg.commits import add_data_file
from tests.iceberg.tables import (
    SECOND,
    append,
    batch_times,
    catalog_options,
    create,
    harness,
    properties_in,
    rows,
    times,
)
from tests.spark.reading import rows_emitted


def write(path: Path, times_us: list[int | None]) -> str:
    """A data file with the id of the column `ts`."""
    field = pa.field("ts", pa.timestamp("us", "UTC"), metadata={"PARQUET:field_id": "1"})
    pq.write_table(rows(times_us).cast(pa.schema([field])), path)
    return f"file://{path}"


def bound(time_us: int) -> dict[int, bytes]:
    return {1: struct.pack("<q", time_us)}


def in_order(done: SourceHarness) -> list[int]:
    return [record.time_us for batch in done.batches for record in batch.all_records]


@pytest.mark.parametrize("mode", ["none", "counts", "truncate(16)"])
def test_files_are_begun_in_order_with_and_without_bounds(tmp_path: Path, mode: str) -> None:
    table = create(tmp_path, properties={"write.metadata.metrics.default": mode})
    for second in (30, 10, 20):
        append(table, [second * SECOND])
    append(table, [None])
    done = harness(tmp_path, max_rows=1)

    done.run()

    assert [time for time in in_order(done) if time > 0] == [10 * SECOND, 20 * SECOND, 30 * SECOND]
    assert len(in_order(done)) == 4


@pytest.mark.parametrize(("low", "high"), [(2, 9), (0, 4), (6, 9)])
def test_a_bound_that_lies_is_found_when_its_file_is_begun(tmp_path: Path, low: int, high: int) -> None:
    table = create(tmp_path)
    location = write(tmp_path / "a.parquet", [1 * SECOND, 5 * SECOND])
    number = add_data_file(table, location, 2, low=bound(low * SECOND), high=bound(high * SECOND))

    with pytest.raises(MalformedDataError, match=rf"a.parquet@v{number}: .*: the table's statistics are wrong"):
        harness(tmp_path).run()


def test_bounds_that_are_not_reached_hold_all_the_same(tmp_path: Path) -> None:
    table = create(tmp_path)
    for second in (5, 3):
        location = write(tmp_path / f"{second}.parquet", [second * SECOND])
        add_data_file(table, location, 1, low=bound(0), high=bound(9 * SECOND))
    add_data_file(table, write(tmp_path / "b.parquet", [1 * SECOND]), 1, low=bound(1 * SECOND))
    done = harness(tmp_path)

    done.run()

    assert times(done) == batch_times(table) == [1 * SECOND, 3 * SECOND, 5 * SECOND]


def test_an_upper_bound_is_good_to_its_millisecond(tmp_path: Path) -> None:
    """The metadata that Delta writes of a table in the format of Iceberg cut times to milliseconds."""
    table = create(tmp_path)
    location = write(tmp_path / "a.parquet", [1_111_111, 2_222_999])
    add_data_file(table, location, 2, low=bound(1_111_000), high=bound(2_222_000), nulls={1: 0})
    done = harness(tmp_path)

    done.run()

    assert times(done) == [1_111_111, 2_222_999]
    options = {f"catalog.{name}": value for name, value in catalog_options(tmp_path).items()}
    options |= {"path": "db.t", "catalog.name": "tests", "eventTimeColumn": "ts", "timeZone": "UTC"}
    within = AlignedDataSource.of_format(
        "aligned_iceberg", rows_emitted({**options, "eventTimeFrom": "1970-01-01T00:00:02.222500Z"})
    )
    reader = within.times_reader()
    read = pa.concat_tables(pa.Table.from_batches([b]) for part in reader.partitions() for b in reader.read(part))
    assert read.column(2).cast(pa.int64()).to_pylist() == [2_222_999]


@pytest.mark.parametrize(
    ("kind", "assigner"),
    [
        # West of Greenwich: a query with the exact watermark has no times before 1970.
        (pa.timestamp("us"), FieldTimestampAssigner("ts", zone="America/New_York")),
        (pa.date32(), FieldTimestampAssigner("ts", zone="UTC")),
        (pa.int64(), FieldTimestampAssigner("ts", unit="s")),
        (pa.int32(), FieldTimestampAssigner("ts", unit="s")),
    ],
    ids=str,
)
def test_event_times_of_any_type_are_bounded(tmp_path: Path, kind: pa.DataType, assigner: Any) -> None:
    numbers = pa.array([19_000, 18_000, 17_000])
    values = numbers.cast(pa.int32()).cast(kind) if kind == pa.date32() else numbers.cast(kind)
    table = create(tmp_path, pa.schema([("ts", kind)]))
    for value in values:
        table.append(pa.table({"ts": pa.array([value.as_py()], kind)}))
    if kind == pa.int32():
        # Bounds of the files that are there stay of four bytes.
        with table.update_schema() as change:
            change.update_column("ts", LongType())
        table.append(pa.table({"ts": pa.array([16_000], pa.int64())}))
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(assigner)
    source = IcebergSource("db.t", catalog=properties_in(tmp_path))
    lister = source.open_lister(source.schema(), assigner)
    listed = lister.snapshot(lister.start().version)
    done = harness(tmp_path, strategy=strategy, max_rows=1)

    done.run()

    assert listed["low_us"].null_count == 0, "taken from footers"
    assert in_order(done) == sorted(listed["low_us"].to_pylist())
    # These times are whole milliseconds: an upper bound of a moment is good to its own.
    wider = 999 if pa.types.is_timestamp(kind) else 0
    assert [time + wider for time in in_order(done)] == sorted(listed["high_us"].to_pylist())


@pytest.mark.parametrize("kind", [pa.float64(), pa.decimal128(12, 2)], ids=str)
def test_bounds_of_other_types_are_left_to_the_files(tmp_path: Path, kind: pa.DataType) -> None:
    table = create(tmp_path, pa.schema([("ts", kind)]))
    for number in (300, 100, 200):
        value = Decimal(number) if pa.types.is_decimal(kind) else float(number)
        table.append(pa.table({"ts": pa.array([value], kind)}))
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(
        FieldTimestampAssigner("ts", unit="s")
    )
    done = harness(tmp_path, strategy=strategy, max_rows=1)

    done.run()

    assert in_order(done) == [100 * SECOND, 200 * SECOND, 300 * SECOND]
