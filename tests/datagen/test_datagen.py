"""Generated records: what they are, what is told of them ahead of reading, when they arrive."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable, Iterable, Set
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alignment import WatermarkStrategy
from alignment.combine import SplitStatus
from alignment.plan import PlanningRules
from alignment.timestamps import (
    NO_TIMESTAMP,
    CallableTimestampAssigner,
    FieldTimestampAssigner,
    RecordTimestampAssigner,
    TimestampAssigner,
)
from alignment.watermarks import MAX_WATERMARK
from streaming_source.api import (
    RecordBlock,
    RecordsWithSplitIds,
    SourceReaderContext,
    SplitsAddition,
    SplitsRemoval,
)
from streaming_source.connectors.datagen import DataGeneratorSource
from streaming_source.connectors.datagen.enumerator import (
    GeneratedSplit,
    GeneratorCheckpoint,
    GeneratorSplitEnumerator,
)
from streaming_source.coordinator import ReadRules, SourceCoordinator, SourceState
from streaming_source.exceptions import OffsetError, OptionError
from streaming_source.testing import TestingEnumeratorContext

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SECOND_US = 1_000_000
START_US = 1_704_067_200 * SECOND_US
MICROSECOND = timedelta(microseconds=1)
KNOWN_START = 1_700_000_000 * SECOND_US


@st.composite
def sources(draw: st.DrawFn) -> DataGeneratorSource:
    """Sources of all kinds, without an end."""
    splits = draw(st.integers(1, 5))
    idle = draw(st.lists(st.integers(0, splits - 1), unique=True))
    return DataGeneratorSource(
        splits=splits,
        rows_per_second=draw(st.sampled_from([0.3, 1.0, 7.0, 1000.0, 3e6, 1e9])),
        skew=draw(st.sampled_from([1.0, 1.5, 4.0, 1000.0])),
        disorder=draw(st.sampled_from(["0 seconds", "1 us", "999 us", "1 second", timedelta(hours=1)])),
        start_time=draw(st.sampled_from(["2024-01-01", "1970-01-01T00:00:00Z", "1969-12-31T23:59:59Z"])),
        idle_splits=tuple(idle),
        idle_after=draw(st.integers(0, 300)) if idle else None,
        idle_for=draw(st.one_of(st.none(), st.timedeltas(MICROSECOND, timedelta(seconds=100)))) if idle else None,
        seed=draw(st.integers(0, 2**70)),
        num_keys=draw(st.integers(1, 1000)),
    )


def within_range(source: DataGeneratorSource, position: int) -> int:
    """A position whose event time is before the year 9999."""
    return position % (7900 * 365 * 86_400 * 10**9 // source.generator.step_ns(source.splits - 1))


def times_of(source: DataGeneratorSource, split: int, start: int, stop: int) -> np.ndarray:
    return source.generator.times(split, np.arange(start, stop))


def records_of(source: DataGeneratorSource, split: int, start: int, stop: int) -> pa.RecordBatch:
    return source.generator.batch(split, start, stop, source.schema())[0]


# ---- the records ------------------------------------------------------------------------------------------------


def split_mix(seed: int, count: int) -> int:
    """The number at one place of a SplitMix64 sequence, as its definition has it."""
    mask = 2**64 - 1
    bits = (seed + count * 0x9E3779B97F4A7C15) & mask
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9 & mask
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB & mask
    return bits ^ (bits >> 31)


def naive_record(source: DataGeneratorSource, split: int, position: int) -> tuple[int, float, int]:
    """Key, value and event time, by the formulas in plain integers."""

    def hashed(purpose: int) -> int:
        origin = split_mix(split_mix(split_mix(source.seed % 2**64, 1) + split, 1) + purpose, 1)
        return split_mix(origin, position)

    speed = 1 + (source.skew - 1) * split / (source.splits - 1) if source.splits > 1 else 1
    step_ns = round(round(1e9 / source.rows_per_second) * speed)

    def base(place: int) -> int:
        return source.generator.start_us + place * step_ns // 1000

    time = base(position)
    if source.generator.disorder_us and position % 64 == 1:
        time = base(position - 1) - source.generator.disorder_us
    elif source.generator.disorder_us and position % 64:
        time -= hashed(0) % (source.generator.disorder_us + 1)
    if split in source.idle_splits and position >= source.idle_after:
        time += round((source.generator.idle_for_us or 0) * speed)
    return hashed(1) % source.num_keys, (hashed(2) >> 11) / 2**53, time


def test_the_first_outputs_are_those_of_the_published_split_mix_sequence() -> None:
    # Published test values of SplitMix64 for the seed 1234567.
    assert [split_mix(1234567, n) for n in (1, 2)] == [6457827717110365317, 3203168211198807973]


@given(sources(), st.integers(0, 4), st.integers(0, 2**40))
def test_records_are_those_of_the_formulas(source: DataGeneratorSource, split: int, far: int) -> None:
    split %= source.splits
    for start in (0, within_range(source, far)):
        records = records_of(source, split, start, start + 70)
        columns = (records["key"], records["value"], records["ts"].cast(pa.int64()))
        found = list(zip(*(column.to_pylist() for column in columns), strict=True))
        assert found == [naive_record(source, split, position) for position in range(start, start + 70)]


@given(sources(), st.integers(0, 500), st.integers(0, 500))
def test_any_range_is_that_part_of_the_whole(source: DataGeneratorSource, one: int, other: int) -> None:
    start, stop = sorted((one, other))
    split = source.splits - 1
    whole = records_of(source, split, 0, 500)
    assert records_of(source, split, start, stop).equals(whole.slice(start, stop - start))
    assert times_of(source, split, start, stop).tolist() == times_of(source, split, 0, 500)[start:stop].tolist()


@pytest.mark.parametrize("names", [[], ["value"], ["ts", "key"]])
def test_only_the_columns_asked_for_are_computed_with_all_their_records(names: list[str]) -> None:
    source = DataGeneratorSource()
    schema = pa.schema([source.schema().field(name) for name in names])
    batch, times = source.generator.batch(0, 5, 12, schema)
    assert (batch.schema, batch.num_rows, len(times)) == (schema, 7, 7)
    assert batch.equals(records_of(source, 0, 5, 12).select(names)) or not names


def test_splits_seeds_and_columns_are_unlike_each_other() -> None:
    def values(seed: int, split: int) -> list[float]:
        return records_of(DataGeneratorSource(seed=seed), split, 0, 1000)["value"].to_pylist()

    assert len({*values(0, 0), *values(0, 1), *values(1, 0), *values(1, 1)}) == 4000
    records = records_of(DataGeneratorSource(num_keys=2), 0, 0, 10_000)
    keys, drawn = records["key"].to_numpy(), records["value"].to_numpy()
    assert abs(np.corrcoef(keys, drawn)[0, 1]) < 0.05
    assert abs(keys.mean() - 0.5) < 0.02
    assert abs(drawn.mean() - 0.5) < 0.02
    assert drawn.min() >= 0
    assert drawn.max() < 1


# ---- event times ------------------------------------------------------------------------------------------------


@given(sources(), st.integers(0, 2**40))
def test_no_record_is_further_behind_the_latest_before_it_than_the_disorder(
    source: DataGeneratorSource, start: int
) -> None:
    for split in range(source.splits):
        for begin in (0, within_range(source, start)):
            times = times_of(source, split, begin, begin + 700)
            behind = np.maximum.accumulate(times) - times
            assert behind.max() <= source.generator.disorder_us


@given(sources(), st.integers(0, 1000))
def test_in_each_period_a_record_is_behind_by_all_of_the_disorder(source: DataGeneratorSource, period: int) -> None:
    source = replace(source, idle_splits=(), idle_after=None, idle_for=None)
    times = times_of(source, 0, 64 * period, 64 * period + 64)
    assert (np.maximum.accumulate(times) - times).max() == source.generator.disorder_us


def test_without_disorder_event_times_are_in_order_a_step_apart() -> None:
    assert times_of(DataGeneratorSource(rows_per_second=4), 2, 0, 5).tolist() == [
        START_US + step * SECOND_US // 4 for step in range(5)
    ]


@pytest.mark.parametrize(
    ("splits", "skew", "speeds"), [(3, 5, [1, 3, 5]), (5, 2, [1, 1.25, 1.5, 1.75, 2]), (1, 9, [1])]
)
def test_event_time_of_the_last_split_passes_skew_times_as_fast(splits: int, skew: float, speeds: list[float]) -> None:
    source = DataGeneratorSource(splits=splits, skew=skew, rows_per_second=10)
    passed = [int(times_of(source, split, 100, 101)[0]) - START_US for split in range(splits)]
    assert passed == [10 * SECOND_US * speed for speed in speeds]


def test_an_idle_split_skips_as_much_event_time_as_it_would_have_passed() -> None:
    source = DataGeneratorSource(
        splits=2, skew=3, rows_per_second=1, idle_splits=(1,), idle_after=2, idle_for="10 seconds"
    )
    seconds = [(times_of(source, split, 0, 4) - START_US) // SECOND_US for split in (0, 1)]
    assert [part.tolist() for part in seconds] == [[0, 1, 2, 3], [0, 3, 6 + 30, 9 + 30]]


def test_event_times_stay_exact_after_centuries_of_nanosecond_steps() -> None:
    source = DataGeneratorSource(splits=1, rows_per_second=3e6)
    position = 3_000_000 * 86_400 * 365 * 500
    assert times_of(source, 0, position, position + 1)[0] == START_US + position * 333 // 1000


# ---- the index --------------------------------------------------------------------------------------------------


@given(sources(), st.integers(0, 2**40), st.lists(st.integers(1, 200), min_size=1, max_size=8))
def test_bounds_of_blocks_are_the_smallest_and_largest_of_their_times(
    source: DataGeneratorSource, start: int, sizes: list[int]
) -> None:
    for begin, split in itertools.product((0, within_range(source, start)), range(source.splits)):
        ends = begin + np.cumsum(sizes)
        first = ends - sizes
        low, high = source.generator.bounds(split, first, np.array(sizes))
        blocks = [times_of(source, split, a, b) for a, b in zip(first, ends, strict=True)]
        assert low.tolist() == [block.min() for block in blocks]
        assert high.tolist() == [block.max() for block in blocks]


class Planner(TestingEnumeratorContext[GeneratedSplit]):
    """Records what an enumerator tells its two readers; `look` runs the calls that it asked for."""

    def __init__(self, assigner: TimestampAssigner | None = None) -> None:
        super().__init__(2, DataGeneratorSource().schema(), assigner)

    def register_readers(self, enumerator: GeneratorSplitEnumerator) -> None:
        for subtask_id in range(2):
            self.register_reader(subtask_id)
            enumerator.add_reader(subtask_id)

    def look(self) -> dict[str, int]:
        """New records by split."""
        before = self.rows()
        self.run_calls()
        return {split: rows - before.get(split, 0) for split, rows in self.rows().items() if rows != before.get(split)}

    def rows(self) -> dict[str, int]:
        return {split: sum(rows for rows, _, _ in blocks) for split, blocks in self.blocks.items()}


def enumerator_of(
    source: DataGeneratorSource,
    planner: Planner,
    checkpoint: GeneratorCheckpoint | None,
    clock_us: Callable[[], int],
) -> GeneratorSplitEnumerator:
    enumerator = source.restore_enumerator(planner, checkpoint)
    enumerator.clock_us = clock_us
    return enumerator


def started(
    source: DataGeneratorSource,
    planner: Planner,
    now: Iterable[int] = (),
    checkpoint: GeneratorCheckpoint | None = None,
    splits: tuple[GeneratedSplit, ...] = (),
) -> GeneratorSplitEnumerator:
    """An enumerator that has started; each look at its clock takes the next second of `now`."""
    ticks = (KNOWN_START + second * SECOND_US for second in now)
    enumerator = enumerator_of(source, planner, checkpoint, lambda: next(ticks))
    enumerator.restore_splits(splits)
    enumerator.start()
    planner.register_readers(enumerator)
    return enumerator


def late_by_key(batch: pa.RecordBatch, source_timestamps: Any) -> Any:
    """Event times of the application's own, one in ten of them invalid."""
    keys = batch["key"].to_numpy()
    return pa.array(source_timestamps - keys * SECOND_US, mask=keys == 3)


