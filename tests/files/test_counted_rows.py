"""Where no plan depends on event times, records of lines are counted ahead of reading, and their times are not read."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructType, TimestampType

from alignment.watermarks import MAX_WATERMARK
from streaming_source.connectors.files import CsvFormat
from streaming_source.data_files import queued
from streaming_source.exceptions import MalformedDataError
from tests.spark.reading import SECOND, T0, Reading, read_batch, stream_reader

COLUMNS = StructType().add("t", TimestampType()).add("n", LongType())
CSV = {"fileFormat": "csv", "eventTimeColumn": "t", "timeZone": "UTC"}
AT_ONCE = {**CSV, "bounded": "true", "watermarkRows": "true", "maxOutOfOrderness": "5 seconds", "splitBy": "directory"}
NUMBERS = list(range(60))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two splits of three files; one is ahead of the other."""
    for number in NUMBERS:
        split, file = number % 2, number // 20
        path = tmp_path / "in" / f"split-{split}" / f"part-{file}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        time = datetime.fromtimestamp((T0 + (number + 3600 * split) * SECOND) / 1e6, UTC).isoformat()
        with path.open("a") as lines:
            lines.write(f"{time},{number}\n")
    return tmp_path / "in"


@pytest.fixture
def described(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files whose event times were read ahead."""
    paths, scanned, event_times = [], CsvFormat._scanned, CsvFormat.event_times

    def noted(own: CsvFormat, rows: Any, *others: Any) -> Any:
        paths.append(rows.file.path)
        return scanned(own, rows, *others)

    def of_block(own: CsvFormat, rows: Any, *others: Any) -> Any:
        paths.append(rows.file.path)
        return event_times(own, rows, *others)

    monkeypatch.setattr(CsvFormat, "_scanned", noted)
    monkeypatch.setattr(CsvFormat, "event_times", of_block)
    return paths


def numbers(*tables: pa.Table | None) -> list[int]:
    """Without those of watermark rows."""
    return sorted(n for table in tables if table is not None for n in table["n"].drop_null().to_pylist())


def rest_of(reading: Reading) -> list[int]:
    """What all further micro-batches have."""
    tables = []
    while (table := reading.next()) is not None:
        tables.append(table)
    reading.reader.stop()
    return numbers(*tables)


def test_a_bounded_source_without_limits_is_read_at_once_and_its_event_times_once(
    root: Path, described: list[str]
) -> None:
    reading = Reading(stream_reader(root, COLUMNS, **AT_ONCE))
    start = reading.offset
    first = reading.next()
    end = reading.offset
    assert numbers(first) == NUMBERS
    assert end["watermark"] == MAX_WATERMARK
    assert rest_of(reading) == []
    assert described == []
    again = Reading(stream_reader(root, COLUMNS, **AT_ONCE)).between(start, end)
    assert again == first


def test_a_file_that_breaks_in_its_middle_is_read_again_as_it_was(root: Path) -> None:
    """Its records are counted for the plan, and not for that of a restart, which finds it corrupt."""
    with (root / "split-0" / "part-1.csv").open("a") as lines:
        lines.write("no time\n")
    options = {**AT_ONCE, "mode": "FAILFAST", "ignoreCorruptFiles": "true"}
    reading = Reading(stream_reader(root, COLUMNS, **options))
    start, first = reading.offset, reading.next()
    reading.reader.stop()
    again = Reading(stream_reader(root, COLUMNS, **options)).between(start, reading.offset)
    assert again == first
    assert numbers(first)[0] == 0
    assert numbers(first)[-1] == NUMBERS[-1]


@pytest.mark.parametrize(
    "more",
    [
        {"maxRowsPerTrigger": 7},
        {"maxDrift": "1 minute"},
        {"eventTimeFrom": "2001-01-01T00:00:00Z"},
        {"indexing": "scan"},
        {"splitBy": "file"},
        {"bounded": "false"},
        {"eventLog": "log"},
    ],
    ids=str,
)
def test_event_times_are_read_ahead_where_a_plan_may_depend_on_them(
    root: Path, described: list[str], more: dict[str, Any], tmp_path: Path
) -> None:
    more = {"eventLog": str(tmp_path / "log")} if "eventLog" in more else more
    (tmp_path / "log").mkdir()
    assert rest_of(Reading(stream_reader(root, COLUMNS, **{**AT_ONCE, **more}))) == NUMBERS
    assert len({*described}) == 6


def test_event_times_are_read_ahead_behind_a_watermark_that_was_announced(root: Path, described: list[str]) -> None:
    """What is late is counted by event time."""
    limited = Reading(stream_reader(root, COLUMNS, maxRowsPerTrigger=20, **AT_ONCE))
    first = limited.next()
    limited.reader.stop()
    described.clear()
    rest = Reading(stream_reader(root, COLUMNS, **AT_ONCE))
    rest.offset = limited.offset
    assert sorted([*numbers(first), *rest_of(rest)]) == NUMBERS
    assert described


@pytest.mark.parametrize("split_by", ["directory", "file"])
def test_a_batch_reads_event_times_ahead_for_a_range_alone(
    root: Path, described: list[str], split_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {**CSV, "splitBy": split_by, "numReaders": 3}
    with monkeypatch.context() as patch:
        # Some files wait until others are planned.
        patch.setattr(queued, "FILES_OPEN", 2)
        assert numbers(read_batch(root, COLUMNS, **options)) == NUMBERS
    assert described == []
    until = datetime.fromtimestamp((T0 + 10 * SECOND) / 1e6, UTC).isoformat()
    assert numbers(read_batch(root, COLUMNS, eventTimeUntil=until, **options)) == [0, 2, 4, 6, 8]
    assert len(described) == len({*described}) == 6


@pytest.mark.parametrize("first", ["t,n\n", '"t","n"\r\n', "t,other\n"])
def test_a_header_that_no_option_declares_fails_the_plan(root: Path, first: str) -> None:
    """A reader would fail behind an offset, which the option does not change any more."""
    path = root / "split-1" / "part-2.csv"
    path.write_text(first + path.read_text())
    reader = stream_reader(root, COLUMNS, **AT_ONCE)
    with pytest.raises(MalformedDataError, match="set option header = true"):
        reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    reader.stop()


def test_a_first_record_that_has_the_name_of_a_column_is_a_record(tmp_path: Path, described: list[str]) -> None:
    named = StructType().add("t", TimestampType()).add("n", StringType())
    (tmp_path / "split").mkdir()
    (tmp_path / "split" / "part.csv").write_text("2023-11-14T00:00:00Z,n\n2023-11-14T00:00:01Z,m\n")
    rows = Reading(stream_reader(tmp_path, named, **AT_ONCE)).next()
    assert rows is not None
    assert rows["n"].drop_null().to_pylist() == ["n", "m"]
    assert described == []
