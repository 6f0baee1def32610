"""An Iceberg table in a store: its metadata are read by one library, its files by another."""

from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from streaming_source.connectors.iceberg import IcebergSource
from streaming_source.connectors.iceberg.catalog import properties_of, storage_of_catalog
from streaming_source.data_files.stores import StorageOptions
from streaming_source.testing import SourceHarness
from tests.files.stores import SECRET, s3_store
from tests.iceberg.commits import delete_rows, files_of_table
from tests.iceberg.tables import SECOND, STRATEGY, append, rows, times


@pytest.mark.parametrize("has_storage", [False, True])
def test_a_table_on_s3_is_read_by_the_catalogs_properties_or_by_storage_options(
    s3_endpoint: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, has_storage: bool
) -> None:
    store = s3_store(s3_endpoint)
    host = store.storage["endpoint_override"]
    given = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": f"{store.uri}/warehouse",
        "s3.endpoint": host if "://" in host else f"{store.storage.get('scheme', 'http')}://{host}",
        "s3.access-key-id": store.storage["access_key"],
        "s3.secret-access-key": store.storage["secret_key"],
        "s3.region": store.storage.get("region", "us-east-1"),
    }
    catalog = load_catalog("tests", **given)
    catalog.create_namespace("db")
    table = catalog.create_table("db.t", rows([0], part="a").schema)
    with table.update_spec() as spec:
        spec.add_identity("part")
    append(table, [3 * SECOND, 1 * SECOND], part="a/b c")
    delete_rows(table, {files_of_table(table)[0].file_path: [0]})
    storage = StorageOptions.of(store.storage) if has_storage else StorageOptions()
    source = IcebergSource("db.t", catalog=properties_of({"name": "tests", **given}), storage=storage)
    done = SourceHarness(source, STRATEGY)
    done.run()
    append(table, [9 * SECOND], part="x")
    done.clock.advance("2 seconds")
    done.restart()

    done.run()

    assert times(done) == [1 * SECOND, 9 * SECOND]
    shown = f"{source!r} {done.state.splits} {source.identity} {source.title} {caplog.text}"
    assert SECRET not in shown
    assert pickle.loads(pickle.dumps(source)) == source


def test_properties_of_a_catalog_become_arguments_of_its_store() -> None:
    properties = {"s3.region": "eu", "client.region": "us", "adls.account-key": "k", "token": "t"}
    assert storage_of_catalog(properties, "s3a") == StorageOptions.of({"region": "eu"})
    assert storage_of_catalog(properties, "abfss") == StorageOptions.of({"account_key": "k"})
    assert storage_of_catalog(properties, "gs") == StorageOptions()


def test_locations_are_no_uris(tmp_path: Path) -> None:
    files = IcebergSource("db.t").open_files()
    (tmp_path / "p=a%2Fb #?").write_bytes(b"read")
    for location in (f"file://{tmp_path}/p=a%2Fb #?", f"file:{tmp_path}/p=a%2Fb #?", f"{tmp_path}/p=a%2Fb #?"):
        with files.open_input_file(location) as stream:
            assert stream.read() == b"read"
    with pytest.raises(FileNotFoundError):
        files.open_input_file(f"file://{tmp_path}/p=a/b")
    assert pa.fs.FileType.File == files.get_file_info(f"file://{tmp_path}/p=a%2Fb #?").type