@pytest.mark.parametrize(
    "assigner",
    [
        RecordTimestampAssigner(),
        FieldTimestampAssigner("ts"),
        FieldTimestampAssigner("key", "s"),
        CallableTimestampAssigner(late_by_key, unit="us"),
        CallableTimestampAssigner(lambda batch, times: [None] * batch.num_rows),
    ],
)
def test_the_index_has_the_event_times_that_the_application_assigns(assigner: TimestampAssigner) -> None:
    source = DataGeneratorSource(splits=2, rows_per_split=70_000, bounded=True, disorder="5 seconds")
    planner = Planner(assigner)
    enumerator = started(source, planner)
    planner.look()
    for split in range(2):
        batch, source_timestamps = source.generator.batch(split, 0, 70_000, source.schema())
        expected = assigner.extract(batch, source_timestamps).values
        blocks = [expected[:65_536], expected[65_536:]]
        told = planner.blocks[f"split-{split}"]
        assert told == [(len(block), block.min(), block.max()) for block in blocks]
        assert enumerator.event_times(f"split-{split}", 100, 300).tolist() == expected[100:300].tolist()
    assert (told[0][1] == NO_TIMESTAMP) == isinstance(assigner, CallableTimestampAssigner)


# ---- arrival ----------------------------------------------------------------------------------------------------


