"""What is gone, or was rewritten, is an error that names it: no half of a window is written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from streaming_source.exceptions import DataLossError
from tests.spark.repaired import LiveQuery, RepairQuery, Window, every, with_late_records
from tests.spark.repaired_files import Files


@pytest.mark.parametrize(
    ("split_by", "remembers"),
    [("directory", 1000), ("file", 1000), ("file", 1)],
    ids=["directory", "file", "forgotten"],
)
def test_files_that_are_gone_are_named_and_nothing_is_written(
    tmp_path: Path, split_by: str, remembers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streaming_source.connectors.files.finite.RECENT_FILES", remembers)
    repairs = with_late_records(tmp_path, Files(tmp_path / "in", splitBy=split_by, lateness="none"))
    gone = max((tmp_path / "in/a").iterdir()) if split_by == "directory" else min((tmp_path / "in/a").iterdir())
    kept = gone.rename(tmp_path / "kept")
    before = dict(repairs.target.rows)
    what = "in/a: the query has read 300 records up to f004" if split_by == "directory" else r"in: 1 of \d files that"
    with pytest.raises(DataLossError, match=f"{what}.* gone.*restore them, or set ignoreMissingFiles = true"):
        repairs.run()
    assert repairs.target.rows == before
    kept.rename(gone)
    assert repairs.run()
    assert repairs.target.rows != before


def test_a_file_that_was_rewritten_is_named(tmp_path: Path) -> None:
    repairs = with_late_records(tmp_path, Files(tmp_path / "in", splitBy="file", lateness="none"))
    first = min((tmp_path / "in/a").iterdir())
    repairs.live.data.put("a", every(range(3)))
    max((tmp_path / "in/a").iterdir()).rename(first)
    with pytest.raises(DataLossError, match=f"{first.name} was rewritten"):
        repairs.run()


def test_a_late_log_whose_entries_are_all_gone_is_an_error_and_is_read_once_they_are_back(tmp_path: Path) -> None:
    repairs = with_late_records(tmp_path, Files(tmp_path / "in", lateness="none"))
    entries = list((tmp_path / "late").rglob("*.json"))
    for entry in entries:
        entry.rename(f"{entry}.kept")
    with pytest.raises(DataLossError, match=r"13 late records were routed after micro-batch -1, and .* has 0: entries"):
        repairs.run()
    for entry in entries:
        Path(f"{entry}.kept").rename(entry)
    assert repairs.run()
    assert repairs.repairs == 1


@pytest.mark.parametrize("split_by", ["directory", "file"])
def test_the_windows_of_a_bounded_source_have_what_was_there_when_it_began(tmp_path: Path, split_by: str) -> None:
    data = Files(tmp_path / "in", splitBy=split_by, lateness="bounded")
    live = LiveQuery(data, Window(20, 20), tmp_path, maxOutOfOrderness="3 seconds", bounded="true")
    data.put("a", every(range(20)))
    data.put("b", [*every(range(100)), *every(range(20, 60)), *every(range(100, 150))])
    while live.run(8):
        pass
    expected = live.window.counted(data.written)
    assert live.target.rows != expected
    # A file that comes later is not part of the query.
    data.put("a", every(range(20, 40)))
    os.utime(max((tmp_path / "in/a").iterdir()), (2e9, 2e9))
    assert RepairQuery(live).run()
    assert live.target.rows == expected
