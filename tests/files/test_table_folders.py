"""A folder of a table is refused with what reads it: files that the table has removed are still in it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType, TimestampType

from streaming_source.connectors.files import FileSource
from streaming_source.connectors.files.listing import Lister, list_files
from streaming_source.exceptions import OptionError
from tests.files.stores import s3_store
from tests.spark.reading import Reading, data_source, put, read_all, stamps, stream_reader

ROWS = pa.table({"ts": stamps(*range(300), zone="UTC"), "part": ["a"] * 150 + ["b"] * 150})
SCHEMA = StructType().add("ts", TimestampType())
REFUSED = r"is the folder of a table of {}, .*\.format\('{}'\).*; or give a path without tables"


def delta(path: Path, **options: Any) -> Path:
    """A table whose rows were written twice: 600 in files, 300 in the table."""
    # Where an environment is older than these tests they are skipped, as those of the broker are.
    deltalake = pytest.importorskip("deltalake")
    for _ in range(2):
        deltalake.write_deltalake(str(path), ROWS, mode="overwrite", **options)
    return path


def iceberg(path: Path) -> Path:
    path.mkdir(parents=True)
    sql = pytest.importorskip("pyiceberg.catalog.sql")
    catalog = sql.SqlCatalog("c", uri=f"sqlite:///{path}/../catalog-{path.name}.db", warehouse=f"file://{path.parent}")
    catalog.create_namespace("n")
    table = catalog.create_table("n.t", ROWS.schema, location=f"file://{path}")
    table.append(ROWS)
    table.overwrite(ROWS)
    return path


def hudi(path: Path) -> Path:
    """As its writer leaves it: there is none in Python."""
    put(path / "part=a" / "1.parquet", ROWS)
    (path / ".hoodie").mkdir()
    (path / ".hoodie" / "hoodie.properties").write_text("hoodie.table.name=t\n")
    return path


TABLES: dict[str, tuple[Callable[[Path], Path], str]] = {
    "delta": (delta, REFUSED.format("Delta", "aligned_delta")),
    "iceberg": (iceberg, REFUSED.format("Iceberg", "aligned_iceberg")),
    "hudi": (hudi, REFUSED.format("Hudi", "hudi")),
}


def paths_of(table: Path) -> dict[str, str]:
    """Every way to name a table, or a part of it."""
    file = next(path for path in sorted(table.rglob("*.parquet")) if "_delta_log" not in path.parts)
    return {
        "the table": str(table),
        "what it lies in": str(table.parent),
        "a part of it": str(file.parent),
        "a file": f"{str(file)[:-1]}?",
        "a list": json.dumps([str(file.parent), f"{str(file)[:-1]}?"]),
        "a pattern of tables": f"{table.parent}/*",
    }


@pytest.mark.parametrize("kind", TABLES)
def test_a_table_is_refused_however_it_is_named(kind: str, tmp_path: Path) -> None:
    make, message = TABLES[kind]
    table = make(tmp_path / "lake" / "t")
    for path in paths_of(table).values():
        given = {"eventTimeColumn": "ts", "pathGlobFilter": "*.parquet"}
        with pytest.raises(OptionError, match=message) as refused:
            data_source(path, **given).schema()
        assert f"option path: {table} is" in str(refused.value)
        # With columns from the user no file is looked into before the query runs.
        with pytest.raises(OptionError, match=message):
            read_all(path, SCHEMA, **given)
        with pytest.raises(OptionError, match=message):
            data_source(path, **given).batch_reader(SCHEMA).partitions()


def test_a_partition_of_a_table_is_refused(tmp_path: Path) -> None:
    table = delta(tmp_path / "t", partition_by=["part"])
    with pytest.raises(OptionError, match=TABLES["delta"][1]):
        list(list_files(FileSource(str(table / "part=a")).root))


@pytest.mark.parametrize("kind", TABLES)
def test_a_folder_that_becomes_a_table_while_a_query_runs_fails_it(kind: str, tmp_path: Path) -> None:
    make, message = TABLES[kind]
    put(tmp_path / "lake" / "log" / "1.parquet", ROWS)
    options = {"eventTimeColumn": "ts", "discoveryInterval": "10 ms", "pathGlobFilter": "*.parquet", "splitBy": "file"}
    reading = Reading(stream_reader(tmp_path / "lake", SCHEMA, **options))
    assert reading.next() is not None
    make(tmp_path / "lake" / "t")
    with pytest.raises(OptionError, match=message):
        reading.await_unread(10**9)
    reading.reader.stop()


def test_a_table_in_an_object_store_is_refused(request: pytest.FixtureRequest) -> None:
    store = s3_store(request.getfixturevalue("s3_endpoint"))
    store.write("in/good/1.parquet", [1.0])
    store.write("in/t/part=a/1.parquet", [1.0])
    for below in ("in", "in/t/part=a"):
        assert [file.name for file in list_files(store.source(below=below).root)]
    store.put("in/t/_delta_log/00000000000000000000.json", b"{}")
    for below in ("in", "in/t", "in/t/part=a"):
        with pytest.raises(OptionError, match=r"in/t is the folder of a table of Delta"):
            list(list_files(store.source(below=below).root))


@pytest.mark.parametrize(
    "name", ["metadata/x.metadata.json", "metadata/v1.json", "other/v1.metadata.json", "delta_log/1.json", "hoodie/1"]
)
def test_what_only_looks_like_a_table_is_read(name: str, tmp_path: Path) -> None:
    put(tmp_path / "1.parquet", ROWS)
    (tmp_path / name).parent.mkdir()
    (tmp_path / name).write_text("{}")
    selection = FileSource(str(tmp_path), path_glob_filter="*.parquet").root
    lister = Lister(selection)
    assert [file.name for found in lister.list_changed() for file in found.files] == ["1.parquet"]
