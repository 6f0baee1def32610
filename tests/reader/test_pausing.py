from __future__ import annotations

from typing import Any

import pytest

from streaming_source.api import InputStatus, RecordBlock, RecordsBySplits, SourceReaderContext
from streaming_source.exceptions import UnsupportedOperationError
from streaming_source.reader import (
    AdaptiveFetcherManager,
    PerSplitFetcherManager,
    SingleThreadFetcherManager,
    SourceReaderBase,
    SplitFetcherTask,
)
from tests.reader.chaos import EndsAt
from tests.reader.numbers import (
    SCHEMA,
    WAIT_S,
    NumberSplitReader,
    Output,
    PlainSplitReader,
    Readers,
    Split,
    base_reader,
    block,
    poll_until_emitted,
    read_to_end,
)

Base = SourceReaderBase[Split, RecordBlock]
ALIGNED = SourceReaderContext(SCHEMA, pauses_splits=True)
UNALIGNED = SourceReaderContext(SCHEMA, pauses_splits=True, allow_unaligned_source_splits=True)


class Note(SplitFetcherTask):
    """Tells the reader that all that was asked of a fetcher before is done."""

    def __init__(self, reader: Base) -> None:
        self._queue = reader._fetchers.queue
        self.is_done = False

    def run(self) -> bool:
        self.is_done = True
        self._queue.notify_available()
        return True


def drain(reader: Base, output: Output) -> None:
    """Let the fetchers do what they were asked to, and poll until nothing is left."""
    notes = []
    for fetcher in reader._fetchers._live.values():
        notes.append(Note(reader))
        fetcher.enqueue(notes[-1])
    while (status := reader.poll_next(output)) is not InputStatus.NOTHING_AVAILABLE or not all(
        note.is_done for note in notes
    ):
        if status is InputStatus.NOTHING_AVAILABLE:
            reader.is_available().result(WAIT_S)


@pytest.mark.parametrize(
    "manager",
    [
        pytest.param(lambda: SingleThreadFetcherManager(Readers(NumberSplitReader)), id="one thread"),
        pytest.param(lambda: PerSplitFetcherManager(Readers(NumberSplitReader)), id="per split"),
        pytest.param(lambda: PerSplitFetcherManager(Readers(PlainSplitReader)), id="per split, no support"),
        pytest.param(lambda: AdaptiveFetcherManager(Readers(NumberSplitReader)), id="adaptive"),
    ],
)
def test_nothing_of_a_paused_split_is_emitted_until_it_is_resumed_and_then_all(manager: Any) -> None:
    reader, output = base_reader(manager(), context=ALIGNED), Output()
    reader.start()
    reader.add_splits([Split("ahead", 0, 40), Split("behind", 0, 40)])
    poll_until_emitted(reader, output, 6)
    reader.pause_or_resume_splits(["ahead"], [])
    before = len(output.of("ahead"))
    while len(output.of("behind")) < 40:
        if reader.poll_next(output) is InputStatus.NOTHING_AVAILABLE:
            reader.is_available().result(WAIT_S)
    assert len(output.of("ahead")) == before
    reader.notify_no_more_splits()
    drain(reader, output)
    assert Split("ahead", before, 40) in reader.snapshot_state()
    assert "ahead" not in output.released
    reader.pause_or_resume_splits([], ["ahead"])
    read_to_end(reader, output)
    assert output.of("ahead") == list(range(40))
    assert output.of("behind") == list(range(40))
    assert sorted(output.released) == ["ahead", "behind"]
    reader.close()


def test_a_split_reader_is_told_what_to_pause_and_to_resume() -> None:
    readers = Readers()
    reader, output = base_reader(readers), Output()
    reader.add_splits([Split("a", 0, 1000), Split("b", 0, 1000)])
    reader.pause_or_resume_splits(["a"], [])
    reader.pause_or_resume_splits(["a", "b"], ["a"])
    drain(reader, output)
    reader.close()
    told = [entry for entry in readers.made[0].log if entry[1]]
    assert told[:4] == [("add", ["a", "b"]), ("pause", ["a"]), ("pause", ["b"]), ("resume", ["a"])]
    assert output.of("b") == []


def test_a_split_that_is_paused_before_it_is_added_is_paused_from_its_first_record_on() -> None:
    readers = Readers()
    reader, output = base_reader(readers), Output()
    reader.pause_or_resume_splits(["late"], [])
    reader.add_splits([Split("late", 0, 4), Split("other", 0, 4)])
    reader.notify_no_more_splits()
    poll_until_emitted(reader, output, 4)
    drain(reader, output)
    assert output.of("late") == []
    reader.pause_or_resume_splits([], ["late"])
    read_to_end(reader, output)
    assert output.of("late") == [0, 1, 2, 3]
    assert readers.made[0].log[:2] == [("add", ["late", "other"]), ("pause", ["late"])]
    reader.close()


