"""A source that does what a test wrote down, and how that is written: a list for each split."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, TypeAlias

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
from streaming_source.tools.testing.fakes import FakeClock

_UTC_US: Final = pa.timestamp("us", "UTC")
_SCHEMA: Final = pa.schema([("ts", _UTC_US), ("value", pa.int64())])


@dataclass(frozen=True, slots=True)
class Abort:
    """A fetch that comes to this point fails once: the first, as a rule the planner's as it reads ahead or a later."""

    encounter: int = 1


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause: what follows is there so much later, by the clock of the source, than what stands before it."""

    duration: timedelta | str


@dataclass(frozen=True, slots=True)
class Gap:
    """So many positions without a record, at least 1."""

    positions: int


@dataclass(frozen=True, slots=True)
class EndOfSplit:
    """The split ends here. Without it, it does not end, unless the source is bounded."""


ABORT: Final = Abort()
EOF: Final = EndOfSplit()

Element: TypeAlias = "int | Abort | Pause | Gap | EndOfSplit | None"
"""A record, as its event time in microseconds or None for one without, or a mark."""


@dataclass(frozen=True, slots=True)
class ScriptedRecord:
    """One record, its event time if it has one, and the time on the clock from which on it is there."""

    position: int
    time_us: int | None
    arrival_us: int


class SplitScript:
    """The script of one split, which appears at a time by the clock, and `ends` also without an `EOF`."""

    def __init__(self, elements: Iterable[Element], appears_us: int = 0, *, ends: bool = False) -> None:
        self.records: list[ScriptedRecord] = []
        # Number of the record before which a mark stands, and the mark.
        self.aborts: list[tuple[int, Abort]] = []
        self.end_us: int | None = None
        self.appears_us = appears_us
        self._position = 0
        self._last_us = appears_us
        self.go_on(elements, appears_us)
        if ends and self.end_us is None:
            self.end_us = self._last_us

    def go_on(self, elements: Iterable[Element], now_us: int) -> None:
        """Append elements that happen from a time on, and not before what stands before them."""
        self._last_us = max(self._last_us, now_us)
        for element in elements:
            if self.end_us is not None:
                raise ValueError(f"{element!r} follows the end of its split")
            if isinstance(element, Pause):
                self._last_us += parse_duration_us(element.duration, name="duration")
            elif isinstance(element, Gap):
                self._position += element.positions
            elif isinstance(element, Abort):
                self.aborts.append((len(self.records), element))
            elif isinstance(element, EndOfSplit):
                self.end_us = self._last_us
            else:
                self.records.append(ScriptedRecord(self._position, element, self._last_us))
                self._position += 1

    def end_position(self, now_us: int) -> int:
        """Behind the last record that has arrived; 0 if none has."""
        arrived = bisect_right(self.records, now_us, key=lambda record: record.arrival_us)
        return self.records[arrived - 1].position + 1 if arrived else 0


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
    name = "testing"
    identity = "script"
    has_source_timestamps = True

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
        self.pausable = pausable
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
        """See `SplitEnumerator`: after the last record that has arrived."""
        now_us = self.clock.now_us()
        return [self.scripts[split.split_id].end_position(now_us) for split in splits]

    def go_on(self, split_id: str, *elements: Element) -> None:
        """Let something happen in a split from now on, by the clock; one that is not there appears now."""
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
    def boundedness(self) -> Boundedness:
        return Boundedness.BOUNDED if self._bounded else Boundedness.CONTINUOUS_UNBOUNDED

    @property
    def fetching(self) -> Fetching:
        return self._fetching

    def schema(self) -> pa.Schema:
        return _SCHEMA

    def create_split_reader(self, context: SourceReaderContext) -> SplitReader[RecordSplit]:
        return _ScriptedSplitReader(self, context.schema)


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

    @property
    def supports_pausing(self) -> bool:
        return self._source.pausable

    def pause_or_resume_splits(self, to_pause: Sequence[RecordSplit], to_resume: Sequence[RecordSplit]) -> None:
        self._paused.update(split.split_id for split in to_pause)
        self._paused.difference_update(split.split_id for split in to_resume)

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
        return stop, is_last and not any(before == stop > first for before, _ in script.aborts)

    def _block(self, split_id: str, first: int, stop: int) -> RecordBlock:
        records = self._source.scripts[split_id].records[first:stop]
        positions = np.array([record.position for record in records], np.int64)
        times = pa.array([record.time_us for record in records], pa.int64())
        columns = {"ts": times.cast(_UTC_US), "value": pa.array(positions)}
        batch = pa.record_batch([columns[field.name] for field in self._schema], schema=self._schema)
        known = times.fill_null(NO_TIMESTAMP).to_numpy()
        has_gaps = positions[-1] - positions[0] >= len(records)
        return RecordBlock(batch, positions if has_gaps else int(positions[0]), known)
