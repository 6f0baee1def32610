"""What is no file, is nested, or another's: commands end with one line, and what is written is for its user alone."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from alignment.events import NoMoreSplits
from alignment.exceptions import InvalidArgumentError
from alignment.recording import Recorder
from alignment.simulation import RecordedWorkload
from streaming_source.api import JsonSerializer, RecordSplit
from streaming_source.connectors import FileSource
from streaming_source.connectors.files import JsonFormat
from streaming_source.coordinator.group_location import GroupFile
from streaming_source.data_files.journal import Journal
from streaming_source.data_files.stores import Root
from streaming_source.exceptions import CheckpointError, MalformedDataError, OffsetError, SourceError
from streaming_source.from_data import as_json
from streaming_source.testing import SourceHarness
from tests.outside.test_locations import AUDIT, ends_with_a_fix, sent
from tests.project.test_import_rule import ROOT

DEEP = '{"a":' * 100_000 + "1" + "}" * 100_000


@pytest.mark.parametrize("name", ["offsets/1", "commits/1", "metadata", "sources/0/1"])
@pytest.mark.parametrize("command", ["explain", "report", "audit"])
def test_a_checkpoint_with_json_in_json_ends_a_command_with_one_line(tmp_path: Path, command: str, name: str) -> None:
    checkpoint = sent(tmp_path / "checkpoint", "file:///nowhere")
    head = "" if name == "metadata" else "v1\n"
    known = '{"batchWatermarkMs":0,"batchTimestampMs":1}\n' if name == "offsets/1" else ""
    (checkpoint / name).write_text(f"{head}{known}{DEEP}")
    if command == "audit":
        # The files are looked for before the id of the query.
        assert ("checkpoint" if name != "metadata" else "none of the 2 files") in ends_with_a_fix(
            command, str(checkpoint), *AUDIT
        )
    elif name == "offsets/1":
        assert "nested too deep" in ends_with_a_fix(command, str(checkpoint))


@pytest.mark.parametrize("name", ["offsets/1", "commits/1", "metadata", "sources/0/1"])
def test_a_checkpoint_with_a_pipe_is_refused_at_once(tmp_path: Path, name: str) -> None:
    checkpoint = sent(tmp_path / "checkpoint", "file:///nowhere")
    (checkpoint / name).unlink()
    os.mkfifo(checkpoint / name)
    from streaming_source.checkpoint.offset_log import CheckpointFiles

    with pytest.raises(CheckpointError, match="is no file; restore it"):
        CheckpointFiles(str(checkpoint)).text(name)
    assert name == "metadata" or "is no file" in ends_with_a_fix("audit", str(checkpoint), *AUDIT)


@pytest.mark.parametrize(
    "line",
    [
        "[" * 100_000,
        '{"type":"EngineStarted","rules":{"dtype":"object","values":["x"]},"idle_timeout_us":null,"by_reports":false}',
        '{"type":"EngineStarted","rules":{"dtype":"S1000000000","values":["x"]},"idle_timeout_us":null,"by_reports":false}',
    ],
)
def test_a_log_that_is_none_is_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / "log").write_text(f"{line}\n")
    with pytest.raises(InvalidArgumentError, match="line 1 is none of an event log"):
        RecordedWorkload.of_log(tmp_path / "log")


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.fixture(autouse=True)
def _a_wide_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def test_an_entry_and_its_folder_are_for_their_user_alone(tmp_path: Path) -> None:
    journal = Journal(Root(str(tmp_path / "meet")), "lateLocation", folder="log", is_patient=False)
    journal.write("a.json", b"{}")
    assert mode_of(tmp_path / "meet/log") == 0o700
    assert mode_of(tmp_path / "meet/log/a.json") == 0o600
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "meet/log/_b.json").symlink_to(victim)
    with pytest.raises(SourceError, match="lateLocation"):
        journal.write("b.json", b"{}")
    (tmp_path / "meet/log/c.json").symlink_to(victim)
    journal.write("c.json", b"{}")
    assert victim.read_text() == "mine"
    assert not (tmp_path / "meet/log/c.json").is_symlink()


def test_the_reports_of_a_group_are_for_their_user_alone(tmp_path: Path) -> None:
    GroupFile(tmp_path / "groups.sqlite").exchange("g", None, lambda _: False)
    assert mode_of(tmp_path / "groups.sqlite") == 0o600
    victim = tmp_path / "victim"
    (tmp_path / "link.sqlite").symlink_to(victim)
    with pytest.raises(SourceError, match="remove what is there"):
        GroupFile(tmp_path / "link.sqlite").exchange("g", None, lambda _: False)
    assert not victim.exists()


def test_an_event_log_is_for_its_user_alone(tmp_path: Path) -> None:
    log = tmp_path / "logs/x.jsonl"
    log.parent.mkdir()
    Recorder(log).write(NoMoreSplits())
    assert mode_of(log) == 0o600
    log.unlink()
    log.symlink_to(tmp_path / "victim")
    with pytest.raises(InvalidArgumentError, match="is a link or a pipe; give a folder"):
        Recorder(log).write(NoMoreSplits())
    assert not (tmp_path / "victim").exists()
    log.unlink()
    os.mkfifo(log)
    with pytest.raises(InvalidArgumentError, match="is a link or a pipe; give a folder"):
        Recorder(log).write(NoMoreSplits())


def a_document(folder: Path, size: int) -> Path:
    folder.mkdir()
    record = '{"ts":"2026-01-01T00:00:00Z","v":1}'
    with gzip.open(folder / "a.json.gz", "wt", 1) as file:
        file.write(f"[{record}")
        for _ in range(size // len(record) // 1000):
            file.write(f",{record}" * 1000)
        file.write("]")
    return folder


def test_a_document_takes_a_few_times_its_bytes(tmp_path: Path) -> None:
    """In a process of its own, whose largest size is its own."""
    folder = a_document(tmp_path / "in", 12 << 20)
    code = f"""