@given(sources(), st.integers(0, 200 * SECOND_US), st.one_of(st.none(), st.integers(301, 400)))
def test_what_has_arrived_is_what_was_due(source: DataGeneratorSource, elapsed_us: int, end: int | None) -> None:
    # At most 400 records, so that the naive count ends.
    slow = replace(source, rows_per_second=min(source.rows_per_second, 1.7), rows_per_split=end or 400)
    planner = Planner()
    enumerator = enumerator_of(slow, planner, GeneratorCheckpoint(KNOWN_START), lambda: KNOWN_START + elapsed_us)
    enumerator.restore_splits([GeneratedSplit(number) for number in range(slow.splits)])
    enumerator.start()
    planner.look()
    interval_ns = round(1e9 / slow.rows_per_second)
    for split in range(slow.splits):
        count = 0
        for position in range(slow.rows_per_split or 0):
            paused = split in slow.idle_splits and position >= (slow.idle_after or 0)
            if paused and slow.generator.idle_for_us is None:
                break
            due_ns = position * interval_ns + (slow.generator.idle_for_us or 0) * 1000 * paused
            count += due_ns <= elapsed_us * 1000
        assert planner.rows().get(f"split-{split}", 0) == count
        assert (f"split-{split}" in planner.complete) == (count == slow.rows_per_split)


