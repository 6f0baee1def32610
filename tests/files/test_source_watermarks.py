"""A directory that Spark's file sink writes is read by what its writer claims."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from alignment import WatermarkStrategy
from alignment.timestamps import FieldTimestampAssigner
from alignment.watermarks import MAX_WATERMARK, MIN_WATERMARK
from streaming_source import complete_until
from streaming_source.connectors.files import FileSource
from streaming_source.coordinator.rules import EMITTED
from streaming_source.exceptions import ClaimError, OptionError
from streaming_source.spark.datasource import AlignedDataSource
from streaming_source.testing import SourceHarness
from tests.checkpoint.written import SECOND, WrittenCheckpoint, ours
from tests.tables.reading import times

S = SECOND
STRATEGY = WatermarkStrategy.from_source_watermarks().with_timestamp_assigner("ts")


class Writer:
    """A query over a source of this library that writes by Spark's file sink."""

    def __init__(self, root: Path) -> None:
        self.table, self.checkpoint, self._batch = root / "table", WrittenCheckpoint(root / "cp"), -1
        (self.table / "_spark_metadata").mkdir(parents=True)

    def commit(self, watermark_us: int | None, *times_us: int) -> None:
        self._batch += 1
        self.checkpoint.plan(self._batch, 0, ours(watermark_us))
        lines = ["v1"]
        if times_us:
            path = self.table / f"part-{self._batch}.parquet"
            pq.write_table(pa.table({"ts": pa.array(times_us, pa.timestamp("us", "UTC"))}), path)
            lines.append(json.dumps({"path": path.as_uri(), "size": path.stat().st_size, "isDir": False}))
        (self.table / f"_spark_metadata/{self._batch}").write_text("\n".join(lines))
        self.checkpoint.commit(self._batch)


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    return Writer(tmp_path)


def reading(writer: Writer, **options: Any) -> SourceHarness:
    source = FileSource(str(writer.table), watermark_from=str(writer.checkpoint), **options)
    return SourceHarness(source, STRATEGY)


def look(done: SourceHarness) -> int:
    done.clock.advance("2 seconds")
    done.run()
    return done.watermark


def test_the_watermark_is_the_claim_of_the_last_micro_batch(writer: Writer) -> None:
    writer.commit(None, 30 * S)
    done = reading(writer)
    assert look(done) == MIN_WATERMARK
    writer.commit(20 * S, 90 * S, 11 * S)
    assert look(done) == 20 * S
    writer.commit(70 * S)
    assert look(done) == 70 * S, "a micro-batch without rows moves it"
    done.restart()
    assert look(done) == 70 * S
    writer.commit(MAX_WATERMARK, 95 * S)
    assert look(done) == MAX_WATERMARK
    assert times(done) == [11 * S, 30 * S, 90 * S, 95 * S]
    assert not done.coordinator.runtime.engine.late.any()
    done.close()


def test_what_is_not_committed_is_not_read(writer: Writer) -> None:
    writer.commit(20 * S, 30 * S)
    pq.write_table(pa.table({"ts": pa.array([5 * S], pa.timestamp("us", "UTC"))}), writer.table / "zombie.parquet")
    done = reading(writer)
    assert look(done) == 20 * S
    assert times(done) == [30 * S]
    done.close()


def test_a_directory_without_the_log_of_the_sink_is_named(tmp_path: Path, writer: Writer) -> None:
    (writer.table / "_spark_metadata").rmdir()
    writer.table.joinpath("part-0.parquet").touch()
    pq.write_table(pa.table({"ts": pa.array([5 * S], pa.timestamp("us", "UTC"))}), writer.table / "part-0.parquet")
    done = reading(writer)
    with pytest.raises(OptionError, match="has no log of Spark's file sink"):
        look(done)
    done.close()


def test_the_checkpoint_of_a_query_that_writes_elsewhere_is_refused(tmp_path: Path, writer: Writer) -> None:
    """The log of the sink does not name its query, and the micro-batches of another one have the same numbers."""
    writer.commit(20 * S, 30 * S)
    (tmp_path / "other").mkdir()
    other = Writer(tmp_path / "other")
    for watermark_s in (70, 80):
        other.commit(watermark_s * S, 90 * S)
    writer.checkpoint = other.checkpoint
    done = reading(writer)
    with pytest.raises(ClaimError, match=r"has committed micro-batch 1, and the log of .*/table ends with 0"):
        look(done)
    done.close()
    with pytest.raises(ClaimError, match="so another query writes that; give the checkpointLocation"):
        complete_until(str(writer.table), str(other.checkpoint))


def test_two_writers_of_one_directory_are_refused(tmp_path: Path, writer: Writer) -> None:
    writer.commit(20 * S, 30 * S)
    other = WrittenCheckpoint(tmp_path / "other", id="other")
    source = FileSource(str(writer.table), watermark_from=f"{writer.checkpoint}, {other}")
    done = SourceHarness(source, STRATEGY)
    with pytest.raises(OptionError, match="names 2 writers, and the log of Spark's file sink is of one query"):
        look(done)
    done.close()


def test_a_writer_without_state_over_a_source_of_sparks_own_claims_nothing(writer: Writer) -> None:
    writer.commit(20 * S, 30 * S)
    (writer.checkpoint.path / "offsets/0").write_text(
        'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1}\n{"logOffset":0}'
    )
    done = reading(writer)
    with pytest.raises(ClaimError, match="Spark filters no row"):
        look(done)
    done.close()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"maxOutOfOrderness": "5 seconds"}, "option maxOutOfOrderness = '5 seconds' beside watermarkFrom"),
        ({"idleTimeout": "1 minute"}, "option idleTimeout = '1 minute' beside watermarkFrom"),
        ({"lateness": "bounded"}, "option lateness = 'bounded' beside watermarkFrom"),
        ({"watermarkRows": "false"}, "watermarkFrom needs the exact watermark"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_guess_beside_the_claims_is_refused(writer: Writer, options: dict[str, str], error: str) -> None:
    writer.commit(20 * S, 30 * S)
    given = {"path": str(writer.table), "watermarkFrom": str(writer.checkpoint), "eventTimeColumn": "ts"}
    with pytest.raises(OptionError, match=error):
        _stream(given | {"watermarkRows": EMITTED} | options)


def _stream(options: dict[str, str]) -> None:
    made = AlignedDataSource.of_format("aligned_files", options)
    made.stream_reader(made.schema())


def test_times_without_a_zone_are_compared_in_utc_alone(tmp_path: Path, writer: Writer) -> None:
    """Of a windowed query the watermark is in UTC, whatever the zone of the session."""
    windows = WrittenCheckpoint(tmp_path / "windows", window_s=60)
    windows.plan(0, 100 * S)
    window = pa.struct([("start", pa.timestamp("us")), ("end", pa.timestamp("us"))])
    rows = pa.table({"window": pa.array([{"start": 0, "end": 60 * S}], window)})
    path = writer.table / "part-0.parquet"
    pq.write_table(rows, path)
    entry = json.dumps({"path": path.as_uri(), "size": path.stat().st_size, "isDir": False})
    (writer.table / "_spark_metadata/0").write_text(f"v1\n{entry}")
    for zone, outcome in (("Europe/Berlin", OptionError), ("UTC", 100 * S)):
        assigner = STRATEGY.with_timestamp_assigner(FieldTimestampAssigner("window.end", zone=zone))
        done = SourceHarness(FileSource(str(writer.table), watermark_from=str(windows)), assigner)
        if outcome is OptionError:
            with pytest.raises(OptionError, match="give timeZone = UTC"):
                look(done)
        else:
            assert look(done) == outcome
        done.close()
