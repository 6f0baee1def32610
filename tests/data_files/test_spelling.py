"""Names of columns that differ in upper and lower case, from file to file or from the query, as Spark resolves them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import csv, feather, orc
from pyarrow import parquet as pq
from pyspark.sql.types import LongType, StructType, TimestampType

from streaming_source.data_files.stores import Root, StorageOptions
from streaming_source.exceptions import OptionError, SchemaError
from tests.spark.reading import data_source, read_all, read_batch, stamps

WRITERS = {"parquet": pq.write_table, "orc": orc.write_table, "arrow": feather.write_feather, "csv": csv.write_csv}
GIVEN = {"csv": {"header": "true", "dataSchema": "t timestamp, Val bigint"}}
reads = pytest.mark.parametrize("read", [read_all, read_batch])


def write(path: Path, kind: str, columns: dict[str, Any]) -> None:
    WRITERS[kind](pa.table(columns), str(path))


@reads
@pytest.mark.parametrize("kind", WRITERS)
def test_files_may_write_a_name_in_another_case(tmp_path: Path, kind: str, read: Any) -> None:
    write(tmp_path / "1", kind, {"t": stamps(0, zone="UTC"), "Val": [1]})
    write(tmp_path / "2", kind, {"T": stamps(1, zone="UTC"), "val": [2]})
    table = read(tmp_path, fileFormat=kind, eventTimeColumn="t", timeZone="UTC", **GIVEN.get(kind, {}))
    assert table.select(["t", "Val"]).to_pydict() == {"t": stamps(0, 1, zone="UTC").to_pylist(), "Val": [1, 2]}


@pytest.mark.parametrize("kind", ["parquet", "orc", "arrow"])
def test_so_may_fields_in_structs_lists_and_maps(tmp_path: Path, kind: str) -> None:
    def table(name: str, value: int) -> dict[str, Any]:
        struct = pa.struct([(name, pa.int64())])
        inner = {name: value}
        columns = {"s": pa.array([inner], struct), "l": pa.array([[inner, None]], pa.list_(struct))}
        if kind != "arrow":
            columns["m"] = pa.array([[("k", inner)]], pa.map_(pa.string(), struct))
        return {"t": stamps(value, zone="UTC"), **columns}

    write(tmp_path / "1", kind, table("A", 1))
    write(tmp_path / "2", kind, table("a", 2))
    rows = read_all(tmp_path, fileFormat=kind, eventTimeColumn="t").to_pylist()
    assert [(row["s"], row["l"]) for row in rows] == [({"A": n}, [{"A": n}, None]) for n in (1, 2)]
    assert [row.get("m", [("k", {"A": n})]) for n, row in enumerate(rows, 1)] == [[("k", {"A": n})] for n in (1, 2)]


def test_event_times_in_a_struct_are_found_with_their_statistics(tmp_path: Path) -> None:
    for number, (outer, inner) in enumerate([("m", "At"), ("M", "at")]):
        times = pa.StructArray.from_arrays([stamps(number, zone="UTC")], [inner])
        pq.write_table(pa.table({outer: times}), tmp_path / f"{number}.parquet")
    table = read_all(tmp_path, eventTimeColumn="m.at", indexing="statistics")
    assert table.column("event_time").to_pylist() == stamps(0, 1, zone="UTC").to_pylist()


@pytest.mark.parametrize("options", [{"dataSchema": "t timestamp, VAL bigint"}, {"columns": "T,VAL"}])
def test_names_that_the_user_gives_may_differ_in_case(tmp_path: Path, options: dict[str, str]) -> None:
    write(tmp_path / "1", "parquet", {"t": stamps(0, zone="UTC"), "Val": [1]})
    table = read_all(tmp_path, eventTimeColumn="t", **options)
    assert [list(row.values())[1] for row in table.to_pylist()] == [1]


@reads
def test_so_may_those_of_the_schema_of_a_frame(tmp_path: Path, read: Any) -> None:
    write(tmp_path / "1", "parquet", {"t": stamps(0, zone="UTC"), "Val": [1]})
    frame = StructType().add("vAL", LongType()).add("T", TimestampType())
    assert read(tmp_path, frame, eventTimeColumn="t").column("vAL").to_pylist() == [1]


def test_with_add_at_restart_names_in_another_case_are_one_column(tmp_path: Path) -> None:
    write(tmp_path / "1", "parquet", {"t": stamps(0, zone="UTC"), "s": [{"A": 1}]})
    write(tmp_path / "2", "parquet", {"t": stamps(1, zone="UTC"), "S": [{"a": 2, "b": 3}]})
    table = read_all(tmp_path, eventTimeColumn="t", schemaEvolution="addAtRestart")
    assert table.column("s").to_pylist() == [{"A": 1, "b": None}, {"A": 2, "b": 3}]


def test_a_name_in_another_case_is_no_new_column(tmp_path: Path) -> None:
    write(tmp_path / "1", "parquet", {"t": stamps(0, zone="UTC"), "Val": [1]})
    write(tmp_path / "2", "parquet", {"T": stamps(1, zone="UTC"), "val": [2]})
    assert read_all(tmp_path, eventTimeColumn="t", schemaEvolution="fail").column("Val").to_pylist() == [1, 2]


@reads
def test_with_case_sensitive_each_name_is_its_own(tmp_path: Path, read: Any) -> None:
    write(tmp_path / "1", "parquet", {"t": stamps(0, zone="UTC"), "Val": [1], "val": [-1]})
    write(tmp_path / "2", "parquet", {"t": stamps(1, zone="UTC"), "val": [2]})
    table = read(tmp_path, eventTimeColumn="t", caseSensitive="true")
    assert table.select(["Val", "val"]).to_pydict() == {"Val": [1, None], "val": [-1, 2]}


def test_two_names_for_one_column_are_refused_with_both(tmp_path: Path) -> None:
    write(tmp_path / "1", "parquet", {"t": stamps(0, zone="UTC"), "Val": [1], "val": [2]})
    with pytest.raises(SchemaError, match=r"'Val' and 'val', whose names differ in case alone; .* caseSensitive"):
        data_source(tmp_path, eventTimeColumn="t").schema()
    with pytest.raises(SchemaError, match="'Val' and 'val'"):
        read_all(tmp_path, eventTimeColumn="t", dataSchema="t timestamp, val bigint")
    # What the query tells apart is taken as it is written.
    table = read_all(tmp_path, eventTimeColumn="t", dataSchema="t timestamp, val bigint, Val bigint")
    assert table.select(["Val", "val"]).to_pydict() == {"Val": [1], "val": [2]}


@reads
@pytest.mark.parametrize("split_by", ["directory", "file"])
def test_names_in_paths_may_differ_in_case_from_each_other_and_from_the_files(
    tmp_path: Path, read: Any, split_by: str
) -> None:
    for number, name in enumerate(["I", "i"]):
        (tmp_path / f"{name}={number}").mkdir()
        write(tmp_path / f"{name}={number}" / "f", "parquet", {"i": [77], "t": stamps(number, zone="UTC"), "n": [5]})
    table = read(tmp_path, eventTimeColumn="t", splitBy=split_by)
    # As in Spark the value is that of the path, in the place of the column of the file.
    assert table.schema.names == ["I", "t", "n"]
    assert sorted(table.column("I").to_pylist()) == [0, 1]
    given = read(tmp_path, eventTimeColumn="t", splitBy=split_by, dataSchema="t timestamp, i string, n bigint")
    assert sorted(given.column("i").to_pylist()) == ["0", "1"]


def test_an_argument_of_a_store_that_is_written_almost_right_is_offered() -> None:
    storage = StorageOptions.of({"endpoint_overide": "localhost:9000"})
    with pytest.raises(OptionError, match=r"did you mean storage\.endpoint_override\?"):
        Root("s3://bucket/logs", storage).open()
