"""`streaming-source take-over`: what is no checkpoint of Spark's own Kafka source is refused with what to do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from streaming_source.tools.cli.main import app

METADATA = '{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}'


def checkpoint(path: Path, *offsets: str, commits: int, version: str = "v1") -> Path:
    for folder in ("offsets", "commits", "sources/0"):
        (path / folder).mkdir(parents=True)
    for number, lines in enumerate(offsets):
        (path / "offsets" / str(number)).write_text(f"{version}\n{METADATA}\n{lines}")
        (path / "offsets" / f".{number}.crc").write_bytes(b"of the old text")
    for number in range(commits):
        (path / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    (path / "sources" / "0" / "0").write_bytes(b'\0v1\n{"a":{"0":2}}')
    return path


def taken_over(*arguments: object) -> str:
    return CliRunner().invoke(app, ["take-over", *map(str, arguments)]).output


def test_the_last_two_offsets_become_ours_and_all_else_is_copied(tmp_path: Path) -> None:
    old = checkpoint(tmp_path / "old", '{"a":{"0":3}}', '{"a":{"0":5}}', '{"a":{"0":7,"1":4}}', commits=2)
    new = tmp_path / "new"
    assert taken_over(old, new, "--subscribe", "a").splitlines()[-1] == (
        '{"next_batch": 2, "is_read_again": true, "partitions": 2}'
    )
    names = sorted(str(path.relative_to(new)) for path in new.rglob("*") if path.is_file())
    assert names == ["commits/0", "commits/1", "offsets/1", "offsets/2", "sources/0/0"]
    version, metadata, offset = (new / "offsets" / "2").read_text().splitlines()
    assert (version, metadata) == ("v1", METADATA)
    # Partition 1 is new to this micro-batch: it is read from its first record on.
    assert '"splits":[[["a",0,7,2],null,"active"],[["a",1,4,0],null,"active"]]' in offset
    assert '"topics":{"a":["",2]}' in offset


@pytest.mark.parametrize(
    ("offsets", "arguments", "message"),
    [
        (
            ['{"a":{"0":3}}'],
            ["--subscribe", "b"],
            "subscribe does not choose partition a-0, .* choose topics as the old query",
        ),
        (['{"a":{"0":3}}'], ["--assign", '{"a":[1]}'], "assign does not choose partition a-0"),
        (['{"a":{"0":3}}'], [], "no topics are given: give exactly one of subscribe"),
        (['{"a":{"0":3}}'], ["--subscribe", "a", "--source", "1"], "has no sources/1/0: this source is not one of"),
        (
            ['{"logOffset":3}'],
            ["--subscribe", "a"],
            "where offsets of Spark's own Kafka source should be; give the number",
        ),
        ([], ["--subscribe", "a"], "there are no offsets; give the checkpointLocation of the query"),
        (['{"a":{"0":3}}'] * 3, ["--subscribe", "a"], "is damaged: .* start the new query with startingOffsets"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_to_do(
    tmp_path: Path, offsets: list[str], arguments: list[str], message: str
) -> None:
    old, new = checkpoint(tmp_path / "old", *offsets, commits=1), tmp_path / "new"
    output = taken_over(old, new, *arguments)
    assert output.startswith("error: ")
    assert re.search(message, output), output
    assert not new.exists()


@pytest.mark.parametrize("source", [0, 1])
def test_both_sides_of_a_stream_that_is_joined_with_itself_are_taken_over(tmp_path: Path, source: int) -> None:
    """Spark has an offset of each side, and one folder, of one source."""
    logged = [f'{{"a":{{"0":{end}}}}}\n{{"a":{{"0":{end}}}}}\n{{"b":{{"0":{end}}}}}' for end in (3, 5)]
    old, new = checkpoint(tmp_path / "old", *logged, commits=2), tmp_path / "new"
    (old / "sources/1").mkdir()
    (old / "sources/1/0").write_bytes(b'\0v1\n{"b":{"0":2}}')
    assert '"partitions": 1' in taken_over(old, new, "--subscribe", "a", "--source", source)
    for number in (0, 1):
        left, right, other = (new / f"offsets/{number}").read_text().splitlines()[2:]
        assert left == right
        assert "kafka" in left
        assert other == f'{{"b":{{"0":{(3, 5)[number]}}}}}'
    # The other source, of the third offset, has the second folder.
    last = tmp_path / "last"
    assert '"partitions": 1' in taken_over(new, last, "--subscribe", "b", "--source", 2)
    assert "kafka" in (last / "offsets/1").read_text().splitlines()[4]


def test_nothing_is_written_over(tmp_path: Path) -> None:
    old = checkpoint(tmp_path / "old", '{"a":{"0":3}}', commits=1)
    assert "there is something already" in taken_over(old, old, "--subscribe", "a")
