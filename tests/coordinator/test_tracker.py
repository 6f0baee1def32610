"""Which splits come back when reading goes on from an earlier state."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streaming_source.api import RecordSplit
from streaming_source.coordinator.enumerator_host import AssignmentTracker
from tests.coordinator.support import ids


def assign(tracker: AssignmentTracker[RecordSplit], readers: int, start: int) -> None:
    """Reader i of n is assigned i + 1 new splits, numbered from `start` on."""
    for reader in range(readers):
        tracker.record({reader: [RecordSplit(str(start + number)) for number in range(reader + 1)]})
        start += reader + 1


def known(tracker: AssignmentTracker[RecordSplit]) -> dict[int, dict[int, list[str]]]:
    return {
        checkpoint: {reader: ids(splits) for reader, splits in by_reader.items()}
        for checkpoint, by_reader in tracker.by_checkpoint.items()
    }


def two_checkpoints() -> AssignmentTracker[RecordSplit]:
    tracker: AssignmentTracker[RecordSplit] = AssignmentTracker()
    assign(tracker, 2, 0)
    tracker.on_checkpoint(100)
    assign(tracker, 2, 3)
    tracker.on_checkpoint(101)
    return tracker


def test_a_checkpoint_takes_over_what_was_assigned_before_it() -> None:
    tracker: AssignmentTracker[RecordSplit] = AssignmentTracker()
    assign(tracker, 3, 0)
    assert {reader: ids(splits) for reader, splits in tracker.uncheckpointed.items()} == {
        0: ["0"],
        1: ["1", "2"],
        2: ["3", "4", "5"],
    }
    tracker.on_checkpoint(100)
    assert dict(tracker.uncheckpointed) == {}
    assert known(tracker) == {100: {0: ["0"], 1: ["1", "2"], 2: ["3", "4", "5"]}}


def test_at_04_what_is_committed_is_forgotten_and_what_came_later_is_not() -> None:
    tracker = two_checkpoints()
    tracker.on_complete(100)
    assert known(tracker) == {101: {0: ["3"], 1: ["4", "5"]}}


def test_at_06_what_was_assigned_after_the_checkpoint_is_given_back() -> None:
    tracker = two_checkpoints()
    assert ids(tracker.take_back(0, 100)) == ["3"]
    assert known(tracker) == {100: {0: ["0"], 1: ["1", "2"]}, 101: {1: ["4", "5"]}}


def test_what_is_in_no_checkpoint_is_given_back_last() -> None:
    tracker = two_checkpoints()
    assign(tracker, 1, 6)
    assert ids(tracker.take_back(0, 99)) == ["0", "3", "6"]
    assert tracker.take_back(0, 99) == []


def test_nobody_is_given_back_what_another_reader_has() -> None:
    tracker = two_checkpoints()
    assert tracker.take_back(7, 0) == []
    assert ids(tracker.take_back(1, 0)) == ["1", "2", "4", "5"]


def test_an_empty_assignment_leaves_no_trace() -> None:
    tracker: AssignmentTracker[RecordSplit] = AssignmentTracker()
    tracker.record({0: []})
    assert dict(tracker.uncheckpointed) == {}


def test_checkpoints_that_are_given_up_are_forgotten_and_named() -> None:
    tracker = two_checkpoints()
    tracker.on_checkpoint(102)
    assert tracker.forget_after(100) == [101, 102]
    assert list(known(tracker)) == [100]


STEPS = st.lists(
    st.tuples(st.just("assign"), st.integers(0, 2), st.integers(0, 3))
    | st.tuples(st.sampled_from(["checkpoint", "complete", "back", "forget"]), st.integers(0, 2), st.integers(0, 6)),
    max_size=25,
)


@given(STEPS)
def test_it_agrees_with_a_list_of_all_assignments(steps: list[tuple[str, int, int]]) -> None:
    tracker: AssignmentTracker[RecordSplit] = AssignmentTracker()
    # (split, reader, checkpoint that has it or None), as they were assigned.
    naive: list[tuple[str, int, int | None]] = []
    latest = completed = new = 0
    for step, reader, number in steps:
        if step == "assign":
            splits = [RecordSplit(str(new + i)) for i in range(number)]
            new += number
            tracker.record({reader: splits})
            naive += [(split.split_id, reader, None) for split in splits]
        elif step == "checkpoint":
            latest += 1
            tracker.on_checkpoint(latest)
            naive = [(split, of, latest if at is None else at) for split, of, at in naive]
        elif step == "complete":
            completed = max(completed, min(number, latest))
            tracker.on_complete(completed)
            naive = [entry for entry in naive if entry[2] is None or entry[2] > completed]
        elif step == "back":
            back = [entry for entry in naive if entry[1] == reader and (entry[2] is None or entry[2] > number)]
            assert ids(tracker.take_back(reader, number)) == [split for split, _, _ in back]
            naive = [entry for entry in naive if entry not in back]
        else:
            tracker.forget_after(number)
            naive = [entry for entry in naive if entry[2] is None or entry[2] <= number]
            latest = max(completed, min(latest, number))
        held = [split for by_reader in known(tracker).values() for splits in by_reader.values() for split in splits]
        assert sorted(held) == sorted(split for split, _, at in naive if at is not None)
