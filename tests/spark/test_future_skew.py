"""`maxFutureSkew`: what is later than the clock by more than that moves no watermark, also when it is read again."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from alignment.exceptions import InvalidTimestampError
from streaming_source.spark import planning, readers
from tests.spark.reading import SECOND, T0, Reading, put, read_batch, stamps, stream_reader

HOUR, DAY = 3_600, 86_400
FORMATS = {"statistics": {"indexing": "statistics"}, "scan": {"indexing": "scan"}, "files": {"splitBy": "file"}}


class Clock:
    """A wall clock that a test puts."""

    def __init__(self) -> None:
        self.now_us = T0 + 100 * SECOND

    def __call__(self) -> int:
        return self.now_us


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (planning, readers):
        monkeypatch.setattr(module, "wall_clock_us", clock)
    monkeypatch.setattr(planning, "processing_time_us", clock)
    return clock


def reading_of(path: Path, **options: Any) -> Reading:
    given = {"eventTimeColumn": "t", "watermarkRows": "true", "maxFutureSkew": "10 seconds", "invalidTimestamp": "null"}
    return Reading(stream_reader(path, **{**given, **options}))


def seconds(table: pa.Table | None) -> list[float | None]:
    """Event times of the data, in seconds after T0."""
    assert table is not None
    rows = table.filter(pa.compute.is_valid(table.column("k")))
    return [None if t is None else (t - T0) / SECOND for t in rows.column("t").cast(pa.int64()).to_pylist()]


@pytest.mark.parametrize("kind", FORMATS)
def test_records_from_the_future_move_no_watermark_and_a_batch_read_again_is_the_same(
    tmp_path: Path, clock: Clock, kind: str
) -> None:
    times = (0, 5 * DAY, 90, 110, 110.000001, 50)
    put(tmp_path / "a" / "f.parquet", {"t": stamps(*times), "k": list(range(6))}, row_group_size=2)
    reading = reading_of(tmp_path, **FORMATS[kind])
    start = reading.offset
    read = seconds(reading.next())
    assert read == [0, None, 90, 110, None, 50]
    assert reading.offset["watermark"] == T0 + 110 * SECOND - 1
    assert reading.offset["time_limit"] == T0 + 110 * SECOND + 1
    reading.reader.stop()
    # Days later the clock has passed them all.
    clock.now_us += 10 * DAY * SECOND
    again = reading_of(tmp_path, **FORMATS[kind])
    assert seconds(again.between(start, reading.offset)) == read
    again.offset = reading.offset
    again.next()
    assert again.offset["watermark"] == T0 + 110 * SECOND - 1, "what was read without an event time has none"
    again.reader.stop()


def test_what_was_from_the_future_counts_where_it_is_read_when_the_clock_has_passed_it(
    tmp_path: Path, clock: Clock
) -> None:
    put(tmp_path / "a" / "f.parquet", {"t": stamps(0, 200, 300, 40), "k": [1, 2, 3, 4]})
    reading = reading_of(tmp_path)
    assert seconds(reading.next(max_rows=2)) == [0, None]
    clock.now_us += 200 * SECOND
    assert seconds(reading.next(max_rows=2)) == [300, 40]
    assert reading.offset["watermark"] == T0 + 300 * SECOND - 1
    reading.reader.stop()


def test_without_the_exact_watermark_and_in_a_batch_read_the_same_records_have_no_event_time(
    tmp_path: Path, clock: Clock
) -> None:
    put(tmp_path / "a" / "f.parquet", {"t": stamps(0, 5 * DAY, -(10**9), 20), "k": [1, 2, 3, 4]})
    reading = reading_of(tmp_path, watermarkRows="false")
    assert seconds(reading.next()) == [0, None, -(10**9), 20]
    reading.reader.stop()
    options = {"eventTimeColumn": "t", "maxFutureSkew": "10 seconds"}
    assert seconds(read_batch(tmp_path, invalidTimestamp="drop", **options)) == [0, -(10**9), 20]
    clock.now_us += 10 * DAY * SECOND
    assert seconds(read_batch(tmp_path, **options)) == [0, 5 * DAY, -(10**9), 20]


def test_by_default_such_a_record_fails_the_query_and_the_error_names_the_latest_time_that_is_valid(
    tmp_path: Path, clock: Clock
) -> None:
    put(tmp_path / "a" / "f.parquet", {"t": stamps(0, 5 * DAY), "k": [1, 2]})
    reading = reading_of(tmp_path, invalidTimestamp="fail")
    with pytest.raises(InvalidTimestampError, match=r"position 1.*maxFutureSkew.*later than 2023-11-14T22:15:50"):
        reading.next()
    reading.reader.stop()


@pytest.mark.parametrize("option", ["maxFutureSkew", "idleTimeout"])
def test_a_clock_that_is_behind_the_checkpoint_is_named_at_the_restart(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture, option: str
) -> None:
    """A clock 3 hours ahead admits a record of one hour in the future; one 5 hours behind makes all invalid."""
    put(tmp_path / "a" / "f.parquet", {"t": stamps(0, HOUR), "k": [1, 2]})
    skew = {"maxFutureSkew": "10 minutes" if option == "maxFutureSkew" else "none"}
    clock.now_us += 3 * HOUR * SECOND
    reading = reading_of(tmp_path, **skew)
    assert seconds(reading.next()) == [0, HOUR]
    reading.reader.stop()
    for number, (behind, is_named) in enumerate(((0, False), (59, False), (5 * HOUR, True))):
        caplog.clear()
        clock.now_us -= behind * SECOND
        put(tmp_path / "a" / f"g{number}.parquet", {"t": stamps(HOUR + 1), "k": [3]})
        again = reading_of(tmp_path, **skew)
        again.offset = reading.offset
        is_invalid = is_named and option == "maxFutureSkew"
        assert seconds(again.next()) == [None if is_invalid else HOUR + 1]
        assert again.offset["watermark"] >= T0 + HOUR * SECOND - 1, "a watermark never goes back"
        again.reader.stop()
        reading.offset = again.offset
        said = [record.getMessage() for record in caplog.records if "the wall clock" in record.getMessage()]
        assert len(said) == is_named
        if is_named:
            assert re.search(r"the wall clock, 2023-11-14 20:14:41 UTC, is 5 h.* behind the checkpoint", said[0])
            assert ("maxFutureSkew, 10 minutes, makes records later than 2023-11-14 20:24:41" in said[0]) == is_invalid


def test_a_limit_that_no_clock_decides_names_none(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path / "a" / "f.parquet", {"t": stamps(0), "k": [1]})
    reading = reading_of(tmp_path, maxFutureSkew="3000 days")
    reading.next()
    reading.reader.stop()
    again = reading_of(tmp_path, maxFutureSkew="4000000 days")
    again.offset = reading.offset
    again.next()
    again.reader.stop()
    assert "the wall clock" not in caplog.text


def test_without_the_option_an_offset_has_no_clock(tmp_path: Path) -> None:
    put(tmp_path / "a" / "f.parquet", {"t": stamps(0), "k": [1]})
    reading = reading_of(tmp_path, maxFutureSkew="none")
    reading.next()
    assert "time_limit" not in reading.offset
    reading.reader.stop()
