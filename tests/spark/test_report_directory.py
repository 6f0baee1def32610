"""Readers leave reports for their planner in a directory, which looks there once for each micro-batch."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from alignment.events import RangeReport
from alignment.watermarks import MAX_WATERMARK
from streaming_source.data_files.stores import Root, StorageOptions
from streaming_source.exceptions import OptionError
from streaming_source.spark.datasource import AlignedDataSource
from streaming_source.spark.options import FRAME_OPTIONS, SOURCE_OPTIONS, frame_options
from streaming_source.spark.report_directory import ReportDirectory, ReportFiles
from streaming_source.spark.watermark_rows import EMITTED
from tests.files.stores import open_store
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


@pytest.mark.parametrize("kind", ["local", pytest.param("s3", marks=pytest.mark.soak)])
def test_what_tasks_report_is_taken_once(tmp_path: Path, kind: str, request: pytest.FixtureRequest) -> None:
    store = open_store(kind, tmp_path, request)
    root = StorageOptions.of(store.storage).at(f"{store.uri}/reports")
    planner = ReportDirectory(root)
    planner.begin()
    planner.expect()
    task = ReportFiles(root, planner.run_id, 7, 0, 100)
    assert task.send_reports([FIRST])
    assert task.send_reports([THIRD])
    # Another attempt at the same task, and a task that had nothing to read.
    assert ReportFiles(root, planner.run_id, 7, 0, 101).send_reports([FIRST, THIRD])
    assert ReportFiles(root, planner.run_id, 7, 1, 102).send_reports([])
    assert ReportFiles(root, "of another run", 7, 2, 103).send_reports([SECOND])
    assert sorted(planner.take(), key=str) == sorted([FIRST, FIRST, THIRD, THIRD], key=str)
    planner.expect()
    assert planner.take() == []
    planner.close()
    assert [name for name in store.names("reports") if planner.run_id in name and name.endswith("json")] == []


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
    planner, looks = ReportDirectory(Root(str(tmp_path))), []
    opened = ReportDirectory._opened
    monkeypatch.setattr(ReportDirectory, "_opened", lambda self: (looks.append(1), opened(self))[1])
    for _ in range(3):
        planner.take()
    assert looks == []
    planner.expect()
    for _ in range(3):
        planner.take()
    assert looks == [1]


def test_a_directory_that_cannot_be_read_is_tried_again_after_a_second(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock, root = Clock(), Root(str(tmp_path))
    planner = ReportDirectory(root, clock)
    planner.expect()
    assert ReportFiles(root, planner.run_id, 7, 0, 100).send_reports([FIRST])
    unreadable = tmp_path / planner.run_id / "7-1-101-0.json"
    unreadable.mkdir()
    with caplog.at_level(logging.WARNING):
        assert planner.take() == [FIRST]
        assert planner.take() == []
    assert caplog.text.count("reports of readers cannot be taken") == 1
    unreadable.rmdir()
    assert ReportFiles(root, planner.run_id, 7, 1, 101).send_reports([SECOND])
    assert planner.take() == []
    clock.now_s += 1
    assert planner.take() == [SECOND]


def test_a_report_that_cannot_be_written_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("no directory")
    with caplog.at_level(logging.WARNING):
        assert not ReportFiles(Root(str(tmp_path / "file")), "run", 7, 0, 100).send_reports([FIRST])
    assert "could not report in" in caplog.text


def test_a_file_that_is_no_report_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    planner = ReportDirectory(Root(str(tmp_path)))
    planner.expect()
    ReportFiles(Root(str(tmp_path)), planner.run_id, 7, 0, 100).send_reports([FIRST])
    (tmp_path / planner.run_id / "other.json").write_text('{"split_id": ["a"]}')
    with caplog.at_level(logging.WARNING):
        assert planner.take() == [FIRST]
    assert "other.json is no report of a reader" in caplog.text


def test_what_runs_of_the_day_before_have_left_is_removed_and_what_others_need_is_not(tmp_path: Path) -> None:
    now_s, root = time.time(), Root(str(tmp_path))
    ended, goes_on, new = (ReportDirectory(root, wall_s=lambda s=s: now_s - s) for s in (90_000, 90_000, 80_000))
    (tmp_path / "other").mkdir()
    for run in (ended, goes_on, new):
        assert ReportFiles(root, run.run_id, 7, 0, 100).send_reports([FIRST])
    (left,) = (tmp_path / ended.run_id).iterdir()
    os.utime(left, (now_s - 90_000, now_s - 90_000))
    ReportDirectory(root, wall_s=lambda: now_s).begin()
    assert {path.name for path in tmp_path.iterdir()} == {goes_on.run_id, new.run_id, "other"}


class Busy(Root):
    """A place where something else happens just after the folder of a run is made, and before something in it goes."""

    def open(self) -> tuple[Any, str]:
        files, path = super().open()
        return BusyFiles(files, self), path


class BusyFiles:
    def __init__(self, files: Any, place: Busy) -> None:
        self._files = files
        self._place = place

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def create_dir(self, path: str, **options: Any) -> None:
        self._files.create_dir(path, **options)
        self._interrupt(path)

    def delete_file(self, path: str) -> None:
        self._interrupt(path)
        self._files.delete_file(path)

    def delete_dir(self, path: str) -> None:
        self._interrupt(path)
        self._files.delete_dir(path)

    def _interrupt(self, path: str) -> None:
        run_id, happens = vars(self._place).get("once", ("", None))
        if happens is not None and run_id in path:
            del vars(self._place)["once"]
            happens()


def test_a_report_is_kept_that_a_task_writes_while_the_folder_of_its_run_is_removed(tmp_path: Path) -> None:
    now_s, root = time.time(), Root(str(tmp_path))
    idle = ReportDirectory(root, wall_s=lambda: now_s - 90_000)
    task = ReportFiles(root, idle.run_id, 8, 0, 101)
    assert ReportFiles(root, idle.run_id, 7, 0, 100).send_reports([FIRST])
    (left,) = (tmp_path / idle.run_id).iterdir()
    os.utime(left, (now_s - 90_000, now_s - 90_000))
    place = Busy(str(tmp_path))
    vars(place)["once"] = (idle.run_id, lambda: task.send_reports([SECOND]))
    ReportDirectory(place, wall_s=lambda: now_s).begin()
    idle.expect()
    assert idle.take() == [SECOND]


def test_a_report_is_written_into_a_folder_that_is_removed_under_its_task(tmp_path: Path) -> None:
    place = Busy(str(tmp_path))
    vars(place)["once"] = ("run", (tmp_path / "run").rmdir)
    assert ReportFiles(place, "run", 8, 0, 100).send_reports([FIRST])
    assert len([*(tmp_path / "run").iterdir()]) == 1


def test_a_directory_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    with pytest.raises(OptionError, match=r"(?s)reportLocation = '.*/file/r': .* the planner and all tasks may write"):
        ReportDirectory(Root(str(tmp_path / "file" / "r"))).begin()