def test_sp_14_pausing_what_nobody_reads_is_no_error_and_no_call() -> None:
    readers = Readers()
    reader, output = base_reader(readers), Output()
    reader.add_splits([Split("a", 0, 4)])
    reader.pause_or_resume_splits(["unknown"], ["never heard of"])
    reader.notify_no_more_splits()
    read_to_end(reader, output)
    assert [kind for kind, _ in readers.made[0].log] == ["add"]
    reader.close()


def test_a_finished_split_is_not_paused_any_more_when_its_id_comes_back() -> None:
    reader, output = base_reader(Readers()), Output()
    reader.add_splits([Split("a", 0, 2)])
    poll_until_emitted(reader, output, 2)
    reader.pause_or_resume_splits(["a"], [])
    while not output.released:
        reader.is_available().result(WAIT_S)
        reader.poll_next(output)
    output.released.clear()
    reader.add_splits([Split("a", 2, 4)])
    reader.notify_no_more_splits()
    read_to_end(reader, output)
    assert output.of("a") == [0, 1, 2, 3]
    reader.close()


def test_a_reader_whose_splits_are_all_paused_waits_without_fetching() -> None:
    class Counting(PlainSplitReader):
        fetches = 0

        def fetch(self) -> Any:
            self.fetches += 1
            return super().fetch()

    readers = Readers(Counting)
    reader, output = base_reader(readers), Output()
    reader.pause_or_resume_splits(["a", "b"], [])
    reader.add_splits([Split("a", 0, 2), Split("b", 0, 2)])
    reader.notify_no_more_splits()
    drain(reader, output)
    assert not reader.is_available().done()
    assert readers.made[0].fetches == 0
    reader.pause_or_resume_splits([], ["a", "b"])
    read_to_end(reader, output)
    assert sorted(output.emitted) == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    reader.close()


def test_what_is_held_comes_before_what_is_fetched_later_also_when_paused_again_half_way() -> None:
    records = RecordsBySplits({"a": [block(n, n + 1) for n in range(6)], "b": [block(0, 1)]})
    script = iter([records])

    class Once(NumberSplitReader):
        def fetch(self) -> Any:
            return next(script, None) or super().fetch()

    reader, output = base_reader(Readers(Once)), Output()
    reader.add_splits([Split("a", 6, 10), Split("b", 1, 3)])
    poll_until_emitted(reader, output, 2)
    reader.pause_or_resume_splits(["a"], [])
    poll_until_emitted(reader, output, 3)
    assert output.emitted == [("a", 0), ("a", 1), ("b", 0)]
    drain(reader, output)
    waiting = reader.is_available()
    assert not waiting.done()
    reader.pause_or_resume_splits([], ["a"])
    assert waiting.done()
    reader.poll_next(output)
    reader.pause_or_resume_splits(["a"], [])
    drain(reader, output)
    assert output.of("a") == [0, 1, 2]
    reader.pause_or_resume_splits([], ["a"])
    reader.notify_no_more_splits()
    read_to_end(reader, output)
    # 6 to 9 were in the queue when 0 to 5 were held.
    assert output.of("a") == list(range(10))
    reader.close()


def test_a_batch_with_held_elements_is_recycled_when_they_are_out() -> None:
    class Telling(RecordsBySplits[RecordBlock]):
        recycled = 0

        def recycle(self) -> None:
            self.recycled += 1

    records = Telling({"a": [block(0, 1), block(1, 2)]}, finished_splits={"a"})

    class Once(NumberSplitReader):
        def fetch(self) -> Any:
            self.splits.clear()
            return records

    readers = Readers(Once)
    reader, output = base_reader(readers), Output()
    reader.add_splits([Split("a")])
    poll_until_emitted(reader, output, 1)
    reader.pause_or_resume_splits(["a"], [])
    reader.notify_no_more_splits()
    drain(reader, output)
    assert (records.recycled, output.released) == (0, [])
    assert [split.position for split in reader.snapshot_state()] == [1]
    reader.pause_or_resume_splits([], ["a"])
    read_to_end(reader, output)
    assert (records.recycled, output.released) == (1, ["a"])
    assert readers.made[0].closed.wait(WAIT_S)
    reader.close()


def test_what_is_held_of_a_split_that_ends_by_a_record_is_dropped_and_its_batches_are_recycled() -> None:
    class Telling(RecordsBySplits[RecordBlock]):
        recycled = 0

        def recycle(self) -> None:
            self.recycled += 1

    batches = [Telling({"a": [block(0, 2), block(2, 4)], "b": [block(0, 1)]}), Telling({"a": [block(4, 6)]})]
    script = iter(batches)

    class Twice(NumberSplitReader):
        def fetch(self) -> Any:
            return next(script, None) or super().fetch()

    reader, output = base_reader(Readers(Twice), end_of_stream=EndsAt(1)), Output()
    reader.pause_or_resume_splits(["a"], [])
    # Wanted paused, and fetched all the same: as it is when the wish comes a moment too late.
    reader.add_splits([Split("a", 6), Split("b", 1, 1)])
    drain(reader, output)
    if len(reader._held._elements["a"]) < 3:
        pytest.fail("the second batch was not fetched")
    reader.pause_or_resume_splits([], ["a"])
    reader.notify_no_more_splits()
    read_to_end(reader, output)
    assert output.emitted == [("b", 0), ("a", 0)]
    assert [records.recycled for records in batches] == [1, 1]
    reader.close()


