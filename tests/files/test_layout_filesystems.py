"""One behaviour on every file system: local, a server that speaks S3, and what is opened through fsspec."""

from __future__ import annotations

import json
import logging
import pickle
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs
from pyspark.sql import SparkSession

from alignment.shown import without_secrets
from alignment.watermarks import MAX_WATERMARK
from streaming_source.connectors.files import FileSource
from streaming_source.data_files import queued
from streaming_source.data_files.stores import Root, StorageOptions
from streaming_source.exceptions import AlignmentError, MalformedDataError, OptionError, PathNotFoundError
from streaming_source.spark.offsets import OffsetCodec
from streaming_source.testing import FakeClock, SourceHarness
from tests.examples import each_once
from tests.files.stores import SECRET, Store, open_store, s3_store
from tests.files.test_layout_crashes import LAYOUTS, STEPS, run_batch
from tests.files.test_layout_orders import look_again, rows, strategy
from tests.spark.reading import read_all, read_batch

STORES = ("local", "s3", "fsspec without times", "fsspec")


@pytest.fixture(params=[*STORES[:-1], pytest.param(STORES[-1], marks=pytest.mark.soak)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return open_store(request.param, tmp_path, request)


@pytest.fixture
def s3(s3_endpoint: str) -> Store:
    return s3_store(s3_endpoint)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queued, "FILES_OPEN", 3)


def fill(store: Store, files: int = 6) -> None:
    for number in range(files):
        begin = number * 10.0
        store.write(f"in/{number // 3}/{number:02d}.parquet", [begin + 3, begin, begin + 9, begin + 5])


def all_rows(split_by: str, files: int = 6) -> list[tuple[str, int]]:
    if split_by == "file":
        return [(f"{number // 3}/{number:02d}.parquet", row) for number in range(files) for row in range(4)]
    return [(str(log), row) for log in range(files // 3) for row in range(12)]


# ---- the suite -----------------------------------------------------------------------------------------------------


# test_layout_crashes.py has all of them on local files.
@pytest.mark.parametrize(("store", "killed", "layout"), each_once(STORES, STEPS, list(LAYOUTS)), indirect=["store"])
def test_every_row_is_read_once_wherever_the_files_lie(store: Store, layout: str, killed: str) -> None:
    fill(store)
    run = SourceHarness(store.source(bounded=True, **LAYOUTS[layout]), strategy("10 seconds"), max_rows=5)
    for _ in range(20):
        assert run_batch(run, killed)
        if run.watermark == MAX_WATERMARK:
            break
    run.run()
    assert rows(run) == all_rows(LAYOUTS[layout]["split_by"])
    assert run.watermark == MAX_WATERMARK
    run.close()


@pytest.mark.parametrize("split_by", ["directory", "file"])
def test_files_that_come_are_found_wherever_they_lie(store: Store, split_by: Any) -> None:
    store.write("in/0/00.parquet", [0.0, 1.0])
    run = SourceHarness(store.source(split_by), strategy("100 seconds"), clock=FakeClock())
    for number in range(1, 5):
        look_again(run)
        store.write(f"in/{number % 2}/{number:02d}.parquet", [number * 10.0, number * 10 + 1.0])
    look_again(run)
    assert len(rows(run)) == 10
    run.close()


def test_patterns_choose_files_wherever_they_lie(store: Store) -> None:
    fill(store)
    store.put("in/0/README", b"not Parquet")
    for pattern, files in (("in/*/0?.parquet", 6), ("in/{0,1}/*[24].parquet", 2), ("in/1", 3)):
        run = SourceHarness(store.source(below=pattern, bounded=True, path_glob_filter="*.parquet"), strategy())
        run.run()
        assert len(rows(run)) == files * 4
        run.close()


def test_a_rewritten_file_is_told_wherever_it_lies(store: Store) -> None:
    store.write("in/a.parquet", [1.0, 2.0])
    run = SourceHarness(store.source(), strategy("100 seconds"), clock=FakeClock())
    look_again(run)
    store.write("in/a.parquet", [3.0, 4.0, 5.0])
    with pytest.raises(MalformedDataError, match=r"a.parquet was rewritten after it was read"):
        look_again(run)
    run.close()


def test_files_that_are_gone_or_broken_are_ignored_wherever_they_lie(store: Store) -> None:
    fill(store, 3)
    store.put("in/0/90.parquet", b"PAR1")
    run = SourceHarness(
        store.source(bounded=True, ignore_corrupt_files=True, ignore_missing_files=True), strategy(), max_rows=2
    )
    run.run_batch()
    store.remove("in/0/00.parquet")
    run.restart()
    run.run()
    assert len(rows(run)) == 2 + 8
    run.close()


@pytest.mark.parametrize("what", ["archive", "delete"])
def test_files_are_cleaned_wherever_they_lie(store: Store, what: Any) -> None:
    fill(store)
    more = {"source_archive_dir": "archive"} if what == "archive" else {}
    run = SourceHarness(store.source(bounded=True, clean_source=what, **more), strategy(), max_rows=8)
    run.run()
    run.restart()
    run.run()
    assert len(rows(run)) == 24
    assert store.names("in") == []
    assert len(store.names("archive")) == (6 if what == "archive" else 0)
    run.close()


def test_columns_in_names_are_read_wherever_the_files_lie(store: Store) -> None:
    for day in (1, 2):
        store.write(f"in/day=2024-01-0{day}/f.parquet", [day, day + 1.0])
    for read in (read_all, read_batch):
        table = read(f"{store.uri}/in", eventTimeColumn="t", **store.options)
        assert sorted(map(str, table.column("day").to_pylist())) == ["2024-01-01"] * 2 + ["2024-01-02"] * 2


# ---- what must not be told -----------------------------------------------------------------------------------------


@pytest.fixture
def _nothing_told(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    caplog.set_level(logging.DEBUG)
    yield
    assert SECRET not in caplog.text
    assert SECRET not in "".join(capfd.readouterr())


@pytest.mark.usefixtures("_nothing_told")
def test_storage_options_stand_in_no_offset_error_or_repr(s3: Store) -> None:
    fill(s3)
    source = s3.source(bounded=True, state_location="state")
    run = SourceHarness(source, strategy(), max_rows=5)
    codec = OffsetCodec(source)
    told = [repr(source), str(source), repr(source.root), repr(source.storage), source.identity]
    while run.run_batch() is not None:
        told.append(json.dumps(codec.encode(run.state)))
    s3.put("in/2/broken.parquet", b"PAR1")
    for name in ("in", "in/nope", "in/2"):
        try:
            SourceHarness(s3.source(below=name, bounded=True), strategy()).run()
        except AlignmentError as error:
            told.append(repr(error))
    assert len(told) > 8
    assert not [text for text in told if SECRET in text]
    assert SECRET.encode() in pickle.dumps(source), "executors need it"
    run.close()


@pytest.mark.usefixtures("_nothing_told")
def test_wrong_storage_options_are_named_and_their_values_are_not(s3: Store, tmp_path: Path) -> None:
    wrong = {
        "fs.s3a.secret.key": "option storage.fs.s3a.secret.key is not known to S3FileSystem.*not those of Hadoop",
        "connect_timeout": "option storage.connect_timeout: must be a number",
        "anonymous": "option storage.anonymous: must be true or false",
    }
    for name, message in wrong.items():
        root = Root(s3.uri, StorageOptions.of({**s3.storage, name: SECRET}))
        with pytest.raises(OptionError, match=message) as raised:
            root.open()
        assert SECRET not in str(raised.value)
    with pytest.raises(OptionError, match=r"storage.secret_key: the local file system takes no storage options"):
        read_all(tmp_path, eventTimeColumn="t", **{"storage.secret_key": SECRET})
    with pytest.raises(PathNotFoundError, match=r"knows? the scheme 'gopher'") as raised:
        Root("gopher://x/y", StorageOptions.of({"secret_key": SECRET})).open()
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize(
    ("uri", "storage", "kind", "path"),
    [
        ("gs://bucket/in/", {"anonymous": "true"}, fs.GcsFileSystem, "bucket/in"),
        ("gcs://bucket", {"anonymous": "true", "endpoint_override": "localhost:1"}, fs.GcsFileSystem, "bucket"),
        ("abfs://box@account.dfs.core.windows.net/in", {"account_key": "a2V5"}, fs.AzureFileSystem, "box/in"),
        ("abfss://box@account.dfs.core.windows.net", {"sas_token": "sig"}, fs.AzureFileSystem, "box"),
        ("memory://bucket/in/", {}, fs.PyFileSystem, "/bucket/in"),
    ],
    ids=["gs", "gcs", "abfs", "abfss", "memory"],
)
def test_clouds_are_opened_without_asking_them(uri: str, storage: dict[str, str], kind: Any, path: str) -> None:
    if kind is fs.PyFileSystem:
        pytest.importorskip("fsspec")
    filesystem, found = Root(uri, StorageOptions.of(storage)).open()
    assert type(filesystem) is kind
    assert found == path


@pytest.mark.parametrize(
    ("uri", "name", "message"),
    [
        ("gs://bucket", "google.cloud.auth.service.account.json.keyfile", "is not known to GcsFileSystem of pyarrow"),
        ("gs://bucket", "anonymous", "must be true or false"),
        ("abfs://box@account.dfs.core.windows.net", "fs.azure.account.key", "is not known to AzureFileSystem"),
        ("hdfs://host:9000/in", "dfs.replication", "is not known to HadoopFileSystem of pyarrow"),
        ("hdfs://host:9000/in", "port", "must be a number"),
    ],
)
def test_what_a_cloud_does_not_take_is_named_and_its_value_is_not(uri: str, name: str, message: str) -> None:
    with pytest.raises(OptionError, match=rf"option storage.{re.escape(name)}:? {message}") as raised:
        Root(uri, StorageOptions.of({name: SECRET})).open()
    assert SECRET not in str(raised.value)


def test_a_scheme_that_needs_fsspec_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    fix = r"scheme 'sftp'.*install spark-watermark-alignment\[fsspec\]"
    with pytest.raises(PathNotFoundError, match=fix) as raised:
        Root("sftp://host/x", StorageOptions.of({"password": SECRET})).open()
    assert SECRET not in str(raised.value)


def test_a_password_in_a_uri_is_not_told() -> None:
    uri = f"gopher://me:{SECRET}@host/x?token={SECRET}"
    with pytest.raises(PathNotFoundError) as raised:
        Root(uri).open()
    assert SECRET not in str(raised.value)
    assert without_secrets(f"cannot open {uri}: no") == "cannot open gopher://***@host/x?*** no"
    assert SECRET not in repr(Root(uri))
    assert SECRET not in repr(FileSource(f"{uri},{uri}", "file", state_location=uri))


@pytest.mark.spark
@pytest.mark.soak
def test_spark_reads_s3_in_batch_and_as_a_stream_and_writes_no_key_down(
    spark: SparkSession, s3: Store, tmp_path: Path
) -> None:
    fill(s3)
    options = {"eventTimeColumn": "t", "splitBy": "file", "includeMetadata": "true", "timeZone": "UTC", **s3.options}
    batch = spark.read.format("aligned_files").options(**options).load(f"{s3.uri}/in")
    expected = all_rows("file")
    assert sorted(map(tuple, batch.select("_split", "_position").collect())) == expected
    stream = spark.readStream.format("aligned_files").options(
        **options, maxRowsPerTrigger="7", stateLocation=f"{s3.uri}/state", cleanSource="delete"
    )
    writer = stream.load(f"{s3.uri}/in").select("_split", "_position").writeStream.format("parquet")
    writer = writer.option("path", str(tmp_path / "out")).option("checkpointLocation", str(tmp_path / "cp"))
    assert writer.trigger(availableNow=True).start().awaitTermination(120)
    assert sorted(map(tuple, spark.read.parquet(str(tmp_path / "out")).collect())) == expected
    written = [path.read_bytes() for path in (tmp_path / "cp").rglob("*") if path.is_file()]
    assert not [data for data in written if SECRET.encode() in data]
    assert len(s3.names("in")) < 6
