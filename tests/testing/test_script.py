"""A source that does what a test wrote down: each mark, read by the planner and by readers."""

from __future__ import annotations

import pytest

from alignment import WatermarkStrategy
from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import MAX_WATERMARK
from streaming_source.testing import (
    ABORT,
    EOF,
    Abort,
    FakeClock,
    Gap,
    Pause,
    SourceHarness,
    TestingAbort,
    TestingSource,
)
from streaming_source.tools.testing.source import SplitScript

STRATEGY = WatermarkStrategy.for_bounded_out_of_orderness("10 us")


def harness(source: TestingSource, **options: object) -> SourceHarness:
    return SourceHarness(source, STRATEGY, clock=source.clock, **options)  # type: ignore[arg-type]


def test_records_are_numbered_and_have_the_event_times_that_were_written_down() -> None:
    source = TestingSource({"a": [5, 3, None, 8], "b": [1]}, bounded=True)
    reading = harness(source)
    reading.run()
    assert reading.records() == {"a": [(0, 5), (1, 3), (2, NO_TIMESTAMP), (3, 8)], "b": [(0, 1)]}
    assert reading.records() == source.expected()


def test_a_gap_leaves_positions_without_a_record() -> None:
    reading = harness(TestingSource({"a": [1, Gap(5), 2, Gap(1), Gap(2), 3]}, bounded=True), max_rows=1)
    reading.run()
    assert reading.records() == {"a": [(0, 1), (6, 2), (10, 3)]}


def test_a_gap_in_front_is_no_part_of_what_is_read() -> None:
    reading = harness(TestingSource({"a": [Gap(4), 7]}, bounded=True))
    reading.run()
    assert reading.records() == {"a": [(4, 7)]}


def test_what_follows_a_pause_is_there_when_the_clock_says_so() -> None:
    source = TestingSource({"a": [1, Pause("5 seconds"), 2, Pause("5 seconds"), 3]})
    reading = harness(source)
    reading.run()
    assert reading.records() == {"a": [(0, 1)]}
    source.clock.advance("4 seconds")
    assert reading.run() == []
    source.clock.advance("1 second")
    reading.run()
    assert reading.records() == {"a": [(0, 1), (1, 2)]}
    source.clock.advance("5 seconds")
    reading.run()
    assert reading.records() == {"a": [(0, 1), (1, 2), (2, 3)]}


def test_a_split_ends_where_it_says_so_and_others_go_on() -> None:
    source = TestingSource({"a": [100, EOF], "b": [200, Pause("1 minute"), 300]})
    reading = harness(source)
    reading.run()
    assert reading.watermark == 200 - 10 - 1
    assert [split.split_id for split in reading.state.splits] == ["a", "b"]
    source.clock.advance("1 minute")
    reading.run()
    assert [split.split_id for split in reading.state.splits] == ["b"]
    assert reading.watermark == 300 - 10 - 1


def test_the_end_may_come_later_than_the_last_record() -> None:
    source = TestingSource({"a": [100, Pause("1 minute"), EOF], "b": [200]})
    reading = harness(source)
    reading.run()
    assert reading.watermark == 100 - 10 - 1
    source.clock.advance("1 minute")
    reading.run()
    assert reading.watermark == 200 - 10 - 1


def test_a_bounded_source_ends_without_a_mark() -> None:
    reading = harness(TestingSource({"a": [1, 2], "b": []}, bounded=True))
    reading.run()
    assert reading.watermark == MAX_WATERMARK


def test_nothing_follows_the_end() -> None:
    with pytest.raises(ValueError, match="5 follows the end of its split"):
        TestingSource({"a": [1, EOF, 5]})
    source = TestingSource({"a": [1]}, bounded=True)
    with pytest.raises(ValueError, match="2 follows the end of its split"):
        source.go_on("a", 2)


def test_an_abort_fails_the_plan_and_only_once() -> None:
    source = TestingSource({"a": [1, 2, 3, ABORT, 4, 5]}, bounded=True)
    reading = harness(source)
    with pytest.raises(TestingAbort, match="before its record 3"):
        reading.run()
    reading.restart(loses_plan=True)
    reading.run()
    assert reading.records() == source.expected()


def test_an_abort_at_the_second_encounter_fails_the_reader_and_the_next_one_reads_the_same() -> None:
    source = TestingSource({"a": [1, 2, 3, Abort(2), 4, 5]}, bounded=True)
    reading = harness(source)
    assert reading.plan()
    with pytest.raises(TestingAbort):
        reading.read()
    reading.commit(reading.read())
    assert reading.records() == source.expected()


def test_records_before_an_abort_are_fetched_first() -> None:
    source = TestingSource({"a": [1, 2, 3, Abort(2), 4]}, records_per_fetch=10)
    reading = harness(source)
    assert reading.plan()
    polls: list[list[int]] = []
    with pytest.raises(TestingAbort):
        reading.read(lambda reader, poll: polls.append([split.position for split in reader.snapshot_state()]))
    assert polls[-1] == [3]


def test_a_split_appears_when_the_clock_says_so() -> None:
    source = TestingSource({"a": [1], "b": [2]}, appears={"b": "5 seconds"})
    reading = harness(source)
    reading.run()
    assert reading.records() == {"a": [(0, 1)]}
    source.clock.advance("5 seconds")
    reading.run()
    assert reading.records() == source.expected()


def test_a_script_goes_on_while_it_is_read() -> None:
    source = TestingSource({"a": [1]})
    reading = harness(source)
    reading.run()
    source.clock.advance("1 second")
    source.go_on("a", Gap(2), 5, Pause("3 seconds"), 6)
    source.go_on("b", 7)
    source.clock.advance("1 second")
    reading.run()
    assert reading.records() == {"a": [(0, 1), (3, 5)], "b": [(0, 7)]}
    source.clock.advance("3 seconds")
    reading.run()
    assert reading.records() == source.expected()


def test_a_script_knows_when_its_records_arrive() -> None:
    script = SplitScript([1, Pause("2 seconds"), 2, EOF], appears_us=500)
    assert [(record.position, record.time_us, record.arrival_us) for record in script.records] == [
        (0, 1, 500),
        (1, 2, 2_000_500),
    ]
    assert script.end_us == 2_000_500


def test_the_clock_is_the_source_s_own_unless_it_is_given() -> None:
    clock = FakeClock()
    assert TestingSource({}, clock=clock).clock is clock
    assert TestingSource({}).clock is not TestingSource({}).clock
