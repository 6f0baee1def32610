"""Without Spark: every record once, with all that it has, whoever wrote it, however it lies in the log."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from alignment import WatermarkStrategy
from alignment.arrow_times import format_timestamp
from alignment.exceptions import InvalidTimestampError
from alignment.watermarks import MAX_WATERMARK
from streaming_source.connectors import KafkaSource
from streaming_source.exceptions import DataLossError, OptionError
from streaming_source.spark.datasource import AlignedDataSource
from tests.examples import one_in
from tests.kafka.support import SKEWS, by_split, format_options, on_executor, reading, records, to_end
from tests.kafka.topics import CODECS, Record, Topic, wait_until
from tests.spark.one_source import check_that_all_ways_read_the_same
from tests.spark.reading import Reading
from tests.spark.support import SECOND, T0

T0_MS = T0 // 1000


def numbered(n: int, first: int = 0, **fields: Any) -> list[Record]:
    return [Record(T0_MS + i, b"%d" % i, **fields) for i in range(first, first + n)]


def read_all(topic: Topic, **options: Any) -> list[Record]:
    """Everything there is, by partition and offset, from a bounded source."""
    with reading(topic, bounded="true", includeHeaders="true", **options) as begun:
        return records(pa.concat_tables(to_end(begun)))


def read_batch(topic: Topic, **options: Any) -> list[tuple[int, int]]:
    """Partition and offset of all that `spark.read` would read."""
    source = AlignedDataSource.of_format("aligned_kafka", format_options(topic, **options))
    reader = source.batch_reader(source.schema())
    tasks = reader.partitions()
    batches = [batch for task in tasks for batch in on_executor(reader).read(task)]
    return sorted((row["partition"], row["offset"]) for batch in batches for row in batch.to_pylist())


def naive(topic: Topic, **options: Any) -> list[Record]:
    return [record for read in topic.read(**options).values() for record in read]


def test_a_record_has_all_that_was_written(topic: Topic) -> None:
    topic.create(partitions=2).write(
        [
            Record(T0_MS + 5, b"v", b"k", (("a", b"1"), ("a", None), ("b", b""))),
            Record(T0_MS + 1, None, b"k", partition=1),
            Record(T0_MS + 9, b"", None),
            Record(T0_MS + 7, b"\x00\xff", b"", partition=1),
        ]
    )
    assert read_all(topic) == naive(topic)
    with reading(topic, bounded="true", includeHeaders="true") as begun:
        table = pa.concat_tables(to_end(begun)).sort_by([("partition", "ascending"), ("offset", "ascending")])
    first, _, third, last = table.to_pylist()
    assert (first["topic"], first["partition"], first["offset"], first["timestampType"]) == (topic.name, 0, 0, 0)
    assert first["timestamp"] == first["_source_timestamp"]
    assert "event_time" not in first
    assert (first["_split"], first["_position"], first["_late"]) == (f"{topic.name}-0", 0, False)
    assert first["headers"] == [{"key": "a", "value": b"1"}, {"key": "a", "value": None}, {"key": "b", "value": b""}]
    assert (third["key"], third["value"], third["headers"]) == (b"k", None, None)
    assert (last["key"], last["value"]) == (b"", b"\x00\xff")


def test_the_time_of_appending_is_told_from_that_of_creation(topic: Topic) -> None:
    topic.create(message_timestamp_type="LogAppendTime").write(numbered(3))
    with reading(topic, bounded="true") as begun:
        (table,) = to_end(begun)
    assert table["timestampType"].to_pylist() == [1, 1, 1]
    assert min(table["timestamp"].cast(pa.int64()).to_pylist()) > T0 + 365 * 86_400 * SECOND


def test_every_codec_is_read(topic: Topic) -> None:
    topic.create()
    for number, codec in enumerate(CODECS):
        topic.write(numbered(100, 100 * number), codec=codec)
    assert read_all(topic) == naive(topic)
    assert len(naive(topic)) == 100 * len(CODECS)


def test_aborted_transactions_and_the_marks_of_all_leave_gaps_that_are_read_over(topic: Topic) -> None:
    topic.create(partitions=2)
    for number in range(5):
        topic.transaction(numbered(7, 10 * number), end="abort" if number % 2 else "commit")
        topic.write(numbered(2, 10 * number + 8, partition=number % 2))
    # Nothing that a reader sees comes behind it.
    topic.transaction(numbered(7, 100), end="abort")
    committed = naive(topic)
    assert len(committed) == 3 * 7 + 5 * 2
    assert read_all(topic) == committed
    assert read_all(topic, maxRowsPerTrigger=3) == committed
    everything = naive(topic, committed=False)
    assert len(everything) == 6 * 7 + 5 * 2
    assert read_all(topic, **{"kafka.isolation.level": "read_uncommitted"}) == everything


def test_a_partition_of_nothing_but_aborted_records_ends(topic: Topic) -> None:
    topic.create(partitions=2)
    topic.transaction(numbered(5), end="abort")
    topic.write(numbered(3, partition=1))
    assert read_all(topic) == naive(topic)
    topic.transaction(numbered(5, partition=1), end="abort")
    assert read_all(topic) == naive(topic)


def test_a_compacted_partition_is_read(topic: Topic) -> None:
    topic.create(cleanup_policy="compact", segment_ms=10, min_cleanable_dirty_ratio=0.001)
    for i in range(12):
        topic.write([Record(T0_MS + 1000 * i + k, b"%d" % i, b"key-%d" % (k % 3)) for k in range(5)])
    topic.await_compaction(0, 8)
    left = naive(topic)
    assert len(left) <= 8
    assert left[0].offset > 40
    assert read_all(topic) == left
    assert read_all(topic, maxRowsPerTrigger=1) == left
    assert read_all(topic, startingOffsets=json.dumps({topic.name: {"0": 3}})) == left


def test_a_range_of_event_times_has_the_records_of_a_compacted_log_whose_head_is_empty(topic: Topic) -> None:
    """Of a segment that compaction has emptied the brokers take the time of its file, and find no record in it."""
    topic.create(cleanup_policy="compact", segment_bytes=2**20, min_cleanable_dirty_ratio=0.001)
    topic.write(Record(T0_MS + i, b"%4d" % i * 256, b"key-%d" % (i % 90)) for i in range(3_500))
    topic.await_compaction(0, 2_000)
    left = naive(topic)
    assert left[0].offset > 1_000
    for indexing in ("auto", "scan", "off"):
        given = {"indexing": indexing, "watermarkRows": "true"}
        around = {"eventTimeFrom": "2023-11-14T00:00:00Z", "eventTimeUntil": "2023-11-16T00:00:00Z"}
        assert read_all(topic, **given, **around) == left, indexing
        assert read_all(topic, **given, eventTimeFrom="2023-11-15T00:00:00Z") == []
    assert read_all(topic, maxRowsPerTrigger=200, maxDrift="1 second") == left
    # As a repair and `advise` read it.
    assert read_batch(topic, **around) == [(0, record.offset) for record in left]
    assert read_batch(topic, eventTimeUntil=format_timestamp(left[10].time_us)) == [(0, r.offset) for r in left[:10]]


@pytest.mark.parametrize("indexing", ["auto", "scan"])
def test_with_lateness_none_no_record_of_a_backlog_is_late_however_far_back_it_is(topic: Topic, indexing: str) -> None:
    """One is an hour behind, and far behind what the first fetch brings."""
    topic.create().write(Record(T0_MS + i * 1000 - (3_600_000 if i == 11_000 else 0)) for i in range(12_000))
    for drains in (False, True):
        with reading(topic, indexing=indexing, lateness="none", watermarkRows="true") as begun:
            if drains:
                begun.reader.prepareForTriggerAvailableNow()
            read, late = 0, 0

            def is_read(begun: Reading = begun) -> bool:
                nonlocal read, late
                table = begun.next(2_000)
                if table is not None:
                    flags = table.filter(table["offset"].is_valid())["_late"].to_pylist()
                    read, late = read + len(flags), late + sum(flags)
                return read == 12_000 and begun.offset["watermark"] is not None

            wait_until(is_read, "all records and a watermark")
        assert late == 0
        assert begun.offset["watermark"] == T0 + 11_999 * SECOND - 1


def test_an_open_transaction_is_waited_for_and_then_read(topic: Topic) -> None:
    topic.create(partitions=2)
    topic.write([*numbered(4), *numbered(10, 50_000, partition=1)])
    left_open = topic.transaction(numbered(3, 100), end="open")
    topic.write(numbered(2, 200))

    def statuses(begun: Reading) -> list[str]:
        begun.next()
        return [entry[2] for entry in begun.offset["splits"]]

    with reading(topic, idleTimeout="100 ms", watermarkRows="true") as begun:
        got = until(begun, 14)
        assert {p: len(offsets) for p, offsets in by_split(got).items()} == {0: 4, 1: 10}
        # Both have nothing more to read. One waits for records that are there already.
        wait_until(lambda: statuses(begun) == ["active", "idle"], "the split that has caught up to be idle")
        topic.end(left_open, "commit")
        more = until(begun, 5)
        assert by_split(more) == {0: [4, 5, 6, 7, 8]}
        assert not any(more["_late"].to_pylist())
        wait_until(lambda: statuses(begun) == ["idle", "idle"], "both to be idle")


@pytest.mark.parametrize("indexing", ["auto", "scan", "off"])
def test_a_query_goes_on_committed_behind_records_that_were_read_of_an_open_transaction(
    topic: Topic, indexing: str
) -> None:
    topic.create().write(numbered(4))
    left_open = topic.transaction(numbered(3, 100), end="open")
    given = {"indexing": indexing, "watermarkRows": "true", "idleTimeout": "100 ms"}
    with reading(topic, **given, **{"kafka.isolation.level": "read_uncommitted"}) as begun:
        until(begun, 7)
        offset = begun.offset
    with reading(topic, **given) as begun:
        begun.offset = offset
        for _ in range(20):
            # At most a watermark row.
            assert (table := begun.next()) is None or by_split(table) == {}
        assert [entry[2] for entry in begun.offset["splits"]] == ["active"]
        topic.end(left_open, "commit")
        topic.write(numbered(2, 200))
        assert by_split(until(begun, 2)) == {0: [8, 9]}


def until(begun: Reading, n: int) -> pa.Table:
    """Micro-batches until they have brought `n` records."""
    tables: list[pa.Table] = []

    def count() -> int:
        return sum(len(offsets) for table in tables for offsets in by_split(table).values())

    def step() -> bool:
        table = begun.next()
        if table is not None:
            tables.append(table)
        return count() >= n

    wait_until(step, f"{n} records")
    assert count() == n
    return pa.concat_tables(tables)


def test_a_batch_read_is_everything_there_is(topic: Topic) -> None:
    topic.create(partitions=3).write_logs(SKEWS["one-ahead"])
    topic.transaction(numbered(7), end="abort")
    source = AlignedDataSource.of_format("aligned_kafka", format_options(topic, startingOffsets=None))
    reader = source.batch_reader(source.schema())
    table = pa.Table.from_batches([b for part in reader.partitions() for b in reader.read(part)])
    assert records(table) == naive(topic)


def in_order(batches: Iterable[list[Record]]) -> list[Record]:
    return sorted((r for batch in batches for r in batch), key=lambda r: (r.partition, r.offset))


@pytest.mark.parametrize("max_rows", one_in(2, [37, None]))
def test_every_micro_batch_can_be_read_again_after_a_restart_at_any_step(topic: Topic, max_rows: int | None) -> None:
    topic.create(partitions=3).write_logs(SKEWS["one-tiny"])
    topic.transaction(numbered(9), end="abort")
    topic.write_logs({0: T0 + 4000 * SECOND + np.arange(20) * SECOND}, first=900)
    limit = {} if max_rows is None else {"maxRowsPerTrigger": max_rows}
    with reading(topic, bounded="true", **limit) as begun:
        begun.reader.prepareForTriggerAvailableNow()
        offsets, tables = [begun.offset], []
        while (table := begun.next()) is not None:
            offsets.append(json.loads(json.dumps(begun.offset)))
            tables.append(records(table))
    assert in_order(tables) == naive(topic)
    for step in range(0, len(tables), max(len(tables) // 6, 1)):
        with reading(topic, bounded="true", **limit) as again:
            # As Spark does it: first the batch that was planned, from the offsets alone, then those behind it.
            assert records(again.between(offsets[step], offsets[step + 1])) == tables[step]
            again.offset = offsets[step + 1]
            assert in_order(map(records, to_end(again))) == in_order(tables[step + 1 :])


def test_an_offset_tells_where_it_is_in_few_bytes(topic: Topic) -> None:
    topic.create(partitions=20).write([r for p in range(20) for r in numbered(3, partition=p)])
    with reading(topic, maxOutOfOrderness="1 second") as begun:
        to_end(begun)
        splits = begun.offset["splits"]
    assert {(entry[0][1], entry[0][2]) for entry in splits} == {(p, 3) for p in range(20)}
    assert len(json.dumps(splits)) / 20 <= 100


# ---- where a batch starts and ends -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "end", "message"),
    [
        ({"0": 8, "1": 0}, {"0": 5, "1": 3}, "-0 would start at offset 8, and option endingOffsets ends it at 5"),
        ({"0": 0, "1": 50}, None, "-1 would start at offset 50, and the log ends it at 10"),
        ({"0": -1, "1": 0}, None, r"option startingOffsets: what is read to an end cannot start at latest \(-1\)"),
    ],
    ids=["behind-its-end", "beyond-the-log", "latest"],
)
def test_a_batch_over_a_range_that_is_not_there_is_an_error(
    topic: Topic, start: dict[str, int], end: dict[str, int] | None, message: str
) -> None:
    topic.create(partitions=2).write([*numbered(10), *numbered(10, partition=1)])
    ending = None if end is None else json.dumps({topic.name: end})
    with pytest.raises(OptionError, match=message):
        read_batch(topic, startingOffsets=json.dumps({topic.name: start}), endingOffsets=ending)


@pytest.mark.parametrize("indexing", ["auto", "scan", "off"])
def test_a_run_ends_before_an_offset_that_is_not_written_yet(topic: Topic, indexing: str) -> None:
    topic.create().write(numbered(5))
    ending = json.dumps({topic.name: {"0": 8}})
    given = {"indexing": indexing, "endingOffsets": ending, "watermarkRows": "true"}
    with reading(topic, **given) as first:
        assert [record.offset for table in to_end(first) for record in records(table)] == [0, 1, 2, 3, 4]
        assert first.offset["watermark"] == T0 + 4_000 - 1
    topic.write(numbered(5, 5))
    with reading(topic, **given) as second:
        second.offset = first.offset
        assert [record.offset for table in to_end(second) for record in records(table)] == [5, 6, 7]
        assert second.offset["watermark"] == MAX_WATERMARK


@pytest.mark.parametrize("indexing", ["auto", "scan", "off"])
def test_an_offset_behind_the_end_of_the_log_is_an_error_unless_loss_is_none(topic: Topic, indexing: str) -> None:
    topic.create(partitions=2).write([*numbered(3), *numbered(3, partition=1)])
    starting = json.dumps({topic.name: {"0": 5, "1": 0}})
    given = {"indexing": indexing, "startingOffsets": starting, "watermarkRows": "true"}
    with (
        reading(topic, **given) as begun,
        pytest.raises(DataLossError, match=rf"{topic.name}-0': offset 5 is not there.*failOnDataLoss"),
    ):
        to_end(begun)
    with reading(topic, **given, failOnDataLoss="false") as begun:
        read = [record for table in to_end(begun) for record in records(table)]
    assert [(record.partition, record.offset) for record in read] == [(1, 0), (1, 1), (1, 2)]


def test_a_batch_to_beyond_the_end_of_the_log_is_an_error_unless_loss_is_none(topic: Topic) -> None:
    topic.create().write(numbered(10))
    ending = json.dumps({topic.name: {"0": 50}})
    with pytest.raises(DataLossError, match=f"{topic.name}-0.*offset 10 is not there, the partition has 0 to 10"):
        read_batch(topic, endingOffsets=ending)
    assert read_batch(topic, endingOffsets=ending, failOnDataLoss="false") == [(0, offset) for offset in range(10)]


def test_a_batch_that_starts_at_its_very_end_is_empty(topic: Topic) -> None:
    topic.create(partitions=2).write([*numbered(10), *numbered(10, partition=1)])
    starts, ends = (json.dumps({topic.name: numbers}) for numbers in ({"0": 5, "1": 8}, {"0": 5, "1": 10}))
    assert read_batch(topic, startingOffsets=starts, endingOffsets=ends) == [(1, 8), (1, 9)]
    at_the_end = json.dumps({topic.name: {"0": 10, "1": 10}})
    assert read_batch(topic, startingOffsets=at_the_end) == []


# ---- timestamps that are none ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [10, 1000], ids=["few", "many"])
@pytest.mark.parametrize("indexing", ["auto", "scan"])
def test_a_producer_that_writes_nanoseconds_as_milliseconds(topic: Topic, indexing: str, count: int) -> None:
    wrong = Record(T0_MS * 1_000_000, b"wrong")
    topic.create().write([*numbered(count), wrong, *numbered(count, count)])
    with pytest.raises(InvalidTimestampError, match=f"{topic.name}-0', position {count}: no valid event time"):
        read_all(topic, indexing=indexing)
    with reading(topic, invalidTimestamp="null", indexing=indexing, maxOutOfOrderness="0 seconds") as begun:
        table = pa.concat_tables(to_end(begun))
        watermark = begun.offset["watermark"]
    times = table["timestamp"].cast(pa.int64()).to_pylist()
    assert times == [(T0_MS + i) * 1000 for i in range(count)] + [None] + times[count + 1 :]
    assert watermark == times[-1] - 1 == (T0_MS + 2 * count - 1) * 1000 - 1


@pytest.mark.parametrize("indexing", ["auto", "scan"])
def test_a_source_gives_the_same_records_to_a_batch_and_to_streams_that_end_or_not(topic: Topic, indexing: str) -> None:
    each = [(n, i) for n in range(3) for i in range(20)]
    times_ms = [T0_MS + 1000 * (5 * n + i - 2 * (i % 4 == 3)) for n, i in each]
    written = [Record(time_ms, b"v", partition=n) for time_ms, (n, _) in zip(times_ms, each, strict=True)]
    topic.create(partitions=3).write(written)

    def make(bounded: bool) -> KafkaSource:
        options = {"startingOffsets": "earliest", "bounded": bounded, "indexing": indexing}
        return KafkaSource.of(topic.broker.bootstrap, topic.name, **options)

    read = check_that_all_ways_read_the_same(make, WatermarkStrategy.for_bounded_out_of_orderness("2 seconds"), 60)
    assert [(row["partition"], row["offset"]) for row in read] == each


@pytest.mark.parametrize("rows", [6, 12_000], ids=["read at once", "by the index of the brokers"])
def test_a_record_from_the_future_moves_no_watermark(topic: Topic, rows: int) -> None:
    far_ms = T0_MS + 200 * 365 * 86_400_000
    times_ms = [far_ms if i == rows // 2 else T0_MS + i for i in range(rows)]
    topic.create(partitions=1).write([Record(time_ms, b"v") for time_ms in times_ms])
    options = {"watermarkRows": "true", "maxFutureSkew": "1 hour", "invalidTimestamp": "null", "indexing": "auto"}
    with reading(topic, **options) as begun:
        (table,) = to_end(begun)
        read = table.filter(table.column("offset").is_valid())
        assert read.num_rows == rows
        assert read.filter(read.column("timestamp").is_null()).column("offset").to_pylist() == [rows // 2]
        assert begun.offset["watermark"] == (T0_MS + rows - 1) * 1000 - 1


def test_a_task_gives_one_partition_after_the_other(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streaming_source.connectors.kafka.split_reader._AHEAD", 900)
    counts = [3_000, 400, 0, 400, 400, 3_000]
    topic.create(partitions=len(counts))
    # More than one answer of the broker each, which has room for all partitions.
    topic.write([r for p, n in enumerate(counts) for r in numbered(n, key=b"x" * 2_000, partition=p)])
    with reading(topic, bounded="true", numReaders="1") as begun:
        (table,) = [table for table in to_end(begun) if len(table) > 1]
    assert records(table) == naive(topic)
    partitions = [partition for partition in table["partition"].to_pylist() if partition is not None]
    assert [key for key, _ in groupby(partitions)] == [p for p, n in enumerate(counts) if n]


def offsets_given(topic: Topic, **options: Any) -> dict[int, range]:
    """The offsets that the readers of a batch read are given, by partition."""
    source = AlignedDataSource.of_format("aligned_kafka", format_options(topic, **options))
    parts = source.batch_reader(source.schema()).partitions()
    splits: list[Any] = [split for part in parts for split in part.splits]
    found: dict[int, range] = {}
    for split in splits:
        begun = found.get(split.partition, range(split.position, split.position))
        found[split.partition] = range(min(begun.start, split.position), max(begun.stop, split.stop))
    return found


def test_a_batch_read_of_a_range_has_its_records_and_begins_where_they_begin(topic: Topic) -> None:
    """One partition is out of order around it, in one all is earlier, and one is empty."""
    topic.create(partitions=4)
    in_order = T0 + np.arange(600) * SECOND
    out_of_order = in_order + np.random.default_rng(3).integers(-40, 41, 600) * SECOND
    topic.write_logs({0: in_order, 1: out_of_order, 2: in_order[:200]})
    everything = naive(topic)
    for first_s, until_s in ((250, 300), (0, 1), (599, None), (None, 20), (700, None), (250.0005, 250.001)):
        bounds = {"eventTimeFrom": first_s, "eventTimeUntil": until_s}
        us = {name: T0 + round(s * SECOND) for name, s in bounds.items() if s is not None}
        texts = {name: format_timestamp(bound) for name, bound in us.items()}
        low, high = us.get("eventTimeFrom", 0), us.get("eventTimeUntil", 2**62)
        wanted = [(r.partition, r.offset) for r in everything if low <= r.time_ms * 1000 < high]
        assert read_batch(topic, **texts) == sorted(wanted)
    given = offsets_given(topic, eventTimeFrom=format_timestamp(T0 + 250 * SECOND))
    assert given[0] == range(250, 600)
    first = int(np.argmax(out_of_order >= T0 + 250 * SECOND))
    assert given[1] == range(first, 600)
    assert 2 not in given
    # Of another column the brokers have no index: all is read, and chosen by the readers.
    by_offset = {"eventTimeColumn": "offset", "timestampUnit": "s", "eventTimeFrom": "1970-01-01T00:05:00Z"}
    given = offsets_given(topic, **by_offset)
    assert {partition: len(offsets) for partition, offsets in given.items()} == {0: 600, 1: 600, 2: 200}
    assert read_batch(topic, **by_offset) == [(r.partition, r.offset) for r in everything if r.offset >= 300]


def read_on(
    topic: Topic, offset: dict[str, Any] | None, found: list[tuple[int, int]], **options: Any
) -> dict[str, Any]:
    """Two micro-batches of a new planner, from an offset on; the offset behind them."""
    with reading(topic, **options) as begun:
        begun.offset = begun.offset if offset is None else offset
        for _ in range(2):
            found += places_of_next(begun)
        return begun.offset


def places_of_next(begun: Reading) -> list[tuple[int, int]]:
    """Partition and offset of each record of the next micro-batch."""
    table = begun.next()
    return [(partition, at) for partition, offsets in by_split(table).items() for at in offsets] if table else []


@pytest.mark.parametrize("indexing", ["auto", "scan"])
def test_a_stream_of_a_range_begins_where_it_begins_and_is_let_go_behind_it(topic: Topic, indexing: str) -> None:
    """Without startingOffsets, which is latest elsewhere; one partition comes later, and one is behind the range."""
    topic.create(partitions=4)
    in_order = T0 + np.arange(600) * SECOND
    out_of_order = in_order + np.random.default_rng(3).integers(-40, 41, 600) * SECOND
    topic.write_logs({0: in_order, 1: out_of_order, 2: in_order[:200], 3: in_order[400:]})
    first, until = T0 + 250 * SECOND, T0 + 300 * SECOND
    options: dict[str, Any] = {"eventTimeFrom": format_timestamp(first), "eventTimeUntil": format_timestamp(until)}
    options |= {"startingOffsets": None, "maxOutOfOrderness": "80 seconds", "watermarkRows": "true"}
    options |= {"indexing": indexing, "idleTimeout": "1 second", "maxRowsPerTrigger": "100"}
    found: list[tuple[int, int]] = []
    offset: dict[str, Any] | None = None

    def has_all() -> bool:
        nonlocal offset
        offset = read_on(topic, offset, found, **options)
        return sorted(found) == sorted((r.partition, r.offset) for r in naive(topic) if first <= r.time_us < until)

    wait_until(has_all, "the records of the range")
    topic.add_partitions(5)
    topic.write_logs({4: in_order[200:320], 2: in_order[250:260]})
    wait_until(has_all, "those that came later")
    # The partitions 2 and 4 are idle in the end, which a planner finds that stays; the others are past the range.
    with reading(topic, **options) as begun:
        assert offset is not None
        begun.offset = offset

        def is_past() -> bool:
            found.extend(places_of_next(begun))
            return (begun.offset["watermark"] or 0) >= until

        wait_until(is_past, "the watermark passes the range")
        offset = begun.offset
    assert has_all()


@pytest.mark.parametrize(
    "begins",
    [
        lambda: {"startingOffsets": "latest"},
        lambda: {"startingTimestamp": f"{time.time_ns() // 1_000_000}", "startingOffsetsByTimestampStrategy": "latest"},
    ],
    ids=["latest", "now"],
)
def test_the_first_start_decides_where_it_finds_nothing(topic: Topic, begins: Callable[[], dict[str, str]]) -> None:
    topic.create(partitions=2).write([Record(T0_MS, b"0"), Record(T0_MS, b"1", partition=1)])
    found, offset = [], None
    for run in range(3):
        if run:
            topic.write([Record(time.time_ns() // 1_000_000 - 1_000, b"%d" % run, partition=run % 2)])
        with reading(topic, **begins()) as begun:
            begun.offset = begun.offset if offset is None else json.loads(json.dumps(offset))
            begun.reader.prepareForTriggerAvailableNow()
            found.append([record.value for batch in to_end(begun) for record in records(batch)])
            offset = begun.offset

    assert found == [[], [b"1"], [b"2"]]
