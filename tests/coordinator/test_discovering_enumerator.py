"""The enumerator for sources that can list their splits: static if it looks once, continuous if again and again."""

from __future__ import annotations

import pytest

from streaming_source.api import DiscoveredSplits, DiscoveringSplitEnumerator, RecordSplit
from streaming_source.testing import SourceHarness, TestingEnumeratorContext, TestingSource
from tests.coordinator.support import STRATEGY, ids

Splits = TestingEnumeratorContext[RecordSplit]


class Listing:
    """What there is, and an enumerator that looks."""

    def __init__(
        self, *there: str, continuous: bool, readers: int = 3, checkpoint: DiscoveredSplits[RecordSplit] | None = None
    ) -> None:
        self.there = list(there)
        self.context: Splits = TestingEnumeratorContext(parallelism=readers)
        for reader in range(readers):
            self.context.register_reader(reader)
        self.enumerator = DiscoveringSplitEnumerator(
            self.context,
            lambda: [RecordSplit(split_id) for split_id in self.there],
            period_seconds=1.0 if continuous else None,
            checkpoint=checkpoint,
        )
        self.enumerator.start()

    def assigned(self) -> dict[int, list[str]]:
        return {reader: ids(splits) for reader, splits in self.context.assigned.items()}

    def unassigned(self) -> list[str]:
        return ids(self.enumerator.snapshot_state(1).unassigned)


def test_fs_02_a_reader_that_waits_is_given_the_split_that_is_found() -> None:
    listing = Listing(continuous=True)
    listing.context.run_calls()
    listing.enumerator.handle_split_request(2)
    listing.there.append("a")
    listing.context.run_calls()
    assert listing.assigned() == {2: ["a"]}
    assert listing.unassigned() == []


def test_fs_04_what_nobody_asked_for_is_in_the_snapshot() -> None:
    listing = Listing("a", continuous=False)
    listing.context.run_calls()
    assert listing.assigned() == {}
    assert listing.unassigned() == ["a"]


def test_fs_06_a_reader_that_is_not_registered_is_given_nothing() -> None:
    listing = Listing("a", continuous=False)
    listing.context.run_calls()
    listing.enumerator.handle_split_request(33)
    assert listing.assigned() == {}
    assert listing.context.without_more == set()
    assert listing.unassigned() == ["a"]


def test_fs_16_all_splits_of_a_new_file_are_assigned() -> None:
    listing = Listing("old", continuous=True)
    listing.context.run_calls()
    listing.there += ["new#0", "new#1"]
    for reader in (0, 1, 2):
        listing.enumerator.handle_split_request(reader)
    listing.context.run_calls()
    assert listing.assigned() == {0: ["old"], 1: ["new#0"], 2: ["new#1"]}


def test_fs_16_and_all_of_them_are_read() -> None:
    source = TestingSource({"old": [1]})
    reading = SourceHarness(source, STRATEGY, clock=source.clock)
    reading.run()
    source.go_on("new#0", 2, 3)
    source.go_on("new#1", 4)
    source.clock.advance("2 seconds")
    reading.run()
    assert {split: len(records) for split, records in reading.records().items()} == {"old": 1, "new#0": 2, "new#1": 1}


def test_requests_are_heard_in_their_order_and_one_of_each_reader() -> None:
    listing = Listing(continuous=True)
    for reader in (2, 0, 2, 1):
        listing.enumerator.handle_split_request(reader)
    listing.there += ["a", "b", "c", "d"]
    listing.context.run_calls()
    assert listing.assigned() == {2: ["a"], 0: ["b"], 1: ["c"]}
    assert listing.unassigned() == ["d"]


def test_who_looks_once_says_when_there_is_no_more_and_who_looks_again_never() -> None:
    for continuous in (False, True):
        listing = Listing("a", continuous=continuous)
        listing.context.run_calls()
        for _ in range(2):
            listing.enumerator.handle_split_request(0)
        assert listing.context.without_more == (set() if continuous else {0})


def test_before_the_first_look_nobody_is_told_that_there_is_no_more() -> None:
    listing = Listing("a", continuous=False)
    listing.enumerator.handle_split_request(0)
    assert listing.context.without_more == set()
    listing.context.run_calls()
    assert listing.assigned() == {0: ["a"]}


def test_a_split_that_has_gone_is_forgotten_and_new_again_when_it_comes_back() -> None:
    listing = Listing("a", continuous=True)
    listing.context.run_calls()
    listing.enumerator.handle_split_request(0)
    listing.there.remove("a")
    listing.context.run_calls()
    assert listing.enumerator.snapshot_state(1).known == ()
    listing.there.append("a")
    listing.context.run_calls()
    assert listing.unassigned() == ["a"]


def test_splits_that_come_back_are_the_first_to_be_assigned_again_and_in_their_order() -> None:
    listing = Listing("a", "b", "c", continuous=False, readers=1)
    listing.context.run_calls()
    for _ in range(2):
        listing.enumerator.handle_split_request(0)
    back = listing.context.assigned.pop(0)
    del listing.context.readers[0]
    listing.enumerator.add_splits_back(back, 0)
    assert listing.unassigned() == ["a", "b", "c"]


@pytest.mark.parametrize("continuous", [False, True])
def test_after_a_restart_what_waited_is_assigned_and_what_was_assigned_is_not(continuous: bool) -> None:
    first = Listing("a", "b", continuous=continuous)
    first.context.run_calls()
    first.enumerator.handle_split_request(0)
    restored = Listing("a", "b", "c", continuous=continuous, checkpoint=first.enumerator.snapshot_state(1))
    restored.context.run_calls()
    for reader in range(3):
        restored.enumerator.handle_split_request(reader)
    assert restored.assigned() == {0: ["b"], 1: ["c"]} if continuous else {0: ["b"]}


def test_an_error_of_the_listing_fails_the_query() -> None:
    listing = Listing(continuous=True)

    def fail() -> list[RecordSplit]:
        raise OSError("no such place")

    listing.enumerator._discover = fail
    with pytest.raises(OSError, match="no such place"):
        listing.context.run_calls()
