"""What is printed as a cause was compared with what would refute it: other micro-batches, other sources, the clock."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from alignment import WatermarkStrategy
from streaming_source.connectors.files import FileSource
from streaming_source.monitoring.explained import explain, explain_checkpoint
from streaming_source.testing import SourceHarness
from streaming_source.tools.cli.main import app
from streaming_source.tools.pages.watch import CheckpointWatch
from tests.monitoring.situations import SECOND, Situation, _Wrapped, at, records


def text(explained: object) -> str:
    return " ".join(str(explained).split())


@pytest.mark.parametrize(
    ("offset", "says"),
    [
        ({"query": "5b2c", "batch": 7, "log": "0f6e", "n": 8, "routed": 84}, "it has read 84, all up to micro-batch 7"),
        ({"query": "5b2c", "batch": 7, "log": "0f6e", "n": 8, "routed": 84, "more": True}, "; more wait."),
        ({"query": None, "batch": -1, "log": None, "n": 0, "routed": 0}, "has written no micro-batch yet"),
    ],
)
def test_a_query_over_late_records_is_explained_as_one(tmp_path: Path, offset: dict[str, object], says: str) -> None:
    for log in ("offsets", "commits"):
        (tmp_path / log).mkdir()
        metadata = {"batchWatermarkMs": 0, "batchTimestampMs": 1}
        (tmp_path / log / "0").write_text("\n".join(["v1", json.dumps(metadata), json.dumps({"v": 2, **offset})]))
    said = text(explain_checkpoint(str(tmp_path)))
    assert said.startswith("It reads the late records of")
    assert says in said
    assert "None of its sources" not in said

    progress = [{"sources": [{"latestOffset": None, "endOffset": json.dumps({"v": 2, **offset})}]}]
    status = {"message": "Waiting for data to arrive"}
    query = SimpleNamespace(name=None, isActive=True, status=status, recentProgress=progress, exception=lambda: None)
    assert text(explain(query, 0)) == said
    drawn = CliRunner().invoke(app, ["report", str(tmp_path), "-o", str(tmp_path / "report.html")])
    assert drawn.exit_code == 2
    assert "It reads the late records of" in drawn.output
    assert "audit" not in drawn.output
    assert "It reads the late records of" in CheckpointWatch(str(tmp_path)).latest.data["note"]


def test_the_query_knows_what_its_checkpoint_has_of_the_time_before_its_first_progress(tmp_path: Path) -> None:
    query = Situation(tmp_path, {"carrier=HA": records([0]), "carrier=UA": records([0])}).run()
    second = iter(range(1, 1000))
    query.let_pass(65, lambda: query.source.go_on("carrier=UA", at(next(second))))
    # Of a run of which no progress is kept but that of the late record.
    query.recentProgress.clear()
    query.source.go_on("carrier=HA", at(3))
    query.let_pass(1)
    stored = text(query.explain_checkpoint())
    query.isActive = True
    query._jsq = _Wrapped(tmp_path / "checkpoint", None)
    live = text(query.explain())
    query.close()
    for said in (live, stored):
        assert "1 record of 'carrier=HA' came late because their split had been idle" in said
        assert "do not say why" not in said


def test_records_that_are_late_beside_a_leap_to_come_are_not_denied(tmp_path: Path) -> None:
    query = Situation(tmp_path, {"carrier=HA": records([0, 5]), "carrier=UA": records([0, 5])}).run()
    query.source.go_on("carrier=HA", at(1))
    query.let_pass(1)
    query.source.go_on("carrier=UA", at(6), 4_070_908_800 * SECOND)
    said = text(query.let_pass(1).explain())
    query.close()
    assert "1 record came late" in said
    assert "nothing more is late by it before it does" in said
    assert "and nothing is late before it does" not in said


@pytest.mark.parametrize(("hours", "is_zone"), [(2, True), (30, False)])
def test_records_that_are_a_few_hours_ahead_may_be_of_another_zone(tmp_path: Path, hours: int, is_zone: bool) -> None:
    query = Situation(tmp_path, {"carrier=HA": records([0, 1])}).run()
    query.source.go_on("carrier=HA", *records([hours * 3600, hours * 3600 + 1]))
    said = text(query.let_pass(1).explain())
    query.close()
    assert "give maxFutureSkew" in said or "with maxFutureSkew" in said
    assert ("they are written in another zone: give that as timeZone" in said) == is_zone


def test_a_unit_that_is_right_for_other_splits_is_not_blamed(tmp_path: Path) -> None:
    query = Situation(tmp_path, {"carrier=HA": records([0]), "carrier=UA": [at(second) // 1000 for second in (0, 3)]})
    said = text(query.run().explain())
    query.close()
    assert "The event times of 'carrier=UA' are of 1970, and those of other splits are not" in said
    assert "Advice (timestampUnit)" not in said


def test_an_option_that_is_right_for_other_records_is_not_to_be_changed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One split goes over from milliseconds to microseconds: the log names it, and no other unit."""
    seconds = [at(second) // SECOND for second in range(4)]
    for split, numbers in (("a", [s * 1000 for s in seconds]), ("b", [seconds[0] * 1000, seconds[1] * SECOND])):
        (tmp_path / split).mkdir()
        pq.write_table(pa.table({"t": pa.array(numbers, pa.int64())}), tmp_path / split / "x.parquet")
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("t", unit="ms")
    # With the exact watermark such times are none, and by default a plain one does not read so far.
    strategy = strategy.with_watermark_alignment("all", "30000000 days")
    with caplog.at_level(logging.WARNING):
        SourceHarness(FileSource(str(tmp_path)), strategy, exact=False).run()
    said = next(record.getMessage() for record in caplog.records if "timestampUnit" in record.getMessage())
    assert "others are right with ms, so correct these at their source (split 'b')" in said
    assert "set timestampUnit" not in said
