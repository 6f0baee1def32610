"""Killed at any step between plan, read and commit, in every layout: every row once."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alignment.watermarks import MAX_WATERMARK
from streaming_source.connectors.files import FileSource, finished_log, finite
from streaming_source.data_files import queued
from streaming_source.testing import FakeClock, SourceHarness
from tests.examples import examples, one_in
from tests.files.test_layout_orders import rows, strategy, write

LAYOUTS: dict[str, dict[str, Any]] = {
    "directories": {"split_by": "directory"},
    "by event time": {"split_by": "file"},
    "by event time, with a log": {"split_by": "file", "state_location": "state"},
    "by name": {"split_by": "file", "file_order": "name"},
    "by modification time": {"split_by": "file", "file_order": "modificationTime"},
    "by event time, deleted when read": {"split_by": "file", "clean_source": "delete"},
    "by name, archived, with a log": {
        "split_by": "file",
        "file_order": "name",
        "state_location": "state",
        "clean_source": "archive",
        "source_archive_dir": "archive",
    },
    "directories, deleted when read": {"split_by": "directory", "clean_source": "delete"},
}

STEPS = ("planned, and not written down", "written down", "read", "committed", "not at all")


def source(root: Path, layout: str, **more: Any) -> FileSource:
    arguments = {**LAYOUTS[layout], **more}
    for name in ("state_location", "source_archive_dir"):
        if name in arguments:
            arguments[name] = str(root / arguments[name])
    columns = pa.schema([("t", pa.timestamp("us"))])
    return FileSource(str(root / "in"), discovery_interval="1 second", data_schema=columns, **arguments)


def run_batch(run: SourceHarness, killed: str) -> bool:
    """Plan, read and commit one micro-batch, killed once on the way; whether there was one."""
    if not run.plan():
        return False
    if killed == "planned, and not written down":
        # Spark knows the offset before: the plan, and what it left behind, was in vain.
        assert run._before is not None
        run.state, run._before = run._before, None
        run.restart()
        if not run.plan():
            return False
    if killed == "written down":
        run.restart()
    batch = run.read()
    if killed == "read":
        run.restart()
        batch = run.read()
    run.commit(batch)
    if killed == "committed":
        run.restart()
    return True


class Writer:
    """Writes file after file: names, modification and event times rise.

    In two directories in turn, or one after another: where files come by name that is of the whole path.
    """

    def __init__(self, root: Path, layout: str) -> None:
        self._root = root
        self._in_turn = "by name" not in layout
        self._numbers: Iterator[int] = count()
        self.written: list[str] = []

    def write(self) -> None:
        number = next(self._numbers)
        place = f"log-{number % 2 if self._in_turn else number // 4}/{number:03d}.parquet"
        begin = number * 10.0
        write(self._root / "in" / place, [begin + 3, begin, begin + 9, begin + 5], number, row_group_size=3)
        self.written.append(place)

    def rows(self, layout: str) -> list[tuple[str, int]]:
        if LAYOUTS[layout]["split_by"] == "file":
            return sorted((place, row) for place in self.written for row in range(4))
        by_log = [place.split("/")[0] for place in self.written]
        return sorted((log, row) for log in set(by_log) for row in range(4 * by_log.count(log)))


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queued, "FILES_OPEN", 3)
    monkeypatch.setattr(finite, "RECENT_FILES", 4)
    monkeypatch.setattr(finished_log, "_FILES_MERGED", 3)


@pytest.mark.parametrize(("killed", "layout"), one_in(11, product(STEPS, LAYOUTS)))
def test_every_row_is_read_once_however_often_it_is_killed_at_one_step(
    tmp_path: Path, layout: str, killed: str
) -> None:
    writer = Writer(tmp_path, layout)
    for _ in range(8):
        writer.write()
    run = SourceHarness(source(tmp_path, layout, bounded=True), strategy("10 seconds"), max_rows=3)
    # A restart announces the watermark again, and so is followed by a micro-batch: it cannot go on for ever.
    for _ in range(40):
        assert run_batch(run, killed)
        if run.watermark == MAX_WATERMARK:
            break
    run.run()
    assert rows(run) == writer.rows(layout)
    assert run.watermark == MAX_WATERMARK
    run.close()


# Looks at the files rest between them, by the machine's clock: on a loaded one that adds up.
@pytest.mark.slow
@settings(max_examples=examples(20))
@pytest.mark.parametrize("layout", one_in(2, LAYOUTS))
@given(steps=st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 3)), min_size=1, max_size=12))
def test_every_row_is_read_once_when_files_come_and_it_is_killed_at_any_step(
    tmp_path_factory: pytest.TempPathFactory, layout: str, steps: list[tuple[str, int]]
) -> None:
    root = tmp_path_factory.mktemp("layout")
    writer = Writer(root, layout)
    writer.write()
    clock = FakeClock()
    run = SourceHarness(source(root, layout), strategy("10 seconds"), max_rows=5, clock=clock)
    for killed, new in steps:
        run_batch(run, killed)
        for _ in range(new):
            writer.write()
        clock.advance("2 seconds")
    run.run()
    clock.advance("2 seconds")
    run.run()
    assert rows(run) == writer.rows(layout)
    run.close()
