"""The history of a query is the same from its progress and from its checkpoint, and it is bounded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from streaming_source.monitoring.history import History
from streaming_source.monitoring.micro_batch import MicroBatch, Statistics
from streaming_source.monitoring.report import WatermarkReport
from streaming_source.tools.listener import _metrics_of
from tests.monitoring.situations import SECOND, Situation, at, one_split_idle, records

TOLD = ["batch", "source", "split", "status", "watermark", "drift", "position", "behind", "late"]
"""What does not depend on when it was said."""


def reported(query: Situation) -> History:
    """From the progress, as a listener adds it; Spark numbers micro-batches from 0 on."""
    history = History()
    for progress in query.recentProgress:
        reports = tuple(WatermarkReport.of_progress(progress))
        assert reports[0] is not None
        history.add(MicroBatch(reports[0].sequence - 1, reports[0].explanation.at_us, 0, True, reports))
    return history


def one_batch(folder: Path) -> MicroBatch:
    query = Situation(folder, {"a": records([0])})
    try:
        batch = reported(query.run()).latest
    finally:
        query.close()
    assert batch is not None
    return batch


def test_progress_and_checkpoint_give_the_same_tables(tmp_path: Path) -> None:
    query = one_split_idle(tmp_path)
    try:
        live, stored = reported(query), History.of_checkpoint(str(tmp_path / "checkpoint"))
    finally:
        query.close()
    # The checkpoint says what was so when a micro-batch was planned: a record may have come, or a split ended, since.
    assert live.splits().select(TOLD).to_pylist() == stored.splits().select(TOLD).to_pylist()
    assert live.sources().select(["batch", "watermark", "drift", "behind"]) == stored.sources().select(
        ["batch", "watermark", "drift", "behind"]
    )


def test_a_history_says_how_long_a_split_was_what_and_who_holds_the_watermark_since_when(tmp_path: Path) -> None:
    query = one_split_idle(tmp_path)
    try:
        history = reported(query)
    finally:
        query.close()
    rows = history.splits().to_pylist()
    silent = [row for row in rows if row["split"] == "carrier=HA"]
    idle = next(row for row in silent if row["status"] == "idle")
    assert idle["time_active"].total_seconds() == 60
    assert idle["status_since"].timestamp() * SECOND == at(60)
    assert (silent[-1]["time_active"].total_seconds(), silent[-1]["time_idle"].total_seconds()) == (60, 5)
    assert [row["holds"] for row in (silent[0], silent[-1])] == [True, False]
    last = history.sources().to_pylist()[-1]
    assert (last["held_by"], last["held_since"].timestamp() * SECOND) == (["carrier=UA"], at(60))


def test_the_time_that_retention_leaves_is_in_the_history_and_a_metric(tmp_path: Path) -> None:
    batch = one_batch(tmp_path)
    assert batch.sources[0] is not None
    explanation = replace(batch.sources[0].explanation, metrics=(("retentionSecondsLeft", 5400),))
    near = replace(batch, sources=(replace(batch.sources[0], explanation=explanation),))
    for given, seconds in ((batch, []), (near, [5400.0])):
        history = History()
        history.add(given)
        (left,) = history.sources()["retention_left"].to_pylist()
        assert [each.total_seconds() for each in (left,) if each is not None] == seconds
        families = {family.name: family for family in _metrics_of({"orders": history})}
        samples = families["streaming_source_retention_left_seconds"].samples
        assert [(sample.labels["query"], sample.value) for sample in samples] == [("orders", each) for each in seconds]


def test_a_query_that_stands_still_between_two_runs_spends_that_time_in_no_status(tmp_path: Path) -> None:
    batch = one_batch(tmp_path)
    history = History()
    history.add(batch)
    history.add(later(batch, 1, 10))
    history.pause()
    history.add(later(batch, 2, 1000))
    history.add(later(batch, 3, 1007))
    assert [row["time_active"].total_seconds() for row in history.splits().to_pylist()] == [0, 10, 10, 17]


def test_the_oldest_micro_batches_are_forgotten_and_of_one_the_last_word_counts(tmp_path: Path) -> None:
    query = Situation(tmp_path, {"a": records([0]), "b": records([0])})
    try:
        batch = reported(query.run()).latest
    finally:
        query.close()
    assert batch is not None
    history = History(capacity=6)
    for number in range(10):
        history.add(later(batch, number, number))
        history.add(later(batch, number, number + 0.5))
    assert history.splits()["batch"].to_pylist() == [7, 7, 8, 8, 9, 9]
    assert history.batches()["batch"].to_pylist() == [7, 8, 9]
    assert [time.timestamp() for time in history.sources()["at"].to_pylist()] == pytest.approx(
        [at(number + 0.5) / SECOND for number in (7, 8, 9)]
    )
    tiny = History(capacity=1)
    tiny.add(batch)
    assert tiny.splits().num_rows == 2


def later(batch: MicroBatch, number: int, second: float) -> MicroBatch:
    (report,) = batch.sources
    assert report is not None
    moved = replace(report, explanation=replace(report.explanation, at_us=at(second)))
    return replace(batch, number=number, sources=(moved,))


def test_an_empty_history_has_its_columns() -> None:
    history = History()
    assert history.latest is None
    tables = [history.batches(), history.sources(), history.splits()]
    assert [table.num_rows for table in tables] == [0, 0, 0]
    assert [rows.schema for rows in history.last()] == [table.schema for table in tables]


def test_a_query_over_other_sources_has_an_empty_history() -> None:
    rate = {"startOffset": None, "endOffset": "3", "latestOffset": "3", "numInputRows": 3}
    kafka = {"startOffset": {"t": {"0": 1}}, "endOffset": {"t": {"0": 2}}, "latestOffset": {"t": {"0": 2}}}
    progress = {
        "batchId": 0,
        "timestamp": "2026-01-01T00:00:00.000Z",
        "batchDuration": 5,
        "durationMs": {"addBatch": 1},
        "eventTime": {},
        "stateOperators": [],
        "sources": [rate, {**kafka, "numInputRows": 1}],
        "observedMetrics": {"mine": {"rows": 4}},
    }
    assert History.of_progress([progress]).latest is None
    assert Statistics.of_progress(progress) == Statistics((3, 1), None, None, None, None, 5000, None, None, None)
