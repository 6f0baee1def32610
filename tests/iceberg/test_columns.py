"""Columns of a table that has changed: found by the ids of their fields, under the names that the query knows."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.types import DoubleType, IntegerType, LongType, StringType

from alignment import WatermarkStrategy
from streaming_source.connectors.iceberg import IcebergSource
from streaming_source.exceptions import SchemaError
from tests.iceberg.tables import (
    SECOND,
    append,
    batch_times,
    create,
    harness,
    later,
    properties_in,
    rows,
    times,
)
from tests.tables.reading import read_all

SCHEMA = pa.schema(
    [
        ("ts", pa.timestamp("us", "UTC")),
        ("n", pa.int32()),
        ("x", pa.float32()),
        ("old", pa.string()),
        ("at", pa.struct([("lat", pa.float32()), ("lon", pa.float32())])),
        ("tags", pa.list_(pa.struct([("k", pa.string())]))),
    ]
)


def source(folder: Path) -> IcebergSource:
    return IcebergSource("db.t", catalog=properties_in(folder))


def rows_of(time: int) -> pa.Table:
    at, tags = {"lat": 1.0 * time, "lon": 2.0}, [{"k": f"{time}"}]
    return pa.Table.from_pylist([{"ts": time, "n": time, "x": 0.5, "old": "a", "at": at, "tags": tags}], schema=SCHEMA)


def test_renamed_moved_dropped_and_added_columns_are_read_by_their_ids(tmp_path: Path) -> None:
    table = create(tmp_path, SCHEMA)
    table.append(rows_of(1))
    with table.update_schema() as change:
        change.rename_column("ts", "time")
        change.rename_column("n", "number")
        change.rename_column("at.lat", "latitude")
        change.rename_column("tags.k", "key")
        change.delete_column("old")
        change.move_first("x")
    with table.update_schema() as change:
        change.update_column("number", LongType())
        change.update_column("x", DoubleType())
        change.update_column("at.latitude", DoubleType())
        change.add_column(("at", "height"), IntegerType())
        change.add_column("old", StringType())
    later_rows = {"x": 7.5, "time": 2, "number": 1 << 40, "at": {"latitude": 5.0, "lon": 6.0, "height": 7}}
    now = table.scan().to_arrow().schema
    table.append(pa.Table.from_pylist([{**later_rows, "tags": [{"key": "b"}], "old": "new"}], schema=now))
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("time")
    read = read_all(source(tmp_path), strategy)

    expected = table.refresh().scan().to_arrow()
    assert read.schema.names == expected.schema.names
    assert read.sort_by("time").to_pylist() == expected.sort_by("time").to_pylist()


@pytest.mark.parametrize("drops", [False, True])
def test_a_file_from_before_all_columns_that_are_read_has_nulls(drops: bool, tmp_path: Path) -> None:
    """Also where the table has dropped each column that the file has."""
    before, later = pa.table({"v": [1, 2]}), rows([5 * SECOND], v=[3])
    table = create(tmp_path, before.schema)
    table.append(before)
    with table.update_schema() as change:
        change.union_by_name(later.schema)
    table.append(later.select(["v", "ts"]))
    if drops:
        with table.update_schema() as change:
            change.delete_column("v")
    source = IcebergSource("db.t", catalog=properties_in(tmp_path), columns=("ts",))
    assert sorted(read_all(source)["ts"].cast(pa.int64()).to_pylist(), key=str) == [5 * SECOND, None, None]


def test_a_column_that_is_renamed_under_a_query_is_read_on(tmp_path: Path) -> None:
    table = create(tmp_path)
    append(table, [1 * SECOND])
    done = harness(tmp_path)
    done.run()
    with table.update_schema() as change:
        change.rename_column("ts", "time")
    table.append(rows([2 * SECOND]).rename_columns(["time"]))

    assert times(later(done)) == [1 * SECOND, 2 * SECOND]


def test_columns_that_a_query_has_not_are_named_or_end_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    table = create(tmp_path)
    append(table, [1 * SECOND])
    goes_on, ends = harness(tmp_path), harness(tmp_path, {"schema_evolution": "fail"})
    for done in (goes_on, ends):
        done.run()
    with table.update_schema() as change:
        change.add_column("n", IntegerType())
    table.append(pa.table({"ts": rows([2 * SECOND])["ts"], "n": pa.array([1], pa.int32())}))

    with caplog.at_level(logging.WARNING):
        assert times(later(goes_on)) == [1 * SECOND, 2 * SECOND]
    assert "has new columns that the query does not read: n." in caplog.text
    with pytest.raises(
        SchemaError, match=r"has new columns that the query does not read: n. schemaEvolution = ignore goes on"
    ):
        later(ends)


@pytest.mark.parametrize("drops", [True, False])
def test_a_column_that_is_dropped_or_gets_another_type_ends_a_query_that_reads_it(tmp_path: Path, drops: bool) -> None:
    table = create(tmp_path, pa.schema([*rows([0]).schema, ("n", pa.int32())]))
    one = pa.table({"ts": rows([1 * SECOND])["ts"], "n": pa.array([1], pa.int32())})
    table.append(one)
    done, without = harness(tmp_path), harness(tmp_path, {"columns": ("ts",)})
    for query in (done, without):
        query.run()
    with table.update_schema() as change:
        if drops:
            change.delete_column("n")
        else:
            change.update_column("n", LongType())
    table.append(one.select(["ts"]) if drops else one.cast(table.scan().to_arrow().schema))

    with pytest.raises(SchemaError, match=r"no column 'n' any more, which" if drops else r"'n' as long, and the query"):
        later(done)
    assert times(later(without)) == [1 * SECOND, 1 * SECOND]


def test_partitioning_that_changes_is_nothing_to_a_reader(tmp_path: Path) -> None:
    table = create(tmp_path, rows([0], part="a").schema)
    append(table, [1 * SECOND, 2 * SECOND], part=["a", "b"])
    with table.update_spec() as spec:
        spec.add_identity("part")
    append(table, [3 * SECOND, 4 * SECOND, 5 * SECOND], part=["a/b c", "%2F", "ü=#?"])
    with table.update_spec() as spec:
        spec.remove_field("part")
        spec.add_identity("ts")
    append(table, [86_400 * SECOND, 6 * SECOND], part=["c", None])
    done = harness(tmp_path)

    done.run()

    assert times(done) == batch_times(table)
    found = read_all(source(tmp_path))["part"].to_pylist()
    assert sorted(found, key=str) == sorted(["a", "b", "a/b c", "%2F", "ü=#?", "c", None], key=str)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.timestamp("us", "UTC"), 1_700_000_000_123_456),
        (pa.timestamp("us"), 1_700_000_000_123_456),
        (pa.date32(), 19_000),
        (pa.int64(), 1_700_000_000),
        (pa.timestamp("us"), -62_135_596_800_000_000),
        (pa.date32(), -719_162),
        (pa.decimal128(9, 2), "12.30"),
        (pa.decimal128(20, 10), "0"),
        (pa.float64(), -0.0),
        (pa.float32(), float("-inf")),
        (pa.string(), ""),
        (pa.binary(), b"\x00\xff"),
        (pa.binary(), b""),
        (pa.bool_(), True),
    ],
    ids=str,
)
def test_a_partition_column_has_its_type_and_value_also_where_files_lack_it(
    tmp_path: Path, kind: pa.DataType, value: Any
) -> None:
    is_text = isinstance(value, str) and not pa.types.is_string(kind)
    typed = pa.scalar(value, pa.string()).cast(kind) if is_text else pa.scalar(value, kind)
    one = pa.table({"ts": rows([1 * SECOND])["ts"], "part": pa.array([typed.as_py()], kind)})
    table = create(tmp_path, one.schema)
    with table.update_spec() as spec:
        spec.add_identity("part")
    table.append(one)
    done = harness(tmp_path, max_rows=1)
    done.plan()
    done.restart()

    assert str(read_all(source(tmp_path)).to_pylist()) == str(one.to_pylist())
    for path in (tmp_path / "warehouse").rglob("*.parquet"):
        # As Hive writes them.
        pq.write_table(pq.ParquetFile(path).read().drop_columns(["part"]), path)
    assert str(read_all(source(tmp_path)).to_pylist()) == str(one.to_pylist())
    done.run()
    assert times(done) == [1 * SECOND]


def test_files_that_were_taken_over_without_ids_are_read_by_the_tables_names(tmp_path: Path) -> None:
    table = create(tmp_path)
    append(table, [1 * SECOND])
    pq.write_table(rows([2 * SECOND]), tmp_path / "a.parquet")
    table.add_files([f"file://{tmp_path}/a.parquet"])
    with table.update_schema() as change:
        change.rename_column("ts", "time")
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("time")
    done = harness(tmp_path, strategy=strategy)

    done.run()

    assert times(done) == [1 * SECOND, 2 * SECOND]
    assert source(tmp_path).schema().names == ["time"]


def test_files_of_large_types_and_narrower_maps_are_read(tmp_path: Path) -> None:
    table = create(
        tmp_path,
        pa.schema(
            [
                ("ts", pa.timestamp("us", "UTC")),
                ("tags", pa.list_(pa.struct([("k", pa.string())]))),
                ("raw", pa.binary()),
                ("counts", pa.map_(pa.string(), pa.int32())),
            ]
        ),
    )
    row = {"ts": 1, "tags": [{"k": "a"}], "raw": b"x", "counts": [("n", 7)]}
    table.append(pa.Table.from_pylist([row], schema=table.scan().to_arrow().schema))
    # As pyiceberg before 0.10 wrote them.
    large = {
        "ts": pa.array([2], pa.timestamp("us", "UTC")),
        "tags": pa.array([[{"k": "b"}]], pa.large_list(pa.struct([("k", pa.large_string())]))),
        "raw": pa.array([b"y"], pa.large_binary()),
        "counts": pa.array([[("m", 8)]], pa.map_(pa.large_string(), pa.int32())),
    }
    pq.write_table(pa.table(large), tmp_path / "a.parquet")
    table.add_files([f"file://{tmp_path}/a.parquet"])
    with table.update_schema() as change:
        change.update_column(("counts", "value"), LongType())

    read = read_all(source(tmp_path)).sort_by("ts").to_pylist()

    assert read == table.refresh().scan().to_arrow().sort_by("ts").to_pylist()
    assert [row["counts"] for row in read] == [[("n", 7)], [("m", 8)]]
