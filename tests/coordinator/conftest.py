"""What all tests of the coordinator share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.coordinator.support import WAIT_S, worker_threads


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    """Each test ends the threads that it started."""
    before = worker_threads()
    yield
    for thread in worker_threads() - before:
        thread.join(WAIT_S)
        assert not thread.is_alive(), f"{thread.name} goes on after the test"


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fetches that block are woken soon."""
    monkeypatch.setattr("streaming_source.coordinator.look._FIRST_PATIENCE_S", 0.01)
    monkeypatch.setattr("streaming_source.coordinator.look._LAST_PATIENCE_S", 0.04)
