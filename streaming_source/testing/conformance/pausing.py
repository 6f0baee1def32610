"""A split that is paused emits nothing, and loses nothing; one that cannot be is refused."""

from __future__ import annotations

from typing import Any, Final

import pytest

from streaming_source.api import SourceReader
from streaming_source.exceptions import UnsupportedOperationError
from streaming_source.testing.conformance.connector import ConnectorUnderTest, Expected

__all__ = ["PausingSuite"]

_PAUSED_POLLS: Final = 40


class PausingSuite(ConnectorUnderTest):
    """Pausing while a reader reads, as watermark alignment without an index does."""

    @pytest.mark.parametrize("first_poll", [0, 1, 2, 4])
    @pytest.mark.parametrize("paused", [(0,), (1,), (0, 2), (0, 1, 2)])
    def test_nothing_of_a_paused_split_comes_and_nothing_of_it_is_lost(
        self, paused: tuple[int, ...], first_poll: int
    ) -> None:
        if not self.can_pause:
            pytest.skip("the readers cannot pause splits: can_pause = False")
        expected = self.fill(3)
        harness = self.harness(self.bounded_source(), readers=1)
        assert harness.plan()
        pause = _Pause([sorted(expected)[number] for number in paused], first_poll, expected)
        harness.commit(harness.read(pause, pauses=True))
        # There may not be as many polls; but what is paused from the first one on can only come once it is resumed.
        assert pause.was_resumed or first_poll
        harness.run()
        assert harness.records() == expected

    def test_pausing_is_refused_where_it_is_not_supported(self) -> None:
        if self.can_pause:
            pytest.skip("the readers can pause splits")
        self.fill(3)
        harness = self.harness(self.bounded_source(), readers=1)
        assert harness.plan()
        with pytest.raises(UnsupportedOperationError):
            harness.read(pauses=True)

    def test_splits_that_cannot_be_paused_may_run_ahead_if_that_is_allowed(self) -> None:
        expected = self.fill(3)
        harness = self.harness(self.bounded_source(), readers=1)
        assert harness.plan()
        pause = _Pause([min(expected)], 0, expected, strictly=self.can_pause)
        harness.commit(harness.read(pause, pauses=True, allow_unaligned=True))
        harness.run()
        assert harness.records() == expected


class _Pause:
    """Pauses splits before one poll, and resumes them some polls later; meanwhile they must stay where they are.

    One of which all was read may end meanwhile.
    """

    def __init__(self, split_ids: list[str], first_poll: int, expected: Expected, *, strictly: bool = True) -> None:
        self._split_ids = split_ids
        self._first_poll = first_poll
        self._ends = {split_id: records[-1][0] + 1 for split_id, records in expected.items()}
        self._strictly = strictly
        self.held: dict[str, int] = {}
        self.was_resumed = False

    def __call__(self, reader: SourceReader[Any], poll: int) -> None:
        positions = {split.split_id: split.position for split in reader.snapshot_state()}
        if poll == self._first_poll:
            reader.pause_or_resume_splits(self._split_ids, [])
            self.held = {split_id: positions[split_id] for split_id in self._split_ids if split_id in positions}
        elif self._first_poll < poll <= self._first_poll + _PAUSED_POLLS:
            now = {split_id: positions.get(split_id, self._ends[split_id]) for split_id in self.held}
            assert not self._strictly or now == self.held, "a split that is paused went on"
        if poll == self._first_poll + _PAUSED_POLLS:
            reader.pause_or_resume_splits([], self._split_ids)
            self.was_resumed = True
