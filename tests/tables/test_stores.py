"""Tables in stores that cannot be read: the cause and what to correct in one sentence, as a frame is loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import deltalake
import pytest
from pyiceberg.catalog import load_catalog
from pyspark.sql import SparkSession

from streaming_source import read_stream
from streaming_source.connectors.delta import DeltaSource
from streaming_source.connectors.delta.storage import storage_options
from streaming_source.connectors.files import FileSource
from streaming_source.connectors.iceberg import IcebergSource
from streaming_source.connectors.iceberg.catalog import properties_of
from streaming_source.data_files.stores import Root, StorageOptions
from streaming_source.exceptions import OptionError, PathNotFoundError, SourceError, StoreError, StoreUnavailableError
from tests.files.faulty_s3 import FaultyStore, before
from tests.files.stores import SECRET, Store, s3_store
from tests.iceberg.tables import append, catalog_in, catalog_options, create
from tests.tables.reading import SECOND, rows

NOBODY = "127.0.0.1:1"


@pytest.fixture(scope="module")
def store(s3_endpoint: str) -> Store:
    """A bucket with a Delta table `t`, and a folder `files` of Parquet."""
    made = s3_store(s3_endpoint)
    options = {
        **(storage_options(made.uri, StorageOptions.of(made.storage)) or {}),
        "AWS_S3_ALLOW_UNSAFE_RENAME": "true",
    }
    deltalake.write_deltalake(f"{made.uri}/t", rows([SECOND]), storage_options=options)
    made.write("files/1.parquet", [1])
    return made


@pytest.fixture(scope="module")
def catalog(store: Store, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The properties of a catalog with the table `db.t`."""
    given = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path_factory.mktemp('catalog')}/catalog.db",
        "warehouse": f"{store.uri}/warehouse",
        "s3.endpoint": f"http://{store.storage['endpoint_override']}",
        "s3.access-key-id": store.storage["access_key"],
        "s3.secret-access-key": SECRET,
        "s3.region": "us-east-1",
    }
    made = load_catalog("c", **given)
    made.create_namespace("db")
    append(made.create_table("db.t", rows([0]).schema), [SECOND])
    return {"name": "c", **given}


@pytest.fixture
def refusing(store: Store) -> Iterator[FaultyStore]:
    with before(store.storage["endpoint_override"]) as proxy:
        proxy.valid_key = "another"
        yield proxy


def said(call: Callable[[], Any], kind: type[SourceError]) -> str:
    with pytest.raises(kind) as raised:
        call()
    message = " ".join(str(raised.value).split())
    assert "\x1b" not in message
    assert SECRET not in message
    assert len(message) < 700
    return message


def sources(
    store: Store, catalog: dict[str, str], endpoint: str
) -> dict[str, DeltaSource | IcebergSource | FileSource]:
    storage = StorageOptions.of(store.storage | {"endpoint_override": endpoint})
    properties = properties_of(catalog | {"s3.endpoint": f"http://{endpoint}"})
    return {
        "Delta table s3://": DeltaSource(f"{store.uri}/t", storage=storage),
        "Iceberg table db.t": IcebergSource("db.t", catalog=properties),
        "path 'bucket-": FileSource(f"{store.uri}/files", storage=storage),
    }


@pytest.mark.soak
def test_a_store_that_does_not_answer_is_said_with_its_address(store: Store, catalog: dict[str, str]) -> None:
    for title, source in sources(store, catalog, NOBODY).items():
        message = said(source.schema, StoreUnavailableError)
        assert message.startswith(title)
        assert "the store does not answer: " in message
        assert "Connection refused (os error 111)" in message or "Failed to connect to 127.0.0.1:1" in message
        assert "Start again when it does, or correct the endpoint in the options " in message


def test_a_store_that_refuses_access_is_said_with_the_options(
    store: Store, catalog: dict[str, str], refusing: FaultyStore
) -> None:
    for title, source in sources(store, catalog, refusing.endpoint).items():
        message = said(source.schema, StoreError)
        assert message.startswith(title)
        assert "the store refuses access: " in message
        assert "403 Forbidden: ExpiredToken" in message or "ACCESS_DENIED" in message
        assert ". Correct the keys in the options " in message
        assert message.endswith(", or the rights of their user")


