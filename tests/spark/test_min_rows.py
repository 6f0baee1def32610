"""Micro-batches that wait for more records, but not for ever."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from tests.spark.reading import Reading, put, stamps, stream_reader

OPTIONS = {
    "eventTimeColumn": "t",
    "minRowsPerTrigger": 3,
    "maxTriggerDelay": "10 seconds",
    "discoveryInterval": "10 ms",
    # Nothing is to be held back by its time.
    "maxDrift": "1 hour",
}


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that the planning's clock shows."""
    shown = [1000.0]
    # Its name for the module, not the module: workers measure their own time.
    monkeypatch.setattr("streaming_source.spark.planning.processing_time_us", lambda: round(shown[0] * 1e6))
    return shown


def query(path: Path) -> Reading:
    put(path / "a" / "0.parquet", {"t": stamps(0, 1)})
    return Reading(stream_reader(path, **OPTIONS))


def rows(table: pa.Table | None) -> int | None:
    return None if table is None else table.num_rows


def test_the_first_micro_batch_waits_for_nothing_and_the_next_for_enough(tmp_path: Path, now: list[float]) -> None:
    reading = query(tmp_path)
    assert rows(reading.next()) == 2
    put(tmp_path / "a" / "1.parquet", {"t": stamps(2, 3)})
    reading.await_unread(2)
    now[0] += 9.9
    assert rows(reading.next()) is None
    put(tmp_path / "a" / "2.parquet", {"t": stamps(4)})
    reading.await_unread(3)
    assert rows(reading.next()) == 3
    reading.reader.stop()


def test_a_micro_batch_waits_no_longer_than_the_delay(tmp_path: Path, now: list[float]) -> None:
    reading = query(tmp_path)
    reading.next()
    put(tmp_path / "a" / "1.parquet", {"t": stamps(2)})
    reading.await_unread(1)
    assert rows(reading.next()) is None
    now[0] += 10.0
    assert rows(reading.next()) == 1
    reading.reader.stop()


def test_a_bounded_source_does_not_wait_for_records_that_cannot_come(tmp_path: Path) -> None:
    put(tmp_path / "a" / "0.parquet", {"t": stamps(0, 1, 2, 3)})
    reading = Reading(stream_reader(tmp_path, **OPTIONS, bounded=True))
    assert [rows(reading.next(max_rows=3)), rows(reading.next())] == [3, 1]
    reading.reader.stop()


def test_available_now_waits_for_nothing(tmp_path: Path) -> None:
    first = query(tmp_path)
    first.next()
    offset = first.offset
    first.reader.stop()
    put(tmp_path / "a" / "1.parquet", {"t": stamps(2)})
    reading = Reading(stream_reader(tmp_path, **OPTIONS))
    reading.offset = offset
    reading.reader.prepareForTriggerAvailableNow()
    assert rows(reading.next()) == 1
    assert rows(reading.next()) is None
    reading.reader.stop()
