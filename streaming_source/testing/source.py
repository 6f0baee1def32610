"""A source that does what a test wrote down."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Final

import numpy as np
import pyarrow as pa

from alignment.durations import parse_duration_us
from alignment.timestamps import NO_TIMESTAMP
from streaming_source.api import (
    Boundedness,
    DiscoveringSource,
    Fetching,
    RecordBlock,
    RecordsBySplits,
    RecordSplit,
    SourceReaderContext,
    SplitReader,
    SplitsAddition,
    SplitsChange,
)
from streaming_source.testing.clock import FakeClock
from streaming_source.testing.script import Element, SplitScript

__all__ = ["TestingAbort", "TestingSource"]

_UTC_US: Final = pa.timestamp("us", "UTC")
_SCHEMA: Final = pa.schema([("ts", _UTC_US), ("value", pa.int64())])


class TestingAbort(Exception):  # noqa: N818 (not an error of anybody's)
    """A fetch came to an `Abort` mark."""

    __test__ = False


class TestingSource(DiscoveringSource):
    """Splits of scripted records, with the event time as column `ts` and as source record timestamp.

    It has no index, so the planner reads ahead. Its `SplitReader` knows nothing of stops, brings a few records a fetch,
    of one split after another, and never waits.

    Parameters
    ----------
    splits
        What happens in each split, by its id; see `Element`.
    clock
        By which records arrive and splits appear; by default one that stands still.
    bounded
        The source ends: all splits are there from the start, and end with their last element.
    appears
        How long after the start of the clock a split appears; by default at once.
    records_per_fetch
        At most.
    fetching
        See `Source`.
    pausable
        Whether the `SplitReader` can pause splits.

    Examples
    --------
    >>> from streaming_source.testing import ABORT, EOF, Pause
    >>> source = TestingSource({"a": [1, 2, Pause("5 seconds"), 3, EOF], "b": [10, ABORT, 20]})
    """

    __test__ = False

    def __init__(
        self,
        splits: Mapping[str, Sequence[Element]],
        *,
        clock: FakeClock | None = None,
        bounded: bool = False,
        appears: Mapping[str, timedelta | str] | None = None,
        records_per_fetch: int = 2,
        fetching: Fetching | None = None,
        pausable: bool = True,
    ) -> None:
        self.clock = clock or FakeClock()
        self.records_per_fetch = records_per_fetch
        self.encounters: Counter[tuple[str, int]] = Counter()
        self._bounded = bounded
        self._fetching = fetching or Fetching.single_thread()
        self._pausable = pausable
        appears_us = {name: parse_duration_us(after, name="appears") for name, after in (appears or {}).items()}
        self.scripts = {
            name: SplitScript(elements, appears_us.get(name, 0), ends=bounded) for name, elements in splits.items()
        }

    # ---- what there is -------------------------------------------------------------------------------------------

    def discover(self) -> Iterable[RecordSplit]:
        """The splits that have appeared."""
        now_us = self.clock.now_us()
        return [RecordSplit(name) for name, script in self.scripts.items() if script.appears_us <= now_us]

    def end_positions(self, splits: Sequence[RecordSplit]) -> Sequence[int | None]:
        """See `SplitEnumerator`: behind the last record that has arrived."""
        now_us = self.clock.now_us()
        return [self.scripts[split.split_id].end_position(now_us) for split in splits]

    def go_on(self, split_id: str, *elements: Element) -> None:
        """Let something happen in a split from now on, by the clock; in one that is not there, it appears now.

        Raises
        ------
        ValueError
            If the split has ended.
        """
        now_us = self.clock.now_us()
        if split_id in self.scripts:
            self.scripts[split_id].go_on(elements, now_us)
        else:
            self.scripts[split_id] = SplitScript(elements, now_us, ends=self._bounded)

    def expected(self) -> dict[str, list[tuple[int, int]]]:
        """Position and event time of all records by split, arrived or not; `NO_TIMESTAMP` for none."""
        return {
            name: [(r.position, NO_TIMESTAMP if r.time_us is None else r.time_us) for r in script.records]
            for name, script in self.scripts.items()
        }

    # ---- Source --------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return "testing"

    @property
    def identity(self) -> str:
        return "script"

    @property
    def boundedness(self) -> Boundedness:
        return Boundedness.BOUNDED if self._bounded else Boundedness.CONTINUOUS_UNBOUNDED

    @property
    def has_source_timestamps(self) -> bool:
        return True

    @property
    def fetching(self) -> Fetching:
        return self._fetching

    def schema(self) -> pa.Schema:
        """`ts` (timestamp) and `value`, the position."""
        return _SCHEMA

    def create_split_reader(self, context: SourceReaderContext) -> SplitReader[RecordSplit]:
        kind = _PausableSplitReader if self._pausable else _ScriptedSplitReader
        return kind(self, context.schema)


class _ScriptedSplitReader(SplitReader[RecordSplit]):
    """Brings a few records of one split a fetch, as the script has them."""

    def __init__(self, source: TestingSource, schema: pa.Schema) -> None:
        self._source = source
        self._schema = schema
        # In order of their turns; the number of the next record of each.
        self._next: dict[str, int] = {}
        self._paused: set[str] = set()

    def handle_splits_changes(self, change: SplitsChange[RecordSplit]) -> None:
        for split in change.splits:
            if isinstance(change, SplitsAddition):
                records = self._source.scripts[split.split_id].records
                self._next[split.split_id] = bisect_left(records, split.position, key=lambda record: record.position)
            else:
                self._next.pop(split.split_id, None)
                self._paused.discard(split.split_id)

    def fetch(self) -> RecordsBySplits[RecordBlock]:
        for split_id in [split_id for split_id in self._next if split_id not in self._paused]:
            first = self._next.pop(split_id)
            stop, has_ended = self._available(split_id, first)
            finished = {split_id} if has_ended else set()
            if not has_ended:
                self._next[split_id] = stop
            if stop > first or has_ended:
                blocks = [self._block(split_id, first, stop)] if stop > first else []
                return RecordsBySplits({split_id: blocks}, finished)
        return RecordsBySplits()

    def _available(self, split_id: str, first: int) -> tuple[int, bool]:
        """Up to which record can be fetched, and whether the split ends there."""
        script, now_us = self._source.scripts[split_id], self._source.clock.now_us()
        stop = min(first + self._source.records_per_fetch, len(script.records))
        for number, (before, mark) in enumerate(script.aborts):
            if before == first:
                self._source.encounters[split_id, number] += 1
                if self._source.encounters[split_id, number] == mark.encounter:
                    raise TestingAbort(f"split {split_id!r} has an abort before its record {before}")
            elif first < before <= stop and self._source.encounters[split_id, number] < mark.encounter:
                stop = before
        while stop > first and script.records[stop - 1].arrival_us > now_us:
            stop -= 1
        is_last = stop == len(script.records) and script.end_us is not None and script.end_us <= now_us
        waits = any(before == stop > first for before, _ in script.aborts)
        return stop, is_last and not waits

    def _block(self, split_id: str, first: int, stop: int) -> RecordBlock:
        records = self._source.scripts[split_id].records[first:stop]
        positions = np.array([record.position for record in records], np.int64)
        times = pa.array([record.time_us for record in records], pa.int64())
        columns = {"ts": times.cast(_UTC_US), "value": pa.array(positions)}
        batch = pa.record_batch([columns[field.name] for field in self._schema], schema=self._schema)
        known = times.fill_null(NO_TIMESTAMP).to_numpy()
        has_gaps = positions[-1] - positions[0] >= len(records)
        return RecordBlock(batch, positions if has_gaps else int(positions[0]), known)


class _PausableSplitReader(_ScriptedSplitReader):
    def pause_or_resume_splits(self, to_pause: Sequence[RecordSplit], to_resume: Sequence[RecordSplit]) -> None:
        self._paused.update(split.split_id for split in to_pause)
        self._paused.difference_update(split.split_id for split in to_resume)
