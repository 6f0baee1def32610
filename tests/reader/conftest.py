"""What all tests of readers share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.reader.numbers import fetcher_threads


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    """Each test ends the threads that it started."""
    before = fetcher_threads()
    yield
    assert not [thread for thread in fetcher_threads() if thread not in before]
