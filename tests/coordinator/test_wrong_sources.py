"""Sources that break a rule of their interface: an error names it, and no record is lost in silence."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from streaming_source.api import (
    Fetching,
    RecordBlock,
    RecordsBySplits,
    RecordSplit,
    SourceReaderContext,
    SplitReader,
    SplitsAddition,
    SplitsChange,
)
from streaming_source.exceptions import SourceError
from streaming_source.testing import SourceHarness, TestingSource
from tests.coordinator.support import SCHEMA, STRATEGY, coordinator

Positions = Callable[[int], Any]
"""Of three records, by the number of the fetch."""


class Numbering(SplitReader[RecordSplit]):
    """Three records a fetch, with the positions that a test gives them."""

    def __init__(self, positions: Positions, fetches: int) -> None:
        self.positions = positions
        self.left = list(range(fetches))
        self.split_ids: list[str] = []

    def handle_splits_changes(self, change: SplitsChange[RecordSplit]) -> None:
        if isinstance(change, SplitsAddition):
            self.split_ids += [split.split_id for split in change.splits]
            del self.left[: change.splits[0].position // 3]

    def fetch(self) -> RecordsBySplits[RecordBlock]:
        if not self.left:
            return RecordsBySplits(finished_splits=self.split_ids)
        number = self.left.pop(0)
        times = pa.array(np.arange(3) + 3 * number)
        batch = pa.record_batch([times.cast(SCHEMA.field(0).type), times], schema=SCHEMA)
        return RecordsBySplits({self.split_ids[0]: [RecordBlock(batch, self.positions(number))]})


class Numbered(TestingSource):
    """One split, of two fetches."""

    def __init__(self, positions: Positions) -> None:
        super().__init__({"a": []}, fetching=Fetching.per_split(), bounded=True)
        self.positions = positions
        self.has_source_timestamps = False

    def create_split_reader(self, context: SourceReaderContext) -> SplitReader[RecordSplit]:
        return Numbering(self.positions, 2)


def numbered(positions: Positions) -> SourceHarness:
    return SourceHarness(Numbered(positions), STRATEGY.with_timestamp_assigner("ts"))


def test_positions_may_be_numbers_of_numpy_and_lists() -> None:
    for positions in (lambda n: np.int32(3 * n), lambda n: [3 * n, 3 * n + 1, 3 * n + 2]):
        harness = numbered(positions)
        harness.run()
        assert [position for position, _ in harness.records()["a"]] == [0, 1, 2, 3, 4, 5]
        harness.close()


@pytest.mark.parametrize(
    ("positions", "error"),
    [
        (lambda n: np.array([2, 1, 0]) + 3 * n, r"split 'a': position 1 follows position 2: .*ORDER BY"),
        (lambda n: np.array([0, 0, 1]) + 3 * n, r"split 'a': position 0 follows position 0: "),
        (lambda n: 2 * n, r"split 'a': position 2 was fetched where 3 is the next one: "),
        (lambda n: np.array([0, 2, 3]) + 3 * n, r"split 'a': position 3 was fetched where 4 is the next one: "),
        (lambda n: 3 * n - 3, r"split 'a': position -3 was fetched where 0 is the next one: "),
        (lambda n: np.array([0, 1]) + 3 * n, r"split 'a': 3 records have 2 positions; give one for each"),
        (lambda n: np.arange(3) + 0.5, r"positions are whole numbers; give that of the first"),
        (lambda n: None, r"RecordBlock\(positions=None\): positions are whole numbers"),
    ],
    ids=["falling", "twice", "overlapping", "overlapping with gaps", "before the split", "too few", "halves", "none"],
)
def test_positions_that_do_not_rise_are_refused(positions: Positions, error: str) -> None:
    harness = numbered(positions)
    with pytest.raises(SourceError, match=error):
        harness.run()
    harness.close()


class Nothing(Numbering):
    def fetch(self) -> Any:
        return None


def test_a_fetch_that_returns_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = numbered(lambda n: 3 * n)
    monkeypatch.setattr(Numbered, "create_split_reader", lambda source, context: Nothing(source.positions, 1))
    with pytest.raises(SourceError, match=r"Nothing\.fetch returned None: .* return RecordsBySplits\(\)"):
        harness.run()
    harness.close()


@pytest.mark.parametrize(
    ("listed", "error"),
    [
        (None, r"discovery of splits returned None: .* an empty one"),
        (["a"], r"discovery of splits returned 'a': "),
        ([RecordSplit(7)], r"RecordSplit\(split_id=7, .* text"),  # type: ignore[arg-type]
        ([RecordSplit("a"), RecordSplit("a", stop=5)], r"two of the id 'a', .* an id of its own"),
        ([RecordSplit("a", -1)], r"split 'a' was assigned at position -1 with the stop None: "),
        ([RecordSplit("a", 5, 4)], r"split 'a' was assigned at position 5 with the stop 4: "),
    ],
    ids=["none", "names", "a number", "one id twice", "a negative position", "a stop before its position"],
)
def test_what_is_no_listing_of_splits_is_refused(listed: Any, error: str) -> None:
    class Listing(TestingSource):
        def discover(self) -> Iterable[RecordSplit]:
            found: Iterable[RecordSplit] = listed
            return found

    planning = coordinator(Listing({"a": [1]}))
    planning.restore(planning.state)
    with pytest.raises(SourceError, match=error):
        planning.advance()
    planning.close()
