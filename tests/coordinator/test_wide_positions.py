"""Positions up to 2^62 with gaps up to 2^40, from all three providers of event times: nothing wraps, nothing stalls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alignment import WatermarkStrategy
from alignment.timestamps import NO_TIMESTAMP
from alignment.watermarks import MAX_WATERMARK
from streaming_source.api import RecordSplit, SplitEnumerator, SplitRange, SupportsEventTimeIndex
from streaming_source.testing import Gap, SourceHarness, TestingSource
from tests.examples import examples

BOUND_US = 5
FAR = 2**62
WIDE = 2**40
STRATEGY = WatermarkStrategy.for_bounded_out_of_orderness(f"{BOUND_US} us")
DRIFTING = STRATEGY.with_watermark_alignment("own", "20 us")


class IndexedEnumerator(SupportsEventTimeIndex[RecordSplit], SplitEnumerator[RecordSplit, None]):
    """Knows the records of scripts: in blocks of which the index loads times, or in one opaque block a split.

    Positions of loaded blocks are numbers of records; those of opaque blocks have the gaps of the source.
    """

    def __init__(self, source: IndexedSource, context: Any) -> None:
        self.source, self.context = source, context
        self.at = {
            name: np.array([record.position for record in script.records], np.int64)
            for name, script in source.scripts.items()
        }
        self.times = {
            name: np.array([record.time_us for record in script.records], np.int64)
            for name, script in source.scripts.items()
        }

    def start(self) -> None:
        self.context.call_async(lambda: None, self._assign_all)

    def _assign_all(self, result: None, error: BaseException | None) -> None:
        for split_id, times in self.times.items():
            self.context.assign_split(RecordSplit(split_id), 0)
            if times.size and self.source.opaque:
                self.context.add_opaque_block(split_id, int(self.at[split_id][-1]) + 1, int(times.max()))
            elif times.size:
                self.context.add_blocks(split_id, np.ones_like(times), times, times)
            self.context.complete_split(split_id)
        for subtask_id in self.context.registered_readers():
            self.context.signal_no_more_splits(subtask_id)

    def handle_split_request(self, subtask_id: int, requester_hostname: str | None = None) -> None:
        """All splits are assigned as it starts."""

    def snapshot_state(self, checkpoint_id: int) -> None:
        return None

    def restore_splits(self, splits: Sequence[RecordSplit]) -> None:
        """It is never restored here."""

    def event_times(self, split_id: str, start: int, stop: int) -> npt.NDArray[np.int64]:
        return self.times[split_id][start:stop]

    def first_later(
        self, split_ids: Sequence[str], starts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64], bound_us: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        positions, found = stops.copy(), np.full(stops.size, NO_TIMESTAMP, np.int64)
        for i, split_id in enumerate(split_ids):
            at, times = self.at[split_id], self.times[split_id]
            later = np.flatnonzero((at >= starts[i]) & (at < stops[i]) & (times > bound_us))
            if later.size:
                positions[i], found[i] = at[later[0]], times[later[0]]
        return positions, found

    def split_at(self, split_id: str, position: int) -> RecordSplit:
        if self.source.opaque or position == 0:
            return RecordSplit(split_id, position, start=0)
        return RecordSplit(split_id, int(self.at[split_id][position - 1]) + 1, start=0)

    def ranges(self, start: RecordSplit, end: RecordSplit, rows_per_range: int) -> list[SplitRange[RecordSplit]]:
        return [SplitRange(start.until(end.position), end.position - start.position)]

    def finish_split(self, split_id: str) -> None:
        """What it knows is not kept by split."""


class IndexedSource(TestingSource):
    def __init__(self, splits: dict[str, list[Any]], *, opaque: bool) -> None:
        super().__init__(splits, bounded=True)
        self.opaque = opaque

    def create_enumerator(self, context: Any) -> Any:
        return IndexedEnumerator(self, context)


class OpaqueHarness(SourceHarness):
    """Of opaque blocks a plan has a bound of its records, and may end inside a gap."""

    foreknown = False  # type: ignore[assignment]


def harness(provider: str, splits: dict[str, list[Any]], max_rows: int | None, *, drifting: bool) -> SourceHarness:
    if provider in ("loaded index", "opaque index"):
        source: TestingSource = IndexedSource(splits, opaque=provider == "opaque index")
    else:
        source = TestingSource(splits, bounded=True)
    reports = (lambda arrived: arrived) if provider == "reported" else None
    if provider == "opaque index":
        # Where such a block is cut its watermark follows from the cut.
        drifting = False
    kind = OpaqueHarness if provider == "opaque index" else SourceHarness
    return kind(source, DRIFTING if drifting else STRATEGY, max_rows=max_rows, reports=reports, clock=source.clock)


def read_all(reading: SourceHarness, most: int) -> None:
    """Run micro-batches until nothing is left, at most so many."""
    for _ in range(most):
        if reading.run_batch() is None:
            reading.source.clock.advance("1 second")  # type: ignore[attr-defined]
            if reading.run_batch() is None:
                return
    raise AssertionError(f"not at the end after {most} micro-batches: {reading.state.table}")


PROVIDERS = ("loaded index", "opaque index", "read ahead", "reported")

gaps = st.one_of(st.integers(1, 3), st.integers(1, WIDE)).map(Gap)
elements = st.lists(st.one_of(st.integers(0, 200), st.integers(0, 200), gaps), max_size=12)
starts = st.one_of(st.just(0), st.integers(1, FAR - 13 * WIDE))


@st.composite
def scripts(draw: st.DrawFn) -> dict[str, list[Any]]:
    names = ["a", "b", "c", "d"][: draw(st.integers(1, 4))]
    return {name: ([Gap(first)] if (first := draw(starts)) else []) + draw(elements) for name in names}


@pytest.mark.parametrize("provider", PROVIDERS)
@settings(max_examples=examples(50), deadline=None)
@given(splits=scripts(), max_rows=st.one_of(st.none(), st.integers(1, 5)), drifting=st.booleans())
def test_all_records_are_read_once_whatever_the_gaps(
    provider: str, splits: dict[str, list[Any]], max_rows: int | None, drifting: bool
) -> None:
    reading = harness(provider, splits, max_rows, drifting=drifting)
    marks = sum(len(elements) for elements in splits.values())
    # A gap is crossed in fewer micro-batches than its width has bits, by a factor of four each.
    read_all(reading, 40 * (marks + 1))
    expected = {name: records for name, records in reading.source.expected().items() if records}  # type: ignore[attr-defined]
    assert reading.records() == expected
    assert reading.watermark == MAX_WATERMARK
    if max_rows is not None and provider != "reported":
        assert all(len(batch.all_records) <= max_rows for batch in reading.batches)
    reading.close()


@pytest.mark.parametrize("reports", [None, lambda arrived: arrived], ids=["read ahead", "reported"])
def test_six_tables_that_are_empty_at_first_and_begin_far_up_are_read(reports: Any) -> None:
    source = TestingSource({f"t{n}": [] for n in range(6)})
    reading = SourceHarness(source, STRATEGY, reports=reports, clock=source.clock)
    read_all(reading, 10)
    for n in range(6):
        # Together they have more positions than an int64 counts.
        source.go_on(f"t{n}", Gap(FAR), 10 + n)
    source.clock.advance("1 second")
    read_all(reading, 10)
    assert sum(len(records) for records in reading.records().values()) == 6
    reading.close()


def test_a_read_limit_counts_records_and_not_positions() -> None:
    script = [element for n in range(6) for element in (Gap(10**6), n)]
    reading = harness("reported", {"a": script}, 1000, drifting=False)
    read_all(reading, 12)
    assert len(reading.records()["a"]) == 6
    reading.close()


def test_a_read_limit_counts_no_gap_of_an_opaque_block() -> None:
    script = [*range(1000), Gap(50_000_000), *range(1000, 2000)]
    reading = harness("opaque index", {"a": script}, 400, drifting=False)
    read_all(reading, 10)
    sizes = [len(batch.all_records) for batch in reading.batches if batch.all_records]
    assert sum(sizes) == 2000
    assert max(sizes) <= 400
    reading.close()


def test_a_read_limit_holds_again_after_the_first_micro_batch_where_gaps_end() -> None:
    dense = list(range(1000))
    reading = harness("reported", {"a": [0, Gap(10_000), 0, Gap(10_000), 0, *dense]}, 10, drifting=False)
    read_all(reading, 1000)
    sizes = [len(batch.all_records) for batch in reading.batches]
    over = [size for size in sizes if size > 40]
    assert len(over) <= 1, sizes
    reading.close()