def test_records_arrive_with_the_clock_and_every_one_once() -> None:
    planner = Planner()
    source = DataGeneratorSource(splits=2, rows_per_second=10, discovery_interval="250 ms")
    # The first look at the clock is the arrival epoch.
    started(source, planner, [0, 0, 2, 2, 3])
    assert planner.periods == [0.25]
    assert planner.assigned == {0: [GeneratedSplit(0)], 1: [GeneratedSplit(1)]}
    assert planner.without_more == {0, 1}
    looks = [planner.look() for _ in range(4)]
    assert [look.get("split-1", 0) for look in looks] == [1, 20, 0, 10]
    assert planner.complete == []


def test_an_idle_split_stops_and_goes_on() -> None:
    planner = Planner()
    source = DataGeneratorSource(splits=2, rows_per_second=10, idle_splits=(1,), idle_after=15, idle_for="5 seconds")
    started(source, planner, [0, 1, 3, 6, 7])
    assert [planner.look() for _ in range(4)] == [
        {"split-0": 11, "split-1": 11},
        {"split-0": 20, "split-1": 4},
        {"split-0": 30},
        {"split-0": 10, "split-1": 6},
    ]


def test_a_split_that_stops_for_ever_is_never_complete() -> None:
    planner = Planner()
    source = DataGeneratorSource(splits=2, rows_per_second=10, rows_per_split=20, idle_splits=(0,), idle_after=0)
    started(source, planner, [0, 1000])
    assert planner.look() == {"split-1": 20}
    assert planner.complete == ["split-1"]


def test_the_end_of_a_split_is_told_once() -> None:
    planner = Planner()
    started(DataGeneratorSource(splits=1, rows_per_second=10, rows_per_split=20), planner, [0, 1, 2, 3])
    assert [(planner.look(), len(planner.complete)) for _ in range(3)] == [
        ({"split-0": 11}, 0),
        ({"split-0": 9}, 1),
        ({}, 1),
    ]


def test_a_restart_goes_on_with_the_first_arrival_epoch_and_the_unfinished_splits() -> None:
    source = DataGeneratorSource(splits=3, rows_per_second=10, rows_per_split=100)
    first = Planner()
    enumerator = started(source, first, [0, 2])
    first.look()
    serializer = source.enumerator_checkpoint_serializer
    written = serializer.serialize(enumerator.snapshot_state(1))
    assert written == b'{"arrival_epoch_us":%d}' % KNOWN_START
    checkpoint = serializer.deserialize(serializer.version, written)

    again = Planner()
    restored = (GeneratedSplit(0, 15), GeneratedSplit(1, 21), GeneratedSplit(2, 100))
    ticks = iter([5, 5, 60])
    enumerator = enumerator_of(source, again, checkpoint, lambda: KNOWN_START + next(ticks) * SECOND_US)
    enumerator.restore_splits(restored)
    enumerator.finish_split("split-2")
    enumerator.start()
    again.register_readers(enumerator)
    assert again.assigned == {}
    assert again.look() == {"split-0": 51 - 15, "split-1": 51 - 21}
    assert again.look() == {}
    assert serializer.serialize(enumerator.snapshot_state(1)) == written
    assert again.look() == {"split-0": 49, "split-1": 49}
    assert again.complete == ["split-0", "split-1"]


