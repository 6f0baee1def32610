"""What a task sums up of event times, against the same found record by record."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from alignment.event_time_range import EventTimeRange
from alignment.strategy import WatermarkStrategy
from alignment.timestamps import NO_TIMESTAMP, EventTimes, FieldTimestampAssigner
from streaming_source.api import RecordSplit
from streaming_source.coordinator.rules import FrameOptions
from streaming_source.spark.observed_times import ObservedTimes
from streaming_source.spark.rows import RowShaper
from streaming_source.tools.testing.micro_batch import EmittedRecord, reports_of

TIMES = st.lists(st.just(NO_TIMESTAMP) | st.integers(-50, 50), max_size=20)
NO_COLUMNS = pa.record_batch({})


@given(times=st.dictionaries(st.sampled_from("abc"), TIMES), block=st.integers(1, 7))
def test_any_records_in_any_blocks_give_the_reports_of_each_record(times: dict[str, list[int]], block: int) -> None:
    observed, records = ObservedTimes(WatermarkStrategy.for_monotonous_timestamps()), []
    for split_id, of_split in times.items():
        records += [EmittedRecord(split_id, position, time) for position, time in enumerate(of_split)]
        for begin in range(0, len(of_split), block):
            values = np.array(of_split[begin : begin + block], np.int64)
            observed.see(split_id, NO_COLUMNS, EventTimes.of(values), np.arange(values.size))
    ranges = [RecordSplit(split_id, 0, len(of_split)) for split_id, of_split in times.items()]
    assert observed.take(ranges) == reports_of(ranges, records)
    again = observed.take(ranges)
    assert all(report.max_us == NO_TIMESTAMP for report in again), "what was reported is let go"


def test_late_records_are_counted() -> None:
    observed = ObservedTimes(WatermarkStrategy.for_monotonous_timestamps())
    observed.see("a", NO_COLUMNS, EventTimes.of(np.array([5, 1, 2])), np.array([10, 11, 12]))
    observed.count_late("a", np.array([False, True, True]))
    (report,) = observed.take([RecordSplit("a", 10, 13)])
    assert (report.start, report.stop, report.late) == (10, 13, 2)


def test_of_a_range_what_lies_before_counts_for_nothing_and_what_lies_behind_moves_the_watermark() -> None:
    """With `indexing=off`: the positions of all records are reported, and only those of the range are rows, or late."""
    schema = pa.schema([("ts", pa.timestamp("us", "UTC"))])
    shaper = RowShaper(
        schema,
        "ts",
        FieldTimestampAssigner("ts"),
        FrameOptions(times=EventTimeRange(10, 20)),
        announced=15,
        observed=ObservedTimes(WatermarkStrategy.for_monotonous_timestamps()),
    )
    batch = pa.record_batch([pa.array([5, 12, 25, 16], pa.int64()).cast(schema.field("ts").type)], schema=schema)
    rows = shaper.shape("a", batch, None, 100)
    assert rows["ts"].cast(pa.int64()).to_pylist() == [12, 16]
    assert shaper.observed is not None
    (report,) = shaper.observed.take([RecordSplit("a", 100, 104)])
    assert (report.records, report.gaps, report.min_us, report.max_us, report.late) == (4, 0, 12, 25, 1)