def test_a_bucket_that_is_not_there_is_said(store: Store, catalog: dict[str, str], tmp_path: Path) -> None:
    storage = StorageOptions.of(store.storage)
    message = said(DeltaSource("s3://no-such-bucket/t", storage=storage).schema, PathNotFoundError)
    assert "there is no such bucket: " in message
    assert message.endswith("Correct its name, or the endpoint in the options storage.*")
    properties = {**catalog, "name": "d", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": "s3://gone-bucket"}
    files, _ = Root("s3://gone-bucket", StorageOptions.of({**store.storage, "allow_bucket_deletion": "true"})).open()
    files.create_dir("gone-bucket")
    other = load_catalog(**properties)
    other.create_namespace("db")
    other.create_table("db.t", rows([0]).schema)
    files.delete_dir("gone-bucket")
    message = said(IcebergSource("db.t", catalog=properties_of(properties)).schema, PathNotFoundError)
    assert message.startswith("Iceberg table db.t: what it needs is not in its store: ")
    assert "gone-bucket/db/t/metadata/" in message


def test_a_folder_of_files_is_no_table_and_leads_to_the_format_that_reads_it(store: Store, tmp_path: Path) -> None:
    (tmp_path / "hour=1").mkdir()
    for path, storage in ((f"{store.uri}/files", StorageOptions.of(store.storage)), (str(tmp_path), StorageOptions())):
        message = said(DeltaSource(path, storage=storage).schema, PathNotFoundError)
        assert "there is no Delta table in" in message
        assert message.endswith("Correct it, or read a folder of files with format aligned_files")
    message = said(DeltaSource(str(tmp_path / "nothing")).schema, PathNotFoundError)
    assert message.endswith("nothing; correct it")


def test_a_table_that_a_catalog_lacks_is_answered_with_what_it_has(tmp_path: Path) -> None:
    create(tmp_path)
    catalog_in(tmp_path).create_namespace("other")
    given = catalog_options(tmp_path)

    def without(table: str, **more: str) -> str:
        return said(IcebergSource(table, catalog=properties_of({**given, **more})).schema, PathNotFoundError)

    # Rows of an SQL catalog are kept by its name.
    assert without("db.t").endswith(
        "its database has the table for the catalog name 'tests', and 'default' was looked up: give option "
        "catalog.name = tests"
    )
    assert without("db.clicks", name="tests").endswith("its tables in 'db' are 'db.t': give one of them")
    assert "its namespaces are 'db', 'other': give a table of one" in without("dbb.t", name="tests")


@pytest.mark.spark
def test_load_fails_at_once_with_the_sentence_alone(spark: SparkSession, store: Store, tmp_path: Path) -> None:
    deltalake.write_deltalake(str(tmp_path), rows([SECOND]))
    local = read_stream(spark).format("aligned_delta").option("eventTimeColumn", "ts")
    for name, value, fix in (
        ("startingVersion", 99, "has the versions up to 0; give one of them, or latest"),
        ("startingTimestamp", "2099-01-01", "give an earlier time, or startingVersion = latest"),
        ("versionAsOf", 7, "a stream that goes on begins with the table as it is now: leave it out"),
        ("versionAsOf", 0, "a stream that goes on begins with the table as it is now: leave it out"),
        ("timestampAsOf", "2099-01-01", "a stream that goes on begins with the table as it is now: leave it out"),
    ):
        reader = read_stream(spark).format("aligned_delta").options(eventTimeColumn="ts", **{name: value})
        assert said(lambda reader=reader: reader.load(str(tmp_path)), OptionError).endswith(fix)  # type: ignore[misc]
    away = local.options(**{**store.options, "storage.endpoint_override": NOBODY})
    assert "the store does not answer: " in said(lambda: away.load(f"{store.uri}/t"), StoreUnavailableError)


@pytest.mark.spark
def test_a_wide_table_leads_to_the_option_that_names_columns(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    deltalake.write_deltalake(str(tmp_path), rows([SECOND], **{f"c{number}": number for number in range(300)}))
    reader = read_stream(spark).format("aligned_delta").option("eventTimeColumn", "ts")

    reader.load(str(tmp_path))

    assert "aligned_delta has 301 columns" in caplog.text
    assert "Name those that it needs with option columns, as in columns = ts,c0" in caplog.text
    caplog.clear()
    reader.option("columns", "ts,c1").load(str(tmp_path))
    assert "columns" not in caplog.text