def test_a_clock_set_back_takes_nothing_back() -> None:
    planner = Planner()
    started(DataGeneratorSource(splits=1, rows_per_second=10), planner, [0, 5, -3, 6])
    assert [planner.look() for _ in range(3)] == [{"split-0": 51}, {}, {"split-0": 10}]


# ---- planning and reading ---------------------------------------------------------------------------------------

BOUNDED = DataGeneratorSource(
    splits=3,
    rows_per_second=100,
    rows_per_split=3000,
    bounded=True,
    skew=3,
    disorder="2 seconds",
    idle_splits=(2,),
    idle_after=1000,
    idle_for="20 seconds",
)


def coordinator_of(source: DataGeneratorSource) -> SourceCoordinator[GeneratedSplit, GeneratorCheckpoint]:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(timedelta(microseconds=source.generator.disorder_us))
    rules = ReadRules(strategy, PlanningRules(source.generator.disorder_us, bounded=source.bounded))
    return SourceCoordinator(source, rules, source.schema(), lambda: 0)


def blocks_of(fetched: RecordsWithSplitIds[RecordBlock]) -> list[tuple[str, RecordBlock]]:
    found = []
    while (split_id := fetched.next_split()) is not None:
        while (block := fetched.next_record_from_split()) is not None:
            found.append((split_id, block))
    return found


def read(source: DataGeneratorSource, splits: Iterable[GeneratedSplit]) -> list[tuple[str, int, int]]:
    """`(split, position, source timestamp)` of all records of ranges."""
    reader = source.create_split_reader(SourceReaderContext(source.schema()))
    found = []
    for split in splits:
        reader.handle_splits_changes(SplitsAddition([split]))
        finished: Set[str] = frozenset()
        while not finished:
            fetched = reader.fetch()
            finished = fetched.finished_splits
            for split_id, block in blocks_of(fetched):
                assert block.source_timestamps is not None
                assert block.batch["ts"].cast(pa.int64()).to_pylist() == block.source_timestamps.tolist()
                numbered = enumerate(block.source_timestamps.tolist(), start=block.positions)
                found += [(split_id, position, time) for position, time in numbered]
        assert finished == {split.split_id}
    return found


def every_record(source: DataGeneratorSource) -> list[tuple[str, int, int]]:
    return [
        (f"split-{split}", position, time)
        for split in range(source.splits)
        for position, time in enumerate(times_of(source, split, 0, source.rows_per_split or 0).tolist())
    ]


def written_and_read(source: DataGeneratorSource, state: SourceState[Any, Any]) -> SourceState[Any, Any]:
    """A state whose splits and checkpoint went through their serializers."""
    split, checkpoint = source.split_serializer, source.enumerator_checkpoint_serializer
    return replace(
        state,
        splits=tuple(split.deserialize(split.version, split.serialize(s)) for s in state.splits),
        checkpoint=checkpoint.deserialize(checkpoint.version, checkpoint.serialize(state.checkpoint)),
    )


@pytest.mark.parametrize("batches_before_restart", [0, 1, 3, 100])
def test_a_bounded_source_is_read_to_its_end_each_record_once_whenever_it_is_restarted(
    batches_before_restart: int,
) -> None:
    coordinator, state = coordinator_of(BOUNDED), SourceState.initial()
    coordinator.restore(state)
    found = []
    for batch in itertools.count():
        if batch == batches_before_restart:
            coordinator = coordinator_of(pickle.loads(pickle.dumps(BOUNDED)))
            coordinator.restore(state)
        after = coordinator.advance(max_rows=500)
        if after is state:
            break
        # Another planner, which has seen nothing, plans the same from the two states.
        late = coordinator_of(BOUNDED)
        after = written_and_read(BOUNDED, after) if batch == batches_before_restart - 1 else after
        late.restore(after)
        ranges = late.ranges(state, after, readers=2, min_rows=100)
        assert [part.rows for part in ranges] == [part.split.stop - part.split.position for part in ranges]
        assert sum(part.rows for part in ranges) <= 500
        found += read(BOUNDED, [part.split for part in ranges])
        state = after
    assert sorted(found) == sorted(every_record(BOUNDED))
    assert state.table.combined == MAX_WATERMARK
    assert set(state.table.statuses) <= {SplitStatus.FINISHED}
    assert not state.late.any()
    assert batch >= 18


