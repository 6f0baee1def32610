"""What is not read is refused by its name, with what to do instead."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.orc as orc
import pytest
from pyiceberg.manifest import FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import FixedType, IcebergType, NestedField, TimestamptzType, TimeType, UUIDType

from streaming_source.connectors.iceberg import IcebergSource, lister
from streaming_source.connectors.iceberg.catalog import CatalogProperties, properties_of
from streaming_source.exceptions import OptionError, StoreUnavailableError, UnsupportedOperationError
from streaming_source.testing import SourceHarness
from tests.examples import each_once
from tests.iceberg.commits import add_data_file, edit_metadata
from tests.iceberg.tables import SECOND, append, catalog_in, create, harness, later, properties_in, rows, times
from tests.tables.reading import read_all


def source(folder: Path, **options: Any) -> IcebergSource:
    return IcebergSource("db.t", catalog=properties_in(folder), **options)


@pytest.mark.parametrize("kind", [TimeType(), UUIDType(), FixedType(4)], ids=str)
def test_columns_of_other_types_are_named_and_may_be_left_out(tmp_path: Path, kind: IcebergType) -> None:
    schema = Schema(NestedField(1, "ts", TimestamptzType()), NestedField(2, "odd", kind))
    table = catalog_in(tmp_path).create_table("db.t", schema)
    table.append(table.scan().to_arrow().schema.empty_table())

    with pytest.raises(UnsupportedOperationError, match=r"column 'odd' has the type .*, which is not read. Leave"):
        source(tmp_path).schema()
    assert source(tmp_path, columns=("ts",)).schema().names == ["ts"]


@pytest.mark.parametrize("kind", ["timestamptz_ns", "variant", "geometry"])
def test_types_of_format_version_3_are_refused(tmp_path: Path, kind: str) -> None:
    table = create(tmp_path, rows([0], odd=1).schema)
    append(table, [1 * SECOND], odd=1)

    def retype(metadata: dict[str, Any]) -> None:
        metadata["format-version"], metadata["next-row-id"] = 3, 1
        for schema in metadata["schemas"]:
            schema["fields"][1]["type"] = kind
        for snapshot in metadata["snapshots"]:
            snapshot["first-row-id"] = 0

    try:
        edit_metadata(table, retype)
    except Exception as error:  # pyiceberg may not know the type either.
        assert kind in str(error)  # noqa: PT017

    with pytest.raises(UnsupportedOperationError, match=rf"(?i){kind}.*(Leave it out with|Take a newer pyiceberg, or)"):
        source(tmp_path).schema()


def test_a_column_with_a_default_for_older_files_is_refused(tmp_path: Path) -> None:
    table = create(tmp_path, rows([0], n=1).schema)
    append(table, [1 * SECOND], n=1)

    def with_default(metadata: dict[str, Any]) -> None:
        metadata["format-version"], metadata["next-row-id"] = 3, 1
        metadata["schemas"][0]["fields"][1]["initial-default"] = 17
        for snapshot in metadata["snapshots"]:
            snapshot["first-row-id"] = 0

    edit_metadata(table, with_default)

    with pytest.raises(UnsupportedOperationError, match=r"column 'n' has a default for files .* option columns"):
        source(tmp_path).schema()
    done = harness(tmp_path, {"columns": ("ts",)})
    done.run()
    assert times(done) == [1 * SECOND]


def test_files_of_other_formats_are_refused(tmp_path: Path) -> None:
    table = create(tmp_path)
    orc.write_table(rows([1 * SECOND]).cast(pa.schema([("ts", pa.timestamp("us"))])), tmp_path / "a.orc")
    number = add_data_file(table, f"file://{tmp_path}/a.orc", 1, file_format=FileFormat.ORC)

    with pytest.raises(UnsupportedOperationError, match=rf"snapshot {number}, has a file in ORC: only Parquet is read"):
        harness(tmp_path).run()


def test_avro_and_encrypted_files_are_refused(tmp_path: Path) -> None:
    table = create(tmp_path)
    append(table, [1 * SECOND])
    location = next((tmp_path / "warehouse/db/t/data").glob("*.parquet"))
    done, fresh = harness(tmp_path), harness(tmp_path)
    done.run()
    number = add_data_file(table, f"file://{location}", 1, key_metadata=b"key")

    for one in (later, SourceHarness.run):
        with pytest.raises(UnsupportedOperationError, match=rf"snapshot {number}, has a file that is encrypted, which"):
            one(done if one is later else fresh)
    other = create(tmp_path / "avro")
    number = add_data_file(other, f"file://{location}", 1, file_format=FileFormat.AVRO)
    with pytest.raises(
        UnsupportedOperationError, match=rf"snapshot {number}, has a file in AVRO: only Parquet is read"
    ):
        harness(tmp_path / "avro").run()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": "db.t", "branch": "audit"}, "option branch is not one of this source: the main branch is read"),
        ({"path": "db.t", "streaming-max-files-per-micro-batch": "5"}, "limit a micro-batch with maxRowsPerTrigger"),
        ({"path": "db.t", "startingVersion": "5"}, "stream-from-timestamp is where a stream starts"),
        ({}, "option table is missing: give the name of the table, as in .load"),
        ({"path": "t"}, "must be the name of a table in its namespace; give one, as in"),
        ({"path": "file:/warehouse/db.t"}, "in SQL OPTIONS (table 'db.clicks')"),
        ({"path": "db.t", "table": "db.s"}, "are the same: give one of them"),
        ({"path": "db.t", "as-of-timestamp": "yesterday"}, "must be milliseconds since 1970 or an ISO-8601 time; give"),
        ({"path": "db.t", "as-of-timestamp": "1", "snapshot-id": "1"}, "are both given; give one of them"),
        ({"path": "db.t", "snapshot_id": "1"}, "did you mean snapshot-id"),
    ],
)
def test_wrong_options_are_answered(options: Mapping[str, str], message: str) -> None:
    with pytest.raises(OptionError) as raised:
        IcebergSource.from_options(IcebergSource.options().parse(options))
    assert message in str(raised.value)


def test_times_and_snapshots_that_the_table_has_not_are_named(tmp_path: Path) -> None:
    number = append(create(tmp_path), [1 * SECOND])
    with pytest.raises(OptionError, match=rf"snapshot-id = 17: .* has no such snapshot; .* give one of {number}"):
        source(tmp_path, snapshot_id=17).schema()
    with pytest.raises(OptionError, match=r"as-of-timestamp = 1970-01-02: .* has no snapshot as old as that; give a"):
        source(tmp_path, as_of_timestamp="1970-01-02").schema()
    with pytest.raises(OptionError, match=r"stream-from-timestamp = 5 is where a stream starts; a batch reads one"):
        source(tmp_path, stream_from_timestamp=5).for_batch()


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"type": "imaginary"}, r"catalog 'c' cannot be opened: .*imaginary.* Give what pyiceberg needs"),
        ({"type": "sql"}, r"catalog 'c' cannot be opened: .* Give what pyiceberg needs, as in catalog.type = rest"),
        # Inside of a word, too.
        ({"type": "unhush-hushed"}, r"catalog 'c' cannot be opened: .*un\*\*\*ed.* Give what pyiceberg needs"),
    ],
)
def test_a_catalog_that_cannot_be_opened_is_named(properties: dict[str, str], message: str) -> None:
    given = {"name": "c", "token": "hush-hush", **properties}
    with pytest.raises(OptionError, match=message) as raised:
        IcebergSource("db.t", catalog=properties_of(given)).schema()
    assert "hush-hush" not in str(raised.value)


def test_a_catalog_that_does_not_answer_may_do_so_later() -> None:
    given = {"name": "c", "type": "rest", "uri": "http://127.0.0.1:9", "token": "hush-hush"}
    with pytest.raises(StoreUnavailableError, match=r"catalog 'c' did not answer: .*; start again when it does"):
        IcebergSource("db.t", catalog=properties_of(given)).schema()


def test_secrets_of_the_catalog_show_nowhere() -> None:
    kept = IcebergSource("db.t", catalog=CatalogProperties("c", (("token", "hush-hush"),)))
    assert "hush-hush" not in f"{kept!r} {kept.identity} {kept.title}"


def test_executors_need_no_pyiceberg(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['pyiceberg'] = None\n"
        "from streaming_source.connectors.iceberg import IcebergSource\n"
        "files = IcebergSource('db.t').open_files()\n"
        f"print(files.open_input_file('file://{tmp_path}/p=a%2Fb').read().decode())\n"
        "try: IcebergSource('db.t').schema()\n"
        "except ModuleNotFoundError as error: print(error)\n"
    )
    (tmp_path / "p=a%2Fb").write_text("read")
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=False)
    assert done.stdout.splitlines() == [
        "read",
        "IcebergSource needs pyiceberg: install spark-watermark-alignment[iceberg]",
    ], done.stderr


@pytest.mark.parametrize(("kind", "where"), each_once([TypeError, KeyError, ValueError], ["entries_of", "manifests"]))
def test_manifests_that_pyiceberg_does_not_understand_name_the_table_and_the_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, kind: type[Exception]
) -> None:
    """As those of BigQuery, whose fields may be null where the specification has a value."""

    def fails(*arguments: object) -> None:
        raise kind("'NoneType' object is not iterable")

    append(create(tmp_path), [1 * SECOND])
    monkeypatch.setattr(*((lister, where) if where == "entries_of" else (Snapshot, where)), fails)
    for read in (harness(tmp_path).run, lambda: read_all(IcebergSource("db.t", catalog=properties_in(tmp_path)))):
        with pytest.raises(UnsupportedOperationError, match=r"Iceberg table db.t: the manifests of .*NoneType.*Take "):
            read()
