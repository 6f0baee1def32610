"""Every record comes once, in its order, however it is read, and also what comes while the source is read."""

from __future__ import annotations

import pickle
import threading
import time
from typing import Final

import pyarrow as pa
import pytest

from alignment.combine import SplitStatus
from alignment.watermarks import MAX_WATERMARK
from streaming_source.api import Boundedness, InputStatus, SourceReaderContext
from streaming_source.coordinator.event_times.ahead_reader import columns_for_times
from streaming_source.tools.testing.conformance.connector import (
    ROWS,
    SECOND_US,
    START_US,
    ConnectorUnderTest,
    Expected,
    records_by_batch,
    times_of,
)
from streaming_source.tools.testing.harness import SourceHarness
from streaming_source.tools.testing.micro_batch import CollectingOutput, EmittedRecord

_THREADS_END_S: Final = 5.0


class ReadingSuite(ConnectorUnderTest):
    """Splits that are there when reading begins."""

    def test_one_split_is_read_from_its_first_record_to_its_last(self) -> None:
        expected = self.fill(1)
        harness = self.harness(self.bounded_source())
        harness.run()
        assert harness.records() == expected

    @pytest.mark.parametrize("readers", [1, 2, 5])
    def test_many_splits_are_read_each_in_its_order(self, readers: int) -> None:
        expected = self.fill(5)
        harness = self.harness(self.bounded_source(), readers=readers)
        harness.run()
        assert harness.records() == expected

    @pytest.mark.parametrize("max_rows", [1, 3, 7, 1000])
    def test_a_read_limit_changes_the_batches_and_not_the_records(self, max_rows: int) -> None:
        expected = self.fill(3)
        harness = self.harness(self.bounded_source(), max_rows=max_rows)
        batches = harness.run()
        assert max(len(batch.all_records) for batch in batches) <= max_rows
        assert harness.records() == expected

    def test_the_same_state_gives_the_same_batches(self) -> None:
        self.fill(3)
        source = self.bounded_source()
        first, second = (records_by_batch(self.harness(source, max_rows=5).run()) for _ in range(2))
        assert first == second

    def test_readers_without_a_split_have_nothing_to_do(self) -> None:
        expected = self.fill(2)
        harness = self.harness(self.bounded_source(), readers=8, min_rows=1_000_000)
        assert all(len(batch.records) <= 2 for batch in harness.run())
        assert harness.records() == expected

    @pytest.mark.parametrize("threads", [False, True], ids=["inline", "on threads"])
    def test_a_reader_that_is_given_no_split_ends_at_once(self, threads: bool) -> None:
        self.fill(1)
        source = self.bounded_source()
        reader = self.harness(source, threads=threads).create_reader(SourceReaderContext(source.schema()))
        try:
            reader.notify_no_more_splits()
            reader.start()
            status = reader.poll_next(CollectingOutput(self.strategy.timestamp_assigner))
        finally:
            reader.close()
        assert status is InputStatus.END_OF_INPUT

    def test_on_threads_the_same_is_read_and_no_thread_is_left(self) -> None:
        expected = self.fill(3)
        source = self.bounded_source()
        inline = records_by_batch(self.harness(source, max_rows=7).run())
        before = set(threading.enumerate())
        harness = self.harness(source, max_rows=7, threads=True)
        on_threads = records_by_batch(harness.run())
        harness.close()
        left = set(threading.enumerate()) - before
        until = time.monotonic() + _THREADS_END_S
        for thread in left:
            thread.join(max(until - time.monotonic(), 0))
        assert not [thread.name for thread in left if thread.is_alive()]
        assert on_threads == inline
        assert harness.records() == expected

    def test_only_the_columns_that_are_asked_for_come(self) -> None:
        expected = self.fill(2)
        source = self.bounded_source()
        whole = source.schema()
        needed = columns_for_times(whole, self.strategy.timestamp_assigner)
        others = [field for field in reversed(whole) if field.name not in needed.names]
        for asked in (needed, pa.schema([*others[:1], *needed])):
            harness = self.harness(source, schema=asked)
            harness.run()
            assert harness.records() == expected

    def test_a_pickled_copy_reads_the_same(self) -> None:
        expected = self.fill(3)
        source = self.bounded_source()
        copy = pickle.loads(pickle.dumps(source))
        assert (copy.name, copy.identity, copy.boundedness) == (source.name, source.identity, source.boundedness)
        assert copy.schema().equals(source.schema())
        harness = self.harness(copy)
        harness.run()
        assert harness.records() == expected

    # ---- the end -------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("readers", [1, 3])
    def test_a_bounded_source_ends_when_its_last_record_is_read(self, readers: int) -> None:
        expected = self.fill(3)
        source = self.bounded_source()
        assert source.boundedness is Boundedness.BOUNDED
        harness = self.harness(source, readers=readers, max_rows=5)
        finished: set[str] = set()
        while harness.run_batch() is not None:
            assert (harness.watermark == MAX_WATERMARK) <= (harness.records() == expected)
            ended = _splits_that_are(SplitStatus.FINISHED, harness)
            assert all(harness.records().get(split_id) == expected[split_id] for split_id in ended)
            finished |= ended
        assert finished == set(expected)
        assert harness.watermark == MAX_WATERMARK
        harness.restart()
        harness.run()
        assert harness.records() == expected
        assert harness.watermark == MAX_WATERMARK

    def test_a_source_that_does_not_end_announces_no_end(self) -> None:
        expected = self.fill(2)
        source = self.growing_source()
        assert source.boundedness is Boundedness.CONTINUOUS_UNBOUNDED
        harness = self.harness(source)
        self.run_until_read(harness, expected)
        assert harness.watermark < MAX_WATERMARK

    def test_available_now_reads_what_is_there_and_no_further(self) -> None:
        expected = self.fill(3)
        harness = self.harness(self.growing_source(), available_now=True, max_rows=7)
        harness.run()
        assert harness.records() == expected
        self.put(3, [time for _, time in expected[self.split_id(0)]])
        self.clock.advance("1 minute")
        harness.run()
        assert harness.records() == expected
        assert harness.watermark < MAX_WATERMARK

    @pytest.mark.parametrize("bounded", [True, False], ids=["bounded", "unbounded"])
    def test_a_batch_query_reads_all_there_is(self, bounded: bool) -> None:
        expected = self.fill(3)
        source = self.bounded_source() if bounded else self.growing_source()
        assert _by_split(self.harness(source).read_at_once()) == expected


