"""Readers leave reports for their planner in a directory, which looks there once for each micro-batch."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

import numpy as np
import pytest

from alignment.events import RangeReport
from alignment.watermarks import MAX_WATERMARK
from streaming_source.coordinator.rules import EMITTED
from streaming_source.data_files.journal import Journal
from streaming_source.exceptions import OptionError
from streaming_source.spark.datasource import AlignedDataSource
from streaming_source.spark.options import FRAME_OPTIONS, SOURCE_OPTIONS, frame_options
from streaming_source.spark.report_directory import ReportDirectory, ReportFiles, report_journal
from tests.files.stores import without_rights
from tests.spark import unindexed
from tests.spark.reading import Reading
from tests.spark.reports import strategy
from tests.spark.support import SECOND as MICROS
from tests.spark.support import T0
from tests.spark.unindexed import UnindexedLogs

FIRST, SECOND, THIRD = (RangeReport("a", 0, 10), RangeReport("b", 0, 5), RangeReport("a", 10, 12))


class Clock:
    now_s = 50.0

    def __call__(self) -> float:
        return self.now_s


def journal(path: Path) -> Journal:
    return report_journal(None, str(path))


def test_what_tasks_report_is_taken_once(tmp_path: Path) -> None:
    planner = ReportDirectory(journal(tmp_path))
    planner.expect()
    task = ReportFiles(journal(tmp_path), planner.run_id, 7, 0, 100)
    assert task.send_reports([FIRST])
    assert task.send_reports([THIRD])
    # Another attempt at the same task, and a task that had nothing to read.
    assert ReportFiles(journal(tmp_path), planner.run_id, 7, 0, 101).send_reports([FIRST, THIRD])
    assert ReportFiles(journal(tmp_path), planner.run_id, 7, 1, 102).send_reports([])
    assert ReportFiles(journal(tmp_path), "of another run", 7, 2, 103).send_reports([SECOND])
    assert sorted(planner.take(), key=str) == sorted([FIRST, FIRST, THIRD, THIRD], key=str)
    planner.expect()
    assert planner.take() == []
    assert task.send_reports([FIRST])
    planner.close()
    assert [path.name for path in tmp_path.iterdir()] == ["of another run-7-2-103-0.json"]


def test_a_query_with_reports_in_a_directory_reads_all_and_leaves_nothing(tmp_path: Path) -> None:
    logs = {name: T0 + np.arange(600) * step * MICROS for name, step in (("slow", 1), ("fast", 4))}
    unindexed.write_logs(tmp_path / "logs", logs)
    values = FRAME_OPTIONS | SOURCE_OPTIONS
    given = {"indexing": "off", "reportLocation": str(tmp_path / "reports"), "watermarkRows": EMITTED}
    options = frame_options(values.parse({**given, "numReaders": "2", "maxRowsPerTrigger": "300"}))
    source = AlignedDataSource(UnindexedLogs(str(tmp_path / "logs"), bounded=True), strategy(None), options)
    assert not source.needs_gateway
    reading = Reading(source.stream_reader(source.schema()))
    rows, watermarks = 0, []
    try:
        while (table := reading.next()) is not None:
            rows += table.num_rows - table.column("k").null_count
            watermarks.append(reading.offset["watermark"])
        assert (tmp_path / "reports").exists()
    finally:
        reading.reader.stop()
    assert rows == 1200
    # It is known of each micro-batch with the plan of the next one, and the splits stay together.
    assert len({*watermarks}) > 3
    assert watermarks[-1] == MAX_WATERMARK
    assert [*(tmp_path / "reports").iterdir()] == []


def test_a_planner_that_expects_nothing_does_not_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planner, looks = ReportDirectory(journal(tmp_path)), []
    names = Journal.names
    monkeypatch.setattr(Journal, "names", lambda self: (looks.append(1), names(self))[1])
    for _ in range(3):
        planner.take()
    assert looks == []
    planner.expect()
    for _ in range(3):
        planner.take()
    assert looks == [1]


def test_a_report_that_cannot_be_read_is_tried_again_after_a_second(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    planner = ReportDirectory(journal(tmp_path), clock)
    planner.expect()
    assert ReportFiles(journal(tmp_path), planner.run_id, 7, 0, 100).send_reports([FIRST])
    # Its user alone may read a report, and the user without rights is another one.
    (tmp_path / f"{planner.run_id}-7-0-100-0.json").chmod(0o644)
    unreadable = tmp_path / f"{planner.run_id}-7-1-101-0.json"
    unreadable.write_text("")
    with without_rights(unreadable), caplog.at_level(logging.WARNING):
        # Neither can what was read be removed: it is taken again, which changes nothing.
        assert planner.take() == [FIRST]
        assert planner.take() == []
    assert caplog.text.count("reports of readers cannot be taken") == 1
    unreadable.unlink()
    assert ReportFiles(journal(tmp_path), planner.run_id, 7, 1, 101).send_reports([SECOND])
    assert planner.take() == []
    clock.now_s += 1
    assert planner.take() == [FIRST, SECOND]


def test_a_report_that_cannot_be_written_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("no directory")
    with caplog.at_level(logging.WARNING):
        assert not ReportFiles(journal(tmp_path / "file"), "run", 7, 0, 100).send_reports([FIRST])
    assert "could not report: option reportLocation: " in caplog.text


def test_a_file_that_is_no_report_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    planner = ReportDirectory(journal(tmp_path))
    planner.expect()
    ReportFiles(journal(tmp_path), planner.run_id, 7, 0, 100).send_reports([FIRST])
    (tmp_path / f"{planner.run_id}-other.json").write_text('{"split_id": ["a"]}')
    with caplog.at_level(logging.WARNING):
        assert planner.take() == [FIRST]
    assert "-other.json is no report of a reader" in caplog.text


def test_what_runs_of_the_day_before_have_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    now_s, runs = time.time(), [ReportDirectory(journal(tmp_path)) for _ in range(2)]
    for run, age_s in zip(runs, (90_000, 80_000), strict=True):
        assert ReportFiles(journal(tmp_path), run.run_id, 7, 0, 100).send_reports([FIRST])
        (left,) = tmp_path.glob(f"{run.run_id}-*")
        os.utime(left, (now_s - age_s, now_s - age_s))
    for name in ("data.json", "2026-01-01-10-20.json"):
        (tmp_path / name).write_text("{}")
        os.utime(tmp_path / name, (1, 1))
    ReportDirectory(journal(tmp_path))
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {f"{runs[1].run_id}-7-0-100-0.json", "data.json", "2026-01-01-10-20.json"}


def test_a_directory_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    with pytest.raises(
        OptionError, match=r"written there: option reportLocation: .*/file/r: .* the planner and all tasks may write"
    ):
        ReportDirectory(journal(tmp_path / "file" / "r"))
