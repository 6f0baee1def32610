"""Deletion vectors in memory: of the files that are still to be read, and nobody who lets go of one waits."""

from __future__ import annotations

import threading
from pathlib import Path

import deltalake
import pytest

from streaming_source.connectors.delta.statistics import DeletionVectors
from streaming_source.data_files import queued
from streaming_source.testing import SourceHarness
from tests.delta.deletion_vectors import delete_rows
from tests.delta.tables import SECOND, append, harness, times

FILES = 8


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """One file after the other by event time, each of three rows, of which the second is deleted."""
    for number in range(FILES):
        append(tmp_path, [(100 * number + row) * SECOND for row in range(3)])
        delete_rows(tmp_path, [1], number=number)
    return tmp_path


def kept(done: SourceHarness) -> int:
    return len(done.coordinator.host.enumerator._lister._deleted)


def unread(done: SourceHarness) -> int:
    found = done.coordinator.host.enumerator
    return len(found._open_files) + found.metrics()["numFilesOutstanding"]


@pytest.mark.parametrize("is_in_snapshot", [True, False])
def test_after_a_restart_those_of_finished_files_are_not_kept(
    table: Path, is_in_snapshot: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queued, "FILES_OPEN", 2 if is_in_snapshot else 2 * FILES)
    monkeypatch.setattr(queued, "_AT_ONCE", 1 if is_in_snapshot else FILES)
    done = harness(table, max_rows=2 if is_in_snapshot else 5)
    for _ in range(2):
        done.run_batch()
    done.restart()
    done.run_batch()

    assert done.state.checkpoint.progress.in_snapshot is is_in_snapshot
    assert 0 < kept(done) == unread(done) < FILES
    done.run()
    assert times(done) == [(100 * number + row) * SECOND for number in range(FILES) for row in (0, 2)]
    assert kept(done) == 0


def test_a_file_is_released_while_a_store_answers_for_another(table: Path) -> None:
    asked, answer = threading.Event(), threading.Event()

    def open_table(version: int) -> deltalake.DeltaTable:
        asked.set()
        assert answer.wait(20)
        return deltalake.DeltaTable(str(table), version=version)

    newest = deltalake.DeltaTable(str(table))
    vectors = DeletionVectors("Delta table /t", open_table)
    first, second, *_ = vectors.load(newest.version(), newest)
    vectors.release(newest.version(), first)
    reading = threading.Thread(target=vectors.of, args=(newest.version(), first))
    reading.start()
    assert asked.wait(20)

    releasing = threading.Thread(target=vectors.release, args=(newest.version(), second))
    releasing.start()
    releasing.join(5)

    assert not releasing.is_alive()
    answer.set()
    reading.join(20)
    assert len(vectors) == FILES - 1
