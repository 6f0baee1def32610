"""What Spark's file sink has written: there is what its log has, and nothing else."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from urllib.parse import quote

import pytest

from streaming_source.connectors.files.config import FilesConfig
from streaming_source.connectors.files.listing import Lister, list_directory, list_files
from streaming_source.connectors.files.selection import Selection
from streaming_source.exceptions import MalformedDataError, OptionError


class Sink:
    """A directory as the file sink leaves it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.log = root / "_spark_metadata"
        self.log.mkdir(parents=True)

    def write(self, *names: str) -> None:
        """Files, before their micro-batch is committed."""
        for name in names:
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_text("x")

    def commit(self, batch: int | str, *names: str) -> None:
        lines = [
            json.dumps({"path": f"file://{quote(str(self.root))}/{quote(name)}", "action": "add"}) for name in names
        ]
        (self.log / str(batch)).write_text("\n".join(["v1", *lines]))
        (self.log / f".{batch}.crc").touch()

    def batch(self, number: int, *names: str) -> None:
        self.write(*names)
        self.commit(number, *names)

    def listed(self, lister: Lister | None = None) -> list[str]:
        lister = lister or Lister(Selection((str(self.root),)))
        return sorted(file.relative_path for directory in lister.list_changed() for file in directory.files)


@pytest.fixture
def sink(tmp_path: Path) -> Sink:
    return Sink(tmp_path / "out put")


def test_a_file_that_is_not_in_the_log_does_not_exist(sink: Sink) -> None:
    sink.batch(0, "a.parquet", "day=1/b.parquet")
    sink.write("failed.parquet", "day=1/failed.parquet", "day=2/failed.parquet")
    assert sink.listed() == ["a.parquet", "day=1/b.parquet"]
    assert [file.name for file in list_directory(Selection((str(sink.root),)), "")] == ["a.parquet"]
    assert [file.name for file in list_directory(Selection((str(sink.root),)), "day=1")] == ["b.parquet"]


def test_nothing_exists_before_the_first_commit(sink: Sink) -> None:
    sink.write("a.parquet")
    assert sink.listed() == []


def test_a_file_exists_as_soon_as_it_is_committed(sink: Sink) -> None:
    lister = Lister(Selection((str(sink.root),)))
    sink.batch(0, "a.parquet")
    sink.write("day=1/b.parquet")
    assert sink.listed(lister) == ["a.parquet"]
    sink.commit(1, "day=1/b.parquet")
    assert sink.listed(lister) == ["a.parquet", "day=1/b.parquet"]


def test_a_directory_that_becomes_a_sink_meanwhile_is_read_by_its_log(tmp_path: Path) -> None:
    lister = Lister(Selection((str(tmp_path / "out"),)))
    (tmp_path / "out").mkdir()
    assert list(lister.list_changed())
    sink = Sink(tmp_path / "out")
    sink.batch(0, "a.parquet")
    sink.write("b.parquet")
    assert sink.listed(lister) == ["a.parquet"]


def test_a_compacted_log_stands_for_all_before_it(sink: Sink) -> None:
    lister = Lister(Selection((str(sink.root),)))
    for number in range(3):
        sink.batch(number, f"{number}.parquet")
    assert sink.listed(lister) == ["0.parquet", "1.parquet", "2.parquet"]
    sink.write("3.parquet", "4.parquet")
    # What is older than the sink's retention is left out.
    sink.commit("3.compact", "1.parquet", "2.parquet", "3.parquet")
    for number in range(3):
        (sink.log / str(number)).unlink()
    sink.commit(4, "4.parquet")
    expected = ["1.parquet", "2.parquet", "3.parquet", "4.parquet"]
    assert sink.listed(lister) == expected
    assert sink.listed() == expected


def test_names_of_columns_are_as_spark_writes_them(sink: Sink) -> None:
    sink.batch(0, "a b=1%2F2/ü#?.parquet")
    assert sink.listed() == ["a b=1%2F2/ü#?.parquet"]


def test_the_log_is_found_by_way_of_a_link(sink: Sink, tmp_path: Path) -> None:
    sink.batch(0, "a.parquet")
    sink.write("failed.parquet")
    (tmp_path / "link").symlink_to(sink.root)
    assert [file.name for file in list_files(Selection((str(tmp_path / "link"),)))] == ["a.parquet"]


def test_the_log_counts_only_where_its_directory_is_what_is_read(sink: Sink, tmp_path: Path) -> None:
    sink.batch(0, "a.parquet")
    sink.write("failed.parquet")
    for path in (str(tmp_path), f"{tmp_path}/out*", f"{sink.root}/*"):
        assert sorted(file.name for file in list_files(Selection((path,)))) == ["a.parquet", "failed.parquet"]


def test_the_log_is_ignored_where_a_session_of_spark_ignores_it(sink: Sink) -> None:
    sink.batch(0, "a.parquet")
    sink.write("failed.parquet")
    for given, names in ((False, ["a.parquet"]), (True, ["a.parquet", "failed.parquet"])):
        selection = FilesConfig(str(sink.root), ignore_sink_log=given).root
        assert sink.listed(Lister(selection)) == names
        assert [file.name for file in list_directory(selection, "")] == names
    with pytest.raises(OptionError, match=r"^ignoreSinkLog = true beside watermarkFrom: .* leave one of the two out"):
        FilesConfig(str(sink.root), ignore_sink_log=True, watermark_from=str(sink.root / "checkpoint"))


def test_a_file_of_the_log_that_is_gone_is_named_once(sink: Sink, caplog: pytest.LogCaptureFixture) -> None:
    sink.batch(0, "a.parquet", "b.parquet")
    (sink.root / "a.parquet").unlink()
    lister = Lister(Selection((str(sink.root),)))
    with caplog.at_level(logging.WARNING, "streaming_source"):
        assert sink.listed(lister) == ["b.parquet"]
        sink.listed(lister)
    assert [record.getMessage() for record in caplog.records] == [
        "1 files are in the log of Spark's file sink but do not exist; they are not read: a.parquet"
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", r"its first line is '', not 'v1'"),
        ("v2\n{}", r"its first line is 'v2', not 'v1'"),
        ("v1\n{", r"this line is not the JSON of a file: '\{'"),
        ('v1\n{"size": 1}', "this line is not the JSON of a file"),
        ('v1\n{"path": "file:///elsewhere/a.parquet"}', "which is not below: was the directory moved"),
    ],
)
def test_a_malformed_log_is_an_error_that_names_it(sink: Sink, content: str, message: str) -> None:
    (sink.log / "0").write_text(content)
    with pytest.raises(MalformedDataError, match=message) as error:
        sink.listed()
    assert f"{sink.log}/0: this log of Spark's file sink" in str(error.value)
    assert f"{sink.root}/*" in str(error.value)


def test_a_log_with_a_gap_is_an_error(sink: Sink) -> None:
    sink.batch(0, "a.parquet")
    sink.batch(2, "c.parquet")
    with pytest.raises(MalformedDataError, match="that of micro-batch 1, which comes before it, is missing"):
        sink.listed()
