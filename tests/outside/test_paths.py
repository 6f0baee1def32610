"""An offset, a log or a link that leads out of the paths of a query has nothing read or removed there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from streaming_source.connectors import FileSource
from streaming_source.connectors.files.split import FileSplit, FileSplitSerializer
from streaming_source.data_files.journal import Journal
from streaming_source.data_files.stores import Root
from streaming_source.exceptions import MalformedDataError, OffsetError
from streaming_source.spark.late_log import LateLog
from streaming_source.spark.offsets import OffsetCodec
from streaming_source.testing import SourceHarness
from tests.files.test_layout_orders import strategy, write

COLUMNS = pa.schema([("t", pa.timestamp("us"))])


def there(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*.parquet")}


def a_query(folder: Path, **options: Any) -> SourceHarness:
    """A query over two files of a directory, of which it has read a part."""
    for n in range(2):
        write(folder / "in/log" / f"{n}.parquet", [n * 10.0, n * 10 + 1.0], n)
    write(folder / "victim/v.parquet", [1.0, 2.0], 0)
    source = FileSource(str(folder / "in"), data_schema=COLUMNS, **options)
    run = SourceHarness(source, strategy(), max_rows=1)
    run.run_batch()
    return run


@pytest.mark.parametrize("clean_source", ["off", "delete"])
@pytest.mark.parametrize("split_by", ["directory", "file"])
@pytest.mark.parametrize(
    "name", ["../victim/v.parquet", "../victim", "{folder}/victim/v.parquet", "log/../../victim", "a\0b"]
)
def test_an_offset_that_names_a_file_elsewhere_is_refused(
    tmp_path: Path, split_by: Any, clean_source: Any, name: str
) -> None:
    run = a_query(tmp_path, split_by=split_by, clean_source=clean_source)
    codec = OffsetCodec(run.source)
    offset = json.loads(json.dumps(codec.encode(run.state)))
    offset["splits"][0][0][0] = name.format(folder=tmp_path)
    with pytest.raises(OffsetError, match="leads out of option path"):
        codec.decode(offset)
    run.close()


@pytest.mark.parametrize("file", ["../../victim/v.parquet", "/etc/passwd", "a/b"])
def test_the_file_of_a_directory_is_a_name_in_it(file: str) -> None:
    with pytest.raises(OffsetError, match="leads out of option path"):
        FileSplitSerializer().deserialize(1, json.dumps(["log", 3, file, 1, 1]).encode())


def test_names_of_files_that_look_like_paths_stay_what_they_are() -> None:
    for name in ("a..b", "..a/b", "p=1/..", "~", "a@1", "x%2F..%2F.."):
        split = FileSplit(name.replace("/..", "/.._"), 0, modified_ms=1, size=2)
        serializer = FileSplitSerializer()
        assert serializer.deserialize(1, serializer.serialize(split)) == split


def test_an_offset_that_names_a_file_between_the_paths_is_refused(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        write(tmp_path / name / "x.parquet", [1.0, 2.0], 0)
    paths = json.dumps([str(tmp_path / "a"), str(tmp_path / "b" / "*.parquet")])
    source = FileSource(paths, "file", data_schema=COLUMNS, clean_source="delete")
    run = SourceHarness(source, strategy(), max_rows=1)
    run.run_batch()
    run.restart()
    codec = OffsetCodec(source)
    offset = json.loads(json.dumps(codec.encode(run.state)))
    offset["splits"][-1][0][0] = "c/x.parquet"
    run.state = codec.decode(offset)
    run.restart()
    with pytest.raises(OffsetError, match=r"'c/x\.parquet' is in no directory of option path"):
        run.run()
    assert there(tmp_path) == {"a/x.parquet", "b/x.parquet", "c/x.parquet"}
    run.close()


@pytest.mark.parametrize("split_by", ["directory", "file"])
@pytest.mark.parametrize("what", ["delete", "archive"])
def test_a_file_behind_a_link_is_read_and_stays_where_it_is(
    tmp_path: Path, split_by: Any, what: Any, caplog: pytest.LogCaptureFixture
) -> None:
    archive = {"source_archive_dir": str(tmp_path / "archive")} if what == "archive" else {}
    (tmp_path / "in").mkdir()
    (tmp_path / "in/linked").symlink_to(tmp_path / "victim", target_is_directory=True)
    (tmp_path / "in/inside").symlink_to(tmp_path / "in/log", target_is_directory=True)
    run = a_query(tmp_path, split_by=split_by, clean_source=what, bounded=True, **archive)
    run.run()
    run.restart()
    run.run()
    assert len(run.records()) >= 2
    assert (tmp_path / "victim/v.parquet").exists()
    assert split_by == "directory" or "is left where it is: it is outside of" in caplog.text
    run.close()


def test_a_link_that_comes_after_a_file_was_listed_has_nothing_removed(tmp_path: Path) -> None:
    run = a_query(tmp_path, split_by="file", clean_source="delete", bounded=True)
    shutil.rmtree(tmp_path / "in/log")
    for n in range(2):
        write(tmp_path / "victim" / f"{n}.parquet", [n * 10.0, n * 10 + 1.0], n)
    (tmp_path / "in/log").symlink_to(tmp_path / "victim", target_is_directory=True)
    before = there(tmp_path / "victim")
    enumerator = run.coordinator.runtime.host.enumerator
    enumerator._cleaner.clean(["log/0.parquet", "../victim/v.parquet", "log"])
    assert there(tmp_path / "victim") == before
    run.close()


@pytest.mark.parametrize("log_id", ["../elsewhere", "", "/tmp", "a" * 13, 5])
def test_an_offset_names_no_folder_but_a_late_log(tmp_path: Path, log_id: Any) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "000000000009-5.json").write_text("x")
    with pytest.raises(MalformedDataError, match="no id"):
        LateLog(Journal(Root(str(tmp_path / "late")), "lateLocation"), log_id, None).remove_after(3)  # type: ignore[arg-type]
    assert [*elsewhere.iterdir()]


@pytest.mark.parametrize("log_id", ["x/../../elsewhere", "../elsewhere", 5, None])
def test_an_offset_names_no_folder_but_a_log_of_finished_files(tmp_path: Path, log_id: Any) -> None:
    run = a_query(tmp_path, split_by="file", state_location=str(tmp_path / "state"))
    codec = OffsetCodec(run.source)
    offset = json.loads(json.dumps(codec.encode(run.state)))
    offset["enumerator"][1]["log"] = [log_id, 1]
    with pytest.raises(OffsetError, match="no id"):
        codec.decode(offset)
    run.close()


@pytest.mark.parametrize(
    "uri", ["file://{folder}/in/../victim/v.parquet", "file://{folder}/in/%2e%2e/victim/v.parquet", "{folder}/in"]
)
def test_the_log_of_a_file_sink_names_no_file_elsewhere(tmp_path: Path, uri: str) -> None:
    write(tmp_path / "in/a.parquet", [1.0], 0)
    write(tmp_path / "victim/v.parquet", [1.0, 2.0], 0)
    (tmp_path / "in/_spark_metadata").mkdir()
    entry = {"path": uri.format(folder=tmp_path), "size": 1, "isDir": False, "modificationTime": 1, "action": "add"}
    (tmp_path / "in/_spark_metadata/0").write_text(f"v1\n{json.dumps(entry)}")
    with pytest.raises(MalformedDataError, match="which is not below"):
        SourceHarness(FileSource(str(tmp_path / "in"), data_schema=COLUMNS), strategy()).run()
