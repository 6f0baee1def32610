"""`streaming-source take-over` of a query over Spark's own Delta source: what it has not read is read, and no more."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from streaming_source.connectors.delta import DeltaSource
from streaming_source.spark.offsets import OffsetCodec
from streaming_source.tools.cli.main import app
from tests.delta.spark_delta import jars_of_delta
from tests.delta.tables import SECOND, append, harness, times
from tests.faults.checks import files_of_sink
from tests.kafka.artifacts import ArtifactsMissingError

HOUR = 3600 * SECOND
METADATA = {"batchWatermarkMs": 0, "batchTimestampMs": 1, "conf": {}}


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Five files of a snapshot, a compaction of none, and a commit of two files after it."""
    path = tmp_path / "table"
    for number in (4, 2, 0, 1, 3):
        append(path, [number * SECOND], part="a", options={"partition_by": ["part"]})
    deltalake.write_deltalake(
        str(path),
        pa.table({"ts": pa.array([8 * SECOND, 9 * SECOND], pa.timestamp("us", "UTC")), "part": ["a", "b"]}),
        mode="append",
    )
    return path


def checkpoint(folder: Path, table: Path, version: int, number: int, **more: Any) -> Path:
    """As Spark leaves it after a micro-batch that was committed; `number` is that of the last file that was read."""
    path = folder / "old"
    found = {"sourceVersion": 1, "reservoirId": str(deltalake.DeltaTable(str(table)).metadata().id), **more}
    offset = {**found, "reservoirVersion": version, "index": number}
    for name in ("offsets", "commits"):
        (path / name).mkdir(parents=True)
    (path / "offsets/0").write_text("\n".join(["v1", json.dumps(METADATA), json.dumps(offset)]))
    (path / "commits/0").write_text('v1\n{"nextBatchWatermarkMs":0}')
    return path


def taken_over(*arguments: object) -> str:
    return CliRunner().invoke(app, ["take-over", *map(str, arguments)]).output


@pytest.mark.parametrize(
    ("version", "number", "in_snapshot", "left"),
    [
        # The files of a snapshot in the order in which they were written.
        (4, 1, True, [0, 1, 3, 8, 9]),
        (4, 4, True, [8, 9]),
        (5, -1, False, [8, 9]),
        (5, -100, False, [8, 9]),
        (5, 1, False, []),
        (6, -1, False, []),
        (2, 0, False, [1, 3, 8, 9]),
    ],
)
def test_the_files_that_spark_has_not_read_are_read(
    tmp_path: Path, table: Path, version: int, number: int, in_snapshot: bool, left: list[int]
) -> None:
    old = checkpoint(tmp_path, table, version, number, isStartingVersion=in_snapshot)

    printed = json.loads(taken_over(old, tmp_path / "new", "--table", table).splitlines()[-1])

    assert printed["next_batch"] == 1
    text = (tmp_path / "new/offsets/0").read_text().splitlines()[2]
    done = harness(table)
    done.state = OffsetCodec(DeltaSource(str(table))).decode(json.loads(text))
    done.restart()
    append(table, [20 * SECOND], part="c")
    done.run()
    assert times(done) == [second * SECOND for second in [*left, 20]]


def test_a_micro_batch_that_was_not_committed_is_refused(tmp_path: Path, table: Path) -> None:
    old = checkpoint(tmp_path, table, 4, 1, isStartingVersion=True)
    (old / "commits/0").unlink()

    assert "micro-batch 0 was planned and not committed. Start the old" in taken_over(
        old, tmp_path / "new", "--table", table
    )
    assert not (tmp_path / "new").exists()


def test_what_does_not_fit_is_refused_with_what_to_do(tmp_path: Path, table: Path) -> None:
    append(tmp_path / "other", [1 * SECOND])
    old, new = checkpoint(tmp_path, table, 4, 1, isStartingVersion=True), tmp_path / "new"

    assert "and the checkpoint is of the table" in taken_over(old, new, "--table", tmp_path / "other")
    assert "topics are of Kafka; give one of the two" in taken_over(old, new, "--table", table, "--subscribe", "a")
    assert "has version v1 and 1 sources" in taken_over(old, new, "--table", table, "--source", 1)
    (old / "offsets/0").write_text("\n".join(["v1", json.dumps(METADATA), '{"logOffset":3}']))
    assert "an offset of Spark's own Delta source should be" in taken_over(old, new, "--table", table)
    assert not new.exists()


@pytest.mark.spark
@pytest.mark.soak
def test_a_windowed_count_goes_on_with_its_state(tmp_path: Path) -> None:
    """Each file has the second half of an hour and the first of the next one: without state, halves would come out."""
    try:
        jars = jars_of_delta()
    except ArtifactsMissingError as error:
        pytest.skip(str(error))
    path, rows = tmp_path / "table", 20
    for number in range(9):
        append(path, [number * HOUR + HOUR // 2 + i * HOUR // rows for i in range(rows)])

    def run(kind: str, name: str, batches: int) -> None:
        places = [str(path), str(tmp_path / name), str(tmp_path / "sink"), str(batches)]
        command = [sys.executable, "-m", "tests.delta.take_over_query", jars, kind, *places]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr[-3000:]

    run("delta", "old", 3)
    taken = json.loads(taken_over(tmp_path / "old", tmp_path / "new", "--table", path).splitlines()[-1])
    assert 0 < taken["files"] < 9
    append(path, [30 * HOUR])
    append(path, [60 * HOUR])
    run("aligned_delta", "new", 0)

    counts: Counter[int] = Counter()
    for file in files_of_sink(tmp_path / "sink"):
        for row in pq.ParquetFile(file).read().to_pylist():
            assert row["start"] not in counts, "a window came out twice"
            counts[row["start"] // HOUR] = row["count"]
    expected = {0: rows // 2, **dict.fromkeys(range(1, 9), rows), 9: rows // 2, 30: 1}
    assert {hour: count for hour, count in counts.items() if hour != 60} == expected
