"""What all tests of the coordinator share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.coordinator.support import await_end, worker_threads


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    """Each test ends the threads that it started."""
    before = worker_threads()
    yield
    await_end(worker_threads() - before)


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fetches that block are woken soon."""
    monkeypatch.setattr("streaming_source.coordinator.event_times.split_scan._FIRST_PATIENCE_S", 0.01)
    monkeypatch.setattr("streaming_source.coordinator.event_times.split_scan._LAST_PATIENCE_S", 0.04)