@pytest.mark.parametrize(("short_us", "is_late"), [(0, False), (1, True)])
def test_records_are_late_under_a_bound_that_is_one_microsecond_too_small(short_us: int, is_late: bool) -> None:
    source = replace(BOUNDED, splits=1, skew=1.0, idle_splits=(), idle_after=None, idle_for=None)
    rules = ReadRules(
        WatermarkStrategy(out_of_orderness_us=source.generator.disorder_us - short_us),
        PlanningRules(source.generator.disorder_us - short_us, bounded=True),
    )
    coordinator = SourceCoordinator(source, rules, source.schema(), lambda: 0)
    coordinator.restore(SourceState.initial())
    # A micro-batch ends before the first straggler, right behind its leader.
    while [split.position for split in coordinator.state.splits] != [source.rows_per_split]:
        coordinator.advance(max_rows=1)
        if [split.position for split in coordinator.state.splits] > [200]:
            break
    assert (coordinator.state.late > 0).tolist() == [is_late]


def test_large_ranges_are_computed_in_batches() -> None:
    reader = BOUNDED.create_split_reader(SourceReaderContext(pa.schema([])))
    reader.handle_splits_changes(SplitsAddition([GeneratedSplit(0, 7, 80_000)]))
    sizes = []
    while blocks := blocks_of(reader.fetch()):
        sizes += [(block.positions, block.batch.num_rows) for _, block in blocks]
    assert sizes == [(7, 32_768), (32_775, 32_768), (65_543, 14_457)]


def test_removed_splits_are_let_go() -> None:
    reader = BOUNDED.create_split_reader(SourceReaderContext(BOUNDED.schema()))
    first, second = (GeneratedSplit(number, 0, 10) for number in range(2))
    reader.handle_splits_changes(SplitsAddition([first, second]))
    reader.handle_splits_changes(SplitsRemoval([first]))
    assert [split_id for split_id, _ in blocks_of(reader.fetch())] == ["split-1"]
    assert blocks_of(reader.fetch()) == []


# ---- offsets ----------------------------------------------------------------------------------------------------


def test_splits_are_written_by_number_and_position() -> None:
    serializer = DataGeneratorSource().split_serializer
    assert serializer.serialize(GeneratedSplit(3, 120)) == b'{"number":3,"position":120,"stop":null}'
    assert serializer.deserialize(1, b'{"number": 3, "position": 120}') == GeneratedSplit(3, 120)
    assert GeneratedSplit(3, 120).origin() == GeneratedSplit(3)


@pytest.mark.parametrize("data", [b"[]", b"no json", b'{"number":"x"}', b'{"number":0,"position":-1}', b"{}"])
def test_a_damaged_split_is_refused(data: bytes) -> None:
    with pytest.raises(OffsetError, match="damaged"):
        DataGeneratorSource().split_serializer.deserialize(1, data)


def test_states_of_a_newer_version_are_refused() -> None:
    source = DataGeneratorSource()
    for serializer in (source.split_serializer, source.enumerator_checkpoint_serializer):
        with pytest.raises(OffsetError, match="version 2"):
            serializer.deserialize(2, b"[]")
    with pytest.raises(OffsetError, match="arrival_epoch_us"):
        source.enumerator_checkpoint_serializer.deserialize(1, b"{}")


def test_the_offset_of_a_bounded_source_has_no_clock_in_it() -> None:
    enumerator = started(BOUNDED, Planner())
    assert enumerator.snapshot_state(1) == GeneratorCheckpoint(None)


def test_another_source_is_one_with_other_records() -> None:
    source = DataGeneratorSource(rows_per_split=5)
    assert replace(source, bounded=True, discovery_interval="5 ms").identity == source.identity
    others: list[dict[str, Any]] = [
        {"seed": 1},
        {"splits": 5},
        {"skew": 2.0},
        {"rows_per_split": 6},
        {"num_keys": 3},
        {"disorder": "1 us"},
        {"start_time": "2024-01-01T00:00:00.000001Z"},
        {"idle_splits": (1,), "idle_after": 2},
        {"idle_splits": (1,), "idle_after": 2, "idle_for": "1 us"},
    ]
    assert len({source.identity, *(replace(source, **other).identity for other in others)}) == 10


