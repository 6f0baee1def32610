"""Every record comes once, in its order, however it is read."""

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
from streaming_source.testing.conformance.connector import ConnectorUnderTest, Expected, records_by_batch
from streaming_source.testing.output import CollectingOutput, EmittedRecord

__all__ = ["ReadingSuite"]

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
            table = harness.state.table
            ended = {i for i, status in zip(table.split_ids, table.statuses, strict=True) if _is_finished(status)}
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


def _is_finished(status: int) -> bool:
    return status == SplitStatus.FINISHED


def _by_split(records: list[EmittedRecord]) -> Expected:
    by_split: Expected = {}
    for split_id, position, time_us in sorted(records):
        by_split.setdefault(split_id, []).append((position, time_us))
    return by_split
