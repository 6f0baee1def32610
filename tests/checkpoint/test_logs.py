"""The offset log, commit log and file log: what Spark writes in each version, and what is missing or damaged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from streaming_source.checkpoint.offset_log import CheckpointFiles, LoggedBatch, OffsetLog
from streaming_source.checkpoint.source_offsets import LoggedFile, file_log, kind_of, parse_kafka_offset, parsed
from streaming_source.exceptions import CheckpointError, DataLossError

METADATA = '{"batchWatermarkMs":7,"batchTimestampMs":9,"conf":{"spark.sql.shuffle.partitions":"2"}}'


@pytest.mark.parametrize(
    ("text", "names", "offsets"),
    [
        # Spark 3.5 and later.
        (f'v1\n{METADATA}\n{{"logOffset":3}}\n-', ("0", "1"), ('{"logOffset":3}', None)),
        # Spark 4.3 with names of sources; a name may be in an offset again.
        (f'v2\n{METADATA}\nflights:{{"a:b":{{"0":1}}}}\n1:-', ("flights", "1"), ('{"a:b":{"0":1}}', None)),
    ],
)
def test_each_version_of_the_offset_log_is_read_and_written_again(
    text: str, names: tuple[str, ...], offsets: tuple[str | None, ...]
) -> None:
    found = LoggedBatch.parse(text, "offsets/3")
    assert (found.planned_at_us, found.watermark_us, found.names, found.offsets) == (9_000, 7_000, names, offsets)
    assert found.policy == "min"
    assert str(found) == text
    assert found.with_offset(1, "{}").offsets == (offsets[0], "{}")
    assert str(found.with_offset(1, "{}")) == text[:-1] + "{}"


def test_text_that_python_takes_for_the_end_of_a_line_is_none() -> None:
    offset = json.dumps({"a\u2028b\x85c": {"0": 1}}, ensure_ascii=False)
    found = LoggedBatch.parse(f"v1\n{METADATA}\n{offset}", "offsets/3")
    assert found.parsed() == [{"a\u2028b\x85c": {"0": 1}}]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "offsets/3 is empty; restore it from a copy"),
        ("v3\n{}\n-", "is of version 'v3', and v1 and v2 are read; upgrade this library, or restore it"),
        ("v1", "is damaged: it has no source; restore it"),
        (f"v1\n{METADATA}", "is damaged: it has no source; restore it"),
        ("v1\n{}\n-", r"offsets/3 is damaged \(KeyError.*; restore it"),
        ("v1\nnull\n-", r"offsets/3 is damaged \(TypeError.*; restore it"),
    ],
)
def test_damaged_offsets_are_refused(text: str, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        LoggedBatch.parse(text, "/cp/offsets/3")


@pytest.mark.parametrize(
    ("text", "watermark_us"),
    [
        ('v1\n{"nextBatchWatermarkMs":5}', 5_000),
        ('v2\n{"nextBatchWatermarkMs":5,"stateUniqueIds":{"0":[["a"]]}}', 5_000),
        ('v3\n{"nextBatchWatermarkMs":5,"stateUniqueIds":null,"sinkMetadataInfo":{}}', 5_000),
        ("v1\n{}", None),
    ],
)
def test_each_version_of_the_commit_log_is_read(tmp_path: Path, text: str, watermark_us: int | None) -> None:
    (tmp_path / "commits").mkdir()
    (tmp_path / "commits/3").write_text(text)
    log = OffsetLog(str(tmp_path))
    assert log.next_watermark_us(3) == watermark_us
    assert log.next_watermark_us(4) is None
    (tmp_path / "commits/3").write_text(text.replace(text[:2], "v4", 1))
    with pytest.raises(CheckpointError, match="commits/3 is of version 'v4', and v1, v2 and v3 are read"):
        log.next_watermark_us(3)


def test_a_folder_that_is_missing_is_none_and_an_empty_one_is_not(tmp_path: Path) -> None:
    files = CheckpointFiles(str(tmp_path))
    assert (files.list_folder("offsets"), files.numbered("offsets"), files.text("metadata")) == (None, None, None)
    assert files.query_id() is None
    (tmp_path / "offsets").mkdir()
    (tmp_path / "metadata").write_text('{"id":"5f1c"}')
    assert (files.list_folder("offsets"), files.numbered("offsets"), files.query_id()) == ({}, {}, "5f1c")
    for name in ("10", "9", ".9.crc", "9.compact"):
        (tmp_path / "offsets" / name).write_text("")
    assert list(files.numbered("offsets") or ()) == [9, 10]
    log = OffsetLog(str(tmp_path))
    fix = r"Spark keeps the latest 100\. Name a micro-batch that .*/offsets has"
    with pytest.raises(DataLossError, match=f"has no offsets of micro-batch 4: {fix}"):
        log.read(4)
    (tmp_path / "metadata").write_bytes(b"\xff")
    with pytest.raises(CheckpointError, match="metadata is damaged: byte 0 is not of a text; restore it"):
        files.query_id()


def entry(name: str, number: int, **more: object) -> str:
    return json.dumps({"path": name, "timestamp": 1_700, "batchId": number, **more})


def test_the_log_of_files_is_read_up_to_an_entry(tmp_path: Path) -> None:
    folder = tmp_path / "sources/0"
    folder.mkdir(parents=True)
    gone = entry("c", 1, action="delete")
    (folder / "1.compact").write_text("\n".join(["v1", entry("a", 0), entry("b\u2028", 1), gone]))
    (folder / "2").write_text(f"v1\n{entry('d', 2)}")
    (folder / "3").write_text(f"v1\n{entry('e', 3)}")
    files = CheckpointFiles(str(tmp_path))
    assert file_log(files, "0", 2) == [
        LoggedFile(0, "a", 1_700),
        LoggedFile(1, "b\u2028", 1_700),
        LoggedFile(2, "d", 1_700),
    ]
    with pytest.raises(CheckpointError, match="sources/0/4 is missing; restore it"):
        file_log(files, "0", 4)
    (folder / "2").unlink()
    with pytest.raises(CheckpointError, match="sources/0/2 is missing; restore it"):
        file_log(files, "0", 3)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('{"logOffset":3}', "files"),
        ('{"orders":{"0":23}}', "kafka"),
        ('{"sourceVersion":1,"reservoirId":"a","reservoirVersion":7,"index":3,"isStartingVersion":false}', "delta"),
        ('{"version":1,"snapshot_id":17,"position":3,"scan_all_files":false}', "iceberg"),
        ('{"v":1,"source":"aligned_files","id":"a","n":3,"splits":[]}', "ours"),
        ("42", None),
        ("{}", None),
        ("any text", None),
    ],
)
def test_an_offset_shows_which_source_wrote_it(text: str, kind: str | None) -> None:
    assert kind_of(text) == kind


def test_an_offset_of_another_source_is_refused_with_the_fix_of_the_caller() -> None:
    assert parsed(parse_kafka_offset, '{"a":{"1":7,"0":4}}', "offsets of Kafka") == {("a", 1): 7, ("a", 0): 4}
    with pytest.raises(CheckpointError, match=r"'\{\"logOffset\":3\}' is where offsets of Kafka should be; look$"):
        parsed(parse_kafka_offset, '{"logOffset":3}', "offsets of Kafka", "look")
