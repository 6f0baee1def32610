"""Probing, in the planner, whether splits have ended: on threads, over fetches that block."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from streaming_source.api import RecordsBySplits, RecordSplit, SourceReaderContext, SplitReader
from streaming_source.coordinator import WorkerPool
from streaming_source.coordinator.event_times.split_ends import SplitEnds
from streaming_source.testing import TestingSource
from tests.coordinator.support import WAIT_S, Planner


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    workers = WorkerPool(4)
    yield workers
    workers.close()


class Blocking(TestingSource):
    """Fetches block until they are woken; what comes after that a test says."""

    def __init__(self, ends: bool) -> None:
        super().__init__({"a": []})
        self.ends = ends
        self.closed = threading.Event()

    def create_split_reader(self, context: SourceReaderContext) -> SplitReader[RecordSplit]:
        source, woken = self, threading.Event()

        class Reader(SplitReader[RecordSplit]):
            def handle_splits_changes(self, change: Any) -> None: ...

            def fetch(self) -> RecordsBySplits[Any]:
                assert woken.wait(WAIT_S), "nobody woke the fetch"
                return RecordsBySplits(finished_splits=["a"] if source.ends else [])

            def wake_up(self) -> None:
                woken.set()

            def close(self) -> None:
                source.closed.set()

        return Reader()


class Probes:
    """What probes came to; their waits stand still."""

    def __init__(self, source: TestingSource, pool: WorkerPool) -> None:
        self.planner = Planner(workers=pool)
        self.clock = self.planner.clock
        self.found: list[int | None] = []
        self.ends: SplitEnds[RecordSplit] = SplitEnds(source, self.planner.host, self._take)

    def _take(self, split: RecordSplit, began_us: int, ended_at: int | None) -> None:
        self.found.append(ended_at)

    def probe(self) -> None:
        known = len(self.found)
        self.ends.probe(RecordSplit("a"), 7)
        while len(self.found) == known:
            self.planner.calls.wait(WAIT_S)


@pytest.mark.parametrize("ends", [False, True])
def test_a_fetch_that_blocks_is_woken_and_its_reader_closed(pool: WorkerPool, ends: bool) -> None:
    source = Blocking(ends)
    probes = Probes(source, pool)
    probes.probe()
    assert probes.found == [7 if ends else None]
    assert source.closed.is_set()


def test_after_a_probe_in_vain_the_next_one_is_put_off_for_longer_each_time(pool: WorkerPool) -> None:
    probes = Probes(TestingSource({"a": []}), pool)
    for wait_ms in (200, 400, 800, 1600, 3200, 6400, 10_000, 10_000):
        probes.probe()
        probes.clock.advance(f"{wait_ms - 1} ms")
        probes.ends.probe(RecordSplit("a"), 7)
        probes.clock.advance("1 ms")
    assert probes.found == [None] * 8
    probes.probe()
    assert probes.found == [None] * 9