import resource
from streaming_source.data_files.formats.json import _document, _lines_of
import pyarrow as pa
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
stream = pa.CompressedInputStream(pa.OSFile({str(folder / "a.json.gz")!r}), "gzip")
lines = _lines_of(_document(stream))
assert lines.count(b"\\n") > 300_000
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert int(done.stdout) < 5 * 12


def test_a_document_beyond_the_longest_record_is_refused(tmp_path: Path) -> None:
    folder = a_document(tmp_path / "in", 80 << 20)
    columns = pa.schema([("ts", pa.timestamp("us", "UTC")), ("v", pa.int64())])
    source = FileSource(str(folder), format=JsonFormat(multi_line=True), data_schema=columns)
    from tests.files.test_layout_orders import strategy

    with pytest.raises(MalformedDataError, match=r"read whole, and has more than 64 MiB; write a line for each"):
        SourceHarness(source, strategy()).run()


def test_the_objects_of_an_array_are_lines_and_any_other_document_is_one() -> None:
    from streaming_source.data_files.formats.json import _lines_of

    documents = {
        "[]": [],
        " [ ] ": [],
        '{"a":1}': ['{"a":1}'],
        '\ufeff[{"a":1}, {"b":"x"}]': ['{"a":1}', '{"b":"x"}'],
        '[{"a":\n1}]': ['{"a": 1}'],
        **{text: [text] for text in ("[1,]", "[,1]", "[1 2]", "[1", "1 2", "[1]", "[1]]", "[", '[{"a":1},2]')},
    }
    for text, lines in documents.items():
        assert _lines_of(bytearray(text.encode())).decode() == "".join(f"{line}\n" for line in lines), text


@pytest.mark.parametrize("version", [-(2**63), "1", None, 2**63])
def test_a_version_in_an_offset_that_none_has_written_is_refused_at_once(version: Any) -> None:
    with pytest.raises(OffsetError, match=r"upgrade|has no upgrade"):
        JsonSerializer(RecordSplit).deserialize(version, b"{}")


@pytest.mark.parametrize(
    "text",
    [b'{"a": "\xc3\xbc"}', b'\xef\xbb\xbf{"a": 1}', '{"a": "\u00fc"}'.encode("utf-16"), b'"\xed\xa0\x80"', "[1, 2.5]"],
)
def test_json_in_every_encoding_is_read_as_python_reads_it(text: str | bytes) -> None:
    assert as_json(text) == json.loads(text)