def _by_split(records: list[EmittedRecord]) -> Expected:
    by_split: Expected = {}
    for split_id, position, time_us in sorted(records):
        by_split.setdefault(split_id, []).append((position, time_us))
    return by_split


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
        assert _splits_that_are(SplitStatus.IDLE, harness) == set()
        held = harness.watermark
        # One goes on, the other has nothing any more.
        for step in range(1, 10):
            self.put(0, times_of(0, 1, 10 * ROWS + step))
            for _ in range(5):
                self.clock.advance("1 second")
                harness.run()
        self.run_until_read(harness, self.expected())
        assert _splits_that_are(SplitStatus.IDLE, harness) == {second}
        assert harness.watermark == _watermarks(harness)[first] > held
        # It comes back with records of which the first ones are late.
        announced = harness.watermark
        self.put(1, [*times_of(1, 3, ROWS), *times_of(1, 3, 20 * ROWS)])
        self.run_until_read(harness, self.expected())
        assert _splits_that_are(SplitStatus.IDLE, harness) == set()
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
        assert _splits_that_are(SplitStatus.IDLE, harness) == set(expected)
        announced = harness.watermark
        assert announced == max(_watermarks(harness).values())
        harness.restart()
        harness.run()
        assert (_splits_that_are(SplitStatus.IDLE, harness), harness.watermark) == (set(expected), announced)
        self.put(0, times_of(0, 2, 100))
        self.run_until_read(harness, self.expected())
        assert _splits_that_are(SplitStatus.IDLE, harness) == {self.split_id(1)}

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


def _splits_that_are(status: SplitStatus, harness: SourceHarness) -> set[str]:
    table = harness.state.table
    return {split_id for split_id, its in zip(table.split_ids, table.statuses, strict=True) if its == status}