def test_the_same_times_in_other_words_are_the_same_source() -> None:
    words = DataGeneratorSource(
        disorder="1 minute 30 seconds",
        start_time="2013-01-01 02:00:00+01:00",
        idle_splits=(1,),
        idle_after=5,
        idle_for="2 hours",
        discovery_interval="0.5 s",
    )
    objects = DataGeneratorSource(
        disorder=timedelta(seconds=90),
        start_time=datetime(2013, 1, 1, 6, tzinfo=timezone(timedelta(hours=5))),
        idle_splits=(1,),
        idle_after=5,
        idle_for=timedelta(hours=2),
        discovery_interval=timedelta(milliseconds=500),
    )
    # A time without a zone is in UTC, whichever way it is given.
    zoneless = [replace(words, start_time=start) for start in (datetime(2013, 1, 1, 1), "2013-01-01T01:00:00")]
    for same in (objects, *zoneless, replace(words, seed=0), pickle.loads(pickle.dumps(words))):
        assert (same, hash(same), same.identity) == (words, hash(words), words.identity)
    assert words.discovery_interval == timedelta(milliseconds=500)
    made = words.generator
    assert (made.disorder_us, made.idle_for_us) == (90_000_000, 7_200_000_000)
    assert made.start_us == 1_357_002_000 * SECOND_US


# ---- options ----------------------------------------------------------------------------------------------------


def of_options(**given: str) -> DataGeneratorSource:
    return DataGeneratorSource.from_options(DataGeneratorSource.options().parse(given))


