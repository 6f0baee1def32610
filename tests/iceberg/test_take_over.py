"""`streaming-source take-over` of a query over Spark's own Iceberg source: what it has not read is read, no more."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyiceberg.table import Table
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from typer.testing import CliRunner

import streaming_source
from streaming_source.connectors.iceberg import IcebergSource
from streaming_source.spark.offsets import OffsetCodec
from streaming_source.tools.cli.main import app
from tests.faults.checks import files_of_sink
from tests.iceberg.by_spark import run_by_spark
from tests.iceberg.commits import compact
from tests.iceberg.tables import SECOND, append, catalog_options, create, harness, properties_in, rows, times
from tests.spark.support import available_now

HOUR = 3600 * SECOND
METADATA = {"batchWatermarkMs": 0, "batchTimestampMs": 1, "conf": {}}


def write_four_files(table: Table, first: int) -> int:
    """One append of a file for each of four partitions; return its snapshot."""
    parts = [f"p{number}" for number in range(4)]
    return append(table, [(first + number) * SECOND for number in range(4)], part=parts)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    made = create(tmp_path, rows([0], part="a").schema)
    with made.update_spec() as spec:
        spec.add_identity("part")
    return made


def checkpoint(folder: Path, snapshot_id: int, position: int, *, scan_all_files: bool = False) -> Path:
    """As Spark leaves it after a micro-batch that was committed."""
    path = folder / "old"
    place = {"version": 1, "snapshot_id": snapshot_id, "position": position, "scan_all_files": scan_all_files}
    for name in ("offsets", "commits"):
        (path / name).mkdir(parents=True)
    (path / "offsets/0").write_text("\n".join(["v1", json.dumps(METADATA), json.dumps(place)]))
    (path / "commits/0").write_text('v1\n{"nextBatchWatermarkMs":0}')
    return path


def taken_over(folder: Path, *arguments: object) -> str:
    catalog = [part for name, value in catalog_options(folder).items() for part in ("-o", f"catalog.{name}={value}")]
    command = ["take-over", folder / "old", folder / "new", "--table", "db.t", "-o", "catalog.name=tests", *catalog]
    return CliRunner().invoke(app, [*map(str, command), *map(str, arguments)]).output


@pytest.mark.parametrize(
    ("snapshot", "position", "left"),
    [
        # Of ten seconds each: what the first append added, a compaction, and what two more appends added.
        (0, 0, 12),
        (0, 3, 9),
        (0, 4, 8),
        (1, 0, 8),
        (2, 1, 7),
        (3, 4, 0),
        (None, -1, 12),
    ],
)
def test_the_files_that_spark_has_not_read_are_read(
    tmp_path: Path, table: Table, snapshot: int | None, position: int, left: int
) -> None:
    made = [write_four_files(table, 0), compact(table), write_four_files(table, 10), write_four_files(table, 20)]
    checkpoint(tmp_path, -1 if snapshot is None else made[snapshot], position)

    printed = json.loads(taken_over(tmp_path).splitlines()[-1])

    assert printed["next_batch"] == 1
    text = (tmp_path / "new/offsets/0").read_text().splitlines()[2]
    done = harness(tmp_path)
    done.state = OffsetCodec(IcebergSource("db.t", catalog=properties_in(tmp_path))).decode(json.loads(text))
    done.restart()
    append(table, [77 * SECOND], part="new")
    done.run()
    written = [(first + number) * SECOND for first in (0, 10, 20) for number in range(4)]
    found = times(done)
    assert len(found) == left + 1
    assert {*found} <= {*written, 77 * SECOND}
    # Those of later snapshots are all there.
    whole = {None: 0, 0: 1, 1: 1, 2: 2, 3: 3}[snapshot]
    assert {*written[4 * whole :], 77 * SECOND} <= {*found}


def test_snapshots_of_the_micro_batch_before_the_last_may_have_expired(tmp_path: Path, table: Table) -> None:
    expired, head = write_four_files(table, 0), write_four_files(table, 10)
    old = checkpoint(tmp_path, expired, 4)
    (old / "offsets/1").write_text((old / "offsets/0").read_text().replace(str(expired), str(head)))
    (old / "commits/1").write_text((old / "commits/0").read_text())
    table.maintenance.expire_snapshots().by_id(expired).commit()

    printed = json.loads(taken_over(tmp_path).splitlines()[-1])

    assert printed == {"next_batch": 2, "version": head, "files": 0}


def test_what_does_not_fit_is_refused_with_what_to_do(tmp_path: Path, table: Table) -> None:
    head = write_four_files(table, 0)
    old = checkpoint(tmp_path, 17, 0)

    assert (
        "is at version 17: Iceberg table db.t has no snapshot 17 any more: it has expired, or the query reads another"
        in " ".join(taken_over(tmp_path).split())
    )
    assert "take-over takes the catalog of an Iceberg table" in taken_over(tmp_path, "-o", "path=x")
    without_catalog = ["take-over", str(old), str(tmp_path / "new"), "--table", "db.t"]
    assert "the catalog cannot be opened" in CliRunner().invoke(app, without_catalog).output
    for text in ('{"logOffset":3}', '{"version":2,"snapshot_id":1,"position":0,"scan_all_files":false}'):
        (old / "offsets/0").write_text("\n".join(["v1", json.dumps(METADATA), text]))
        assert "an offset of Spark's own Iceberg source should be" in taken_over(tmp_path)
    (old / "offsets/0").write_text((old / "offsets/0").read_text().replace("2,", "1,").replace(":1,", f":{head},"))
    (old / "commits/0").unlink()
    assert "micro-batch 0 was planned and not committed. Start the old" in taken_over(tmp_path)
    assert not (tmp_path / "new").exists()


@pytest.mark.spark
@pytest.mark.soak
def test_a_windowed_count_goes_on_with_its_state(spark: SparkSession, tmp_path: Path, table: Table) -> None:
    """Each append has the second half of an hour and the first of the next one: without state, halves would come out.

    Iceberg has no runtime for the versions of Spark that this library is for, so another Python has PySpark 4.1; the
    query goes on with this one.
    """
    count = 24
    parts = [f"p{i % 3}" for i in range(count)]
    for number in range(9):
        append(table, [number * HOUR + HOUR // 2 + i * HOUR // count for i in range(count)], part=parts)
    run_by_spark("count_by_spark.py", str(tmp_path), "4")

    catalog = {f"catalog.{name}": value for name, value in catalog_options(tmp_path).items()}
    found = streaming_source.audit(
        str(tmp_path / "old"), mode="append", source="db.t", options={"catalog.name": "tests", **catalog}
    )
    emitted = sum(sum(pq.ParquetFile(file).read()["count"].to_pylist()) for file in files_of_sink(tmp_path / "sink"))
    assert (found.read, found.dropped, found.emitted) == (emitted + found.open, 0, emitted)
    assert found.read % (count // 3) == 0
    printed = json.loads(taken_over(tmp_path).splitlines()[-1])
    assert 0 < printed["files"] < 3
    append(table, [30 * HOUR], part="a")
    append(table, [60 * HOUR], part="a")
    reader = spark.readStream.format("aligned_iceberg").options(**catalog, eventTimeColumn="ts")
    stream = reader.option("catalog.name", "tests").load("db.t").withWatermark("ts", "1 hour")
    hours = stream.groupBy(F.window("ts", "1 hour")).count()
    available_now(
        spark,
        hours.select(F.unix_micros("window.start").alias("start"), "count"),
        tmp_path / "new",
        files=tmp_path / "sink",
    )

    counts: Counter[int] = Counter()
    for file in files_of_sink(tmp_path / "sink"):
        for row in pq.ParquetFile(file).read().to_pylist():
            assert row["start"] not in counts, "a window came out twice"
            counts[row["start"] // HOUR] = row["count"]
    expected = {0: count // 2, **dict.fromkeys(range(1, 9), count), 9: count // 2, 30: 1}
    assert {hour: number for hour, number in counts.items() if hour != 60} == expected
