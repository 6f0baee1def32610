"""A split that is far ahead waits, and loses nothing."""

from __future__ import annotations

import pytest

from streaming_source.testing.conformance.connector import SECOND_US, START_US, ConnectorUnderTest

__all__ = ["PausingSuite"]


class PausingSuite(ConnectorUnderTest):
    """Splits that drift apart, where the planner reads ahead of the readers and pauses those that are far ahead."""

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
