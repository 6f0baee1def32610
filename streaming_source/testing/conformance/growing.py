"""Records and splits that come while the source is read; splits that have none for a while, or are far ahead."""

from __future__ import annotations

import pytest

from alignment.combine import SplitStatus
from streaming_source.testing.conformance.connector import (
    ROWS,
    SECOND_US,
    START_US,
    ConnectorUnderTest,
    times_of,
)
from streaming_source.testing.harness import SourceHarness

__all__ = ["GrowingSuite"]


class GrowingSuite(ConnectorUnderTest):
    """A source that does not end; where the planner reads ahead of the readers it pauses splits that are far ahead."""

    @pytest.mark.parametrize("restarts", [False, True], ids=["in one run", "over restarts"])
    def test_records_that_come_later_are_read(self, restarts: bool) -> None:
        self.needs_appending()
        self.fill(2)
        harness = self.harness(self.growing_source(), max_rows=7)
        for first in (ROWS, ROWS + 5, ROWS + 6):
            self.run_until_read(harness, self.expected())
            for split in (0, 1):
                self.put(split, times_of(split, 5, first))
            if restarts:
                harness.restart()
        self.run_until_read(harness, self.expected())

    @pytest.mark.parametrize("restarts", [False, True], ids=["in one run", "over restarts"])
    def test_splits_that_come_later_are_read(self, restarts: bool) -> None:
        self.fill(1)
        harness = self.harness(self.growing_source(), max_rows=7)
        for split in (1, 2, 3):
            self.run_until_read(harness, self.expected())
            self.put(split, times_of(split, ROWS))
            if restarts:
                harness.restart()
        self.run_until_read(harness, self.expected())

    def test_the_late_records_of_a_split_that_comes_late_are_read_and_counted(self) -> None:
        self.fill(2)
        harness = self.harness(self.growing_source(), max_rows=2)
        self.run_until_read(harness, self.expected())
        announced = harness.watermark
        next_ms = announced // 1000 * 1000 + 1000
        times = [next_ms + seconds * SECOND_US for seconds in (-30, -31, -1, 20, 0, 25)]
        late, known = self.split_id(2), harness.records()
        self.put(2, times)
        counted = 0
        for _ in range(100):
            if harness.run_batch() is None:
                self.clock.advance("1 second")
            if late in harness.state.by_id():
                counted = int(harness.state.late[harness.state.table.split_ids.index(late)])
            assert harness.watermark >= announced
            if harness.records() == self.expected():
                break
        assert harness.records() == self.expected() != known
        assert counted == sum(time <= announced for time in times) == 3

    def test_a_split_that_comes_late_holds_the_watermark_from_then_on(self) -> None:
        self.needs_appending()
        self.fill(2)
        harness = self.harness(self.growing_source())
        self.run_until_read(harness, self.expected())
        self.put(2, times_of(0, ROWS, 2 * ROWS))
        self.run_until_read(harness, self.expected())
        for split in (0, 1):
            self.put(split, times_of(split, ROWS, 1000))
        self.run_until_read(harness, self.expected())
        assert harness.watermark == _watermarks(harness)[self.split_id(2)]
        assert harness.watermark < START_US + 3 * ROWS * SECOND_US

    def test_a_split_that_has_nothing_for_a_while_is_idle_and_comes_back(self) -> None:
        self.needs_appending()
        first, second = self.split_id(0), self.split_id(1)
        expected = self.fill(2)
        harness = self.harness(self.growing_source(), strategy=self.strategy.with_idleness("20 seconds"))
        self.run_until_read(harness, expected)
        assert _idle(harness) == set()
        held = harness.watermark
        # One goes on, the other has nothing any more.
        for step in range(1, 10):
            self.put(0, times_of(0, 1, 10 * ROWS + step))
            for _ in range(5):
                self.clock.advance("1 second")
                harness.run()
        self.run_until_read(harness, self.expected())
        assert _idle(harness) == {second}
        assert harness.watermark == _watermarks(harness)[first] > held
        # It comes back with records of which the first ones are late.
        announced = harness.watermark
        self.put(1, [*times_of(1, 3, ROWS), *times_of(1, 3, 20 * ROWS)])
        self.run_until_read(harness, self.expected())
        assert _idle(harness) == set()
        assert harness.watermark == announced
        assert int(harness.state.late[harness.state.table.split_ids.index(second)]) == 3
        # And now it counts again.
        self.put(0, times_of(0, 1, 1000))
        self.run_until_read(harness, self.expected())
        assert harness.watermark == _watermarks(harness)[second] > announced

    def test_idle_splits_are_still_idle_after_a_restart(self) -> None:
        self.needs_appending()
        expected = self.fill(2)
        harness = self.harness(self.growing_source(), strategy=self.strategy.with_idleness("20 seconds"))
        self.run_until_read(harness, expected)
        for _ in range(60):
            self.clock.advance("1 second")
            harness.run()
        assert _idle(harness) == set(expected)
        announced = harness.watermark
        assert announced == max(_watermarks(harness).values())
        harness.restart()
        harness.run()
        assert (_idle(harness), harness.watermark) == (set(expected), announced)
        self.put(0, times_of(0, 2, 100))
        self.run_until_read(harness, self.expected())
        assert _idle(harness) == {self.split_id(1)}

    @pytest.mark.parametrize("ahead", [(0,), (2,), (0, 2), (1, 2)])
    def test_splits_that_are_far_ahead_lose_nothing_and_starve_nobody(self, ahead: tuple[int, ...]) -> None:
        self.needs_appending()
        self._put(ahead, 0)
        harness = self.harness(self.growing_source(), read_ahead_rows=6)
        self.run_until_read(harness, self.expected())
        self._put(ahead, 1)
        self.run_until_read(harness, self.expected())

    def _put(self, ahead: tuple[int, ...], step: int) -> None:
        for split in range(3):
            # A minute a record, or a second: the fast ones are soon further than the planner reads ahead.
            pace = 60 if split in ahead else 1
            self.put(split, [START_US + (8 * step + i) * pace * SECOND_US for i in range(8)])


def _watermarks(harness: SourceHarness) -> dict[str, int]:
    table = harness.state.table
    return dict(zip(table.split_ids, table.watermarks.tolist(), strict=True))


def _idle(harness: SourceHarness) -> set[str]:
    table = harness.state.table
    return {i for i, status in zip(table.split_ids, table.statuses, strict=True) if status == SplitStatus.IDLE}