def test_options_say_what_the_attributes_say() -> None:
    assert of_options() == DataGeneratorSource()
    assert of_options(
        SPLITS="3",
        rowsPerSecond="2.5",
        rowsPerSplit="100",
        bounded="true",
        skew="4",
        disorder="5 seconds",
        startTime="2013-01-01 02:00:00+01:00",
        idleSplits="0, 2",
        idleAfter="10",
        idleFor="1 minute",
        seed="7",
        numKeys="3",
        discoveryInterval="50 ms",
    ) == DataGeneratorSource(
        splits=3,
        rows_per_second=2.5,
        rows_per_split=100,
        bounded=True,
        skew=4.0,
        disorder=timedelta(seconds=5),
        start_time=datetime(2013, 1, 1, 1, tzinfo=UTC),
        idle_splits=(0, 2),
        idle_after=10,
        idle_for=timedelta(minutes=1),
        seed=7,
        num_keys=3,
        discovery_interval=timedelta(milliseconds=50),
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rowsPerSec": "3"}, "did you mean rowsPerSecond"),
        ({"splits": "0"}, "splits = '0': must be at least 1"),
        ({"rowsPerSecond": "fast"}, "rowsPerSecond = 'fast': must be a number"),
        ({"rowsPerSecond": "nan"}, "rowsPerSecond"),
        ({"rowsPerSecond": "1e10"}, "rowsPerSecond.*from 1e-06 to 1e\\+09"),
        ({"skew": "0.5"}, "skew = '0.5': must be a number of at least 1"),
        ({"skew": "inf"}, "skew"),
        ({"disorder": "5"}, "disorder = '5'"),
        ({"startTime": "tomorrow"}, "startTime = 'tomorrow': must be an ISO-8601 time"),
        ({"startTime": "0001-01-01", "disorder": "1 second"}, "startTime.*years 1 to 9999"),
        ({"rowsPerSecond": "0.000001", "rowsPerSplit": "1000000"}, "startTime.*rowsPerSplit"),
        ({"skew": "10000"}, "startTime.*those of a year"),
        ({"skew": "1e300"}, "skew.*from 1 to 1e\\+06"),
        ({"idleSplits": "0", "idleAfter": "9", "idleFor": "10000000 days"}, "startTime.*idleFor"),
        ({"numKeys": "9223372036854775808"}, "numKeys"),
        ({"bounded": "true"}, "bounded.*rowsPerSplit"),
        ({"idleAfter": "5"}, "idleAfter.*idleSplits"),
        ({"idleFor": "5 seconds"}, "idleFor.*idleSplits"),
        ({"idleSplits": "1"}, "idleSplits.*idleAfter"),
        ({"idleSplits": "4", "idleAfter": "5"}, "idleSplits.*from 0 to 3"),
        ({"idleSplits": "1,1", "idleAfter": "5"}, "idleSplits.*different"),
        ({"idleSplits": "one", "idleAfter": "5"}, "idleSplits = 'one'"),
        ({"idleSplits": "1", "idleAfter": "5", "rowsPerSplit": "5"}, "idleAfter.*rowsPerSplit = 5"),
        ({"idleSplits": "1", "idleAfter": "5", "rowsPerSplit": "9", "bounded": "true"}, "idleSplits.*idleFor"),
        ({"seed": "-1"}, "seed"),
        ({"numKeys": "0"}, "numKeys"),
        ({"discoveryInterval": "1 us"}, "discoveryInterval"),
    ],
)
def test_wrong_and_contradicting_options_are_refused_by_name(given: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        of_options(**given)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"splits": 0}, "splits = 0: must be from 1"),
        ({"skew": 0.9}, "skew = 0.9: must be from 1"),
        ({"num_keys": 0}, "num_keys = 0"),
        ({"idle_after": -1}, "idle_after = -1"),
        ({"seed": -1}, "seed = -1"),
        ({"disorder": "-1 us"}, "disorder = '-1 us' is too short"),
        ({"disorder": 5}, "disorder = 5 is not a duration.*no unit"),
        ({"disorder": None}, "disorder = None is not a duration"),
        ({"idle_for": "0 seconds"}, "idle_for = '0 seconds' is too short: it must be at least 1 microsecond"),
        ({"idle_for": "5 seconds"}, "idle_for = '5 seconds' .*needs idleSplits"),
        ({"discovery_interval": MICROSECOND}, "discovery_interval = .* at least 1 millisecond"),
        ({"start_time": "tomorrow"}, "^start_time = 'tomorrow': must be an ISO-8601 time"),
        ({"start_time": 0}, "start_time = 0: must be a datetime"),
        ({"start_time": "0001-01-01T00:00:00+01:00"}, "start_time = .*years 1 to 9999"),
        (
            {"start_time": datetime(9999, 6, 1, tzinfo=UTC)},
            "start_time = '9999-06-01T00:00:00.00:00' .*years 1 to 9999",
        ),
    ],
)
def test_attributes_are_checked_as_well(values: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        DataGeneratorSource(**values)


# ---- on Spark ---------------------------------------------------------------------------------------------------

SPARK_OPTIONS = {
    "splits": "3",
    "rowsPerSecond": "100",
    "rowsPerSplit": "4000",
    "bounded": "true",
    "skew": "4",
    "disorder": "3 seconds",
    "seed": "5",
}


def windows(frame: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    return frame.groupBy(F.window("ts", "10 seconds"), "key").count().select("window.start", "key", "count")


def drained(frame: DataFrame, name: str) -> list[tuple[Any, ...]]:
    """What a query over all that there is gives, in more than one micro-batch."""
    query = frame.writeStream.format("memory").queryName(name).outputMode("append").trigger(availableNow=True).start()
    query.awaitTermination()
    assert sum(progress["numInputRows"] > 1 for progress in query.recentProgress) >= 2
    return sorted(map(tuple, frame.sparkSession.table(name).collect()))


@pytest.mark.spark
@pytest.mark.soak
def test_on_spark_both_doors_give_the_batch_result_to_the_last_window(spark: SparkSession) -> None:
    from streaming_source import from_source, read_stream

    batch = spark.read.format("aligned_datagen").options(**SPARK_OPTIONS).load()
    assert batch.columns == ["key", "value", "ts"]
    expected = sorted(map(tuple, windows(batch).collect()))
    source = of_options(**SPARK_OPTIONS)
    assert sum(count for _, _, count in expected) == source.splits * (source.rows_per_split or 0)

    stream = (
        read_stream(spark)
        .format("aligned_datagen")
        .options(**SPARK_OPTIONS)
        .option("eventTimeColumn", "ts")
        .option("maxOutOfOrderness", "3 seconds")
        .option("maxRowsPerTrigger", 5000)
        .load()
    )
    assert drained(windows(stream), "datagen_format") == expected

    strategy = WatermarkStrategy.for_bounded_out_of_orderness("3 seconds")
    frame = from_source(spark, source, strategy, "generated", maxRowsPerTrigger=5000)
    assert drained(windows(frame), "datagen_source") == expected


@pytest.mark.soak
@pytest.mark.spark
def test_on_spark_records_of_no_column_but_the_event_time_are_all_there(spark: SparkSession) -> None:
    frame = spark.read.format("aligned_datagen").options(**SPARK_OPTIONS).schema("event_time timestamp").load()
    assert frame.columns == ["event_time"]
    assert frame.count() == 12_000


@pytest.mark.spark
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"bounded": "true"}, "give rowsPerSplit"),
        ({"rowPerSplit": "5"}, "did you mean rowsPerSplit"),
        ({"eventTimeAs": "value"}, "eventTimeColumn"),
        ({"eventTimeColumn": "value"}, "'value'"),
    ],
)
def test_on_spark_wrong_options_fail_when_the_frame_is_loaded(
    spark: SparkSession, given: dict[str, str], message: str
) -> None:
    from pyspark.errors import AnalysisException

    with pytest.raises(AnalysisException, match=message):
        spark.readStream.format("aligned_datagen").options(**given).load()