# ---- who cannot pause --------------------------------------------------------------------------------------------


def test_a_reader_that_cannot_pause_refuses_to_start_where_splits_will_be_paused() -> None:
    readers = Readers(PlainSplitReader)
    reader = base_reader(readers, context=ALIGNED)
    with pytest.raises(UnsupportedOperationError, match=r"pause_or_resume_splits.*per_split.*allowUnaligned"):
        reader.start()
    reader.close()
    assert readers.all_closed()


@pytest.mark.parametrize(
    ("manager", "make", "context"),
    [
        (SingleThreadFetcherManager, NumberSplitReader, ALIGNED),
        (PerSplitFetcherManager, PlainSplitReader, ALIGNED),
        (SingleThreadFetcherManager, PlainSplitReader, UNALIGNED),
        (SingleThreadFetcherManager, PlainSplitReader, SourceReaderContext(SCHEMA)),
    ],
)
def test_one_that_can_or_need_not_starts_with_the_split_reader_that_was_looked_at(
    manager: Any, make: Any, context: SourceReaderContext
) -> None:
    readers = Readers(make)
    reader, output = base_reader(manager(readers), context=context), Output()
    reader.start()
    reader.add_splits([Split("a", 0, 2)])
    reader.notify_no_more_splits()
    read_to_end(reader, output)
    reader.close()
    assert len(readers.made) == 1


def test_pausing_one_of_two_splits_that_are_read_together_is_refused_without_support() -> None:
    reader = base_reader(Readers(PlainSplitReader))
    reader.add_splits([Split("a"), Split("b")])
    with pytest.raises(UnsupportedOperationError, match="splits 'a' cannot be paused while others are read"):
        reader.pause_or_resume_splits(["a"], [])
    reader.close()


def test_adding_a_split_to_one_that_is_paused_is_refused_without_support() -> None:
    reader = base_reader(Readers(PlainSplitReader))
    reader.add_splits([Split("a")])
    reader.pause_or_resume_splits(["a"], [])
    with pytest.raises(UnsupportedOperationError, match="splits 'a' cannot be paused"):
        reader.add_splits([Split("b")])
    reader.close()


def test_unaligned_splits_run_ahead_if_they_may_and_cannot_be_paused() -> None:
    reader, output = base_reader(Readers(PlainSplitReader), context=UNALIGNED), Output()
    reader.start()
    reader.add_splits([Split("a", 0, 20), Split("b", 0, 20)])
    reader.notify_no_more_splits()
    reader.pause_or_resume_splits(["a"], [])
    read_to_end(reader, output)
    assert output.of("a") == output.of("b") == list(range(20))
    reader.close()


def test_unaligned_splits_are_paused_if_they_can_be() -> None:
    reader, output = base_reader(Readers(NumberSplitReader), context=UNALIGNED), Output()
    reader.pause_or_resume_splits(["a"], [])
    reader.add_splits([Split("a", 0, 20), Split("b", 0, 20)])
    poll_until_emitted(reader, output, 20)
    drain(reader, output)
    assert output.of("a") == []
    reader.pause_or_resume_splits([], ["a"])
    reader.notify_no_more_splits()
    read_to_end(reader, output)
    assert output.of("a") == list(range(20))
    reader.close()


def test_a_moving_split_that_is_paused_half_way_moves_when_it_is_resumed() -> None:
    readers = Readers(lambda: NumberSplitReader(per_fetch=1))
    manager: AdaptiveFetcherManager[Split, RecordBlock] = AdaptiveFetcherManager(readers, max_fetchers=2)
    reader, output = base_reader(manager), Output()
    reader.add_splits([Split("a", 0, 30), Split("b", 0, 30)])
    poll_until_emitted(reader, output, 4)
    manager._fetchers = 2
    manager.remove_splits(["b"])
    manager._moving.add("b")
    reader.pause_or_resume_splits(["b"], [])
    before = len(output.of("b"))
    reader.notify_no_more_splits()
    while len(output.of("a")) < 30:
        if reader.poll_next(output) is InputStatus.NOTHING_AVAILABLE:
            reader.is_available().result(WAIT_S)
    drain(reader, output)
    assert len(output.of("b")) == before
    reader.pause_or_resume_splits([], ["b"])
    read_to_end(reader, output)
    assert output.of("b") == list(range(30))
    assert output.created == output.released == ["a", "b"]
    reader.close()
